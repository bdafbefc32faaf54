"""
Service Bus REST: the answers to the operations, both directions.

What an answer looks like stands with the requests, in `servicebus_rest`; errors are
`servicebus_errors`'.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from gateway.domain.errors import InvalidRequest, OutcomeUnknown
from gateway.domain.message import DeadLetter, Delivery, Leg, ReceiveMode
from gateway.wire import pairgate_frames
from gateway.wire.http import Headers, Response
from gateway.wire.rest_message import body_bytes, delivery_headers, delivery_of
from gateway.wire.servicebus_errors import PAIRGATE, parse_error
from gateway.wire.servicebus_operations import (
    Accepted,
    Answer,
    Delivered,
    Done,
    Form,
    Operation,
    PeekMessages,
    ProbeEntity,
    ReceiveMessages,
    Renewed,
    RenewLock,
    SendMessages,
    SettleMessage,
)
from gateway.wire.servicebus_rest import build_request

LOCKED_UNTIL: Final = "X-Pairgate-Locked-Until"
LEG: Final = "X-Pairgate-Leg"
_LEGS: Final = {leg.value: leg for leg in Leg}


def build_response(operation: Operation, answer: Answer, origin: str) -> Response:
    """Build a success. `origin` begins the Location of a locked message; see `origin_of`."""
    match answer:
        case Accepted(leg=leg):
            return _success(201, [(LEG, leg.value)])
        case Delivered():
            return _build_delivered(operation, answer, origin)
        case Renewed(locked_until=date):
            return _success(200, [] if date is None else [(LOCKED_UNTIL, date.isoformat())])
        case Done():
            return _success(200)


def parse_response(operation: Operation, response: Response) -> Answer:
    """
    Read the answer to a request that `build_request` made.

    Raises:
        BrokerError: the one that the answer says. OutcomeUnknown also where a success can't be
            understood, or where an operation between Pairgates was answered by something else.
    """
    if response.status not in _EXPECTED[type(operation)]:
        settling = isinstance(operation, SettleMessage | RenewLock)
        raise parse_error(response, settling=settling)
    if needs_pairgate(operation) and response.headers.get(PAIRGATE[0]) is None:
        raise OutcomeUnknown("what answered is no Pairgate")
    try:
        return _parse_success(operation, response)
    except InvalidRequest as error:
        raise OutcomeUnknown(f"an answer that can't be read: {error}") from error


def needs_pairgate(operation: Operation) -> bool:
    """Whether only a Pairgate knows the operation. A receive with a limit is no such one."""
    match operation:
        case SendMessages(form=form):
            return form is Form.AMQP
        case SettleMessage(settlement=settlement):
            return isinstance(settlement, DeadLetter)
        case _:
            return isinstance(operation, PeekMessages | ProbeEntity)


_EXPECTED: Final[dict[type[Operation], frozenset[int]]] = {
    SendMessages: frozenset({201}),
    ReceiveMessages: frozenset({200, 201, 204}),
    PeekMessages: frozenset({200, 204}),
    SettleMessage: frozenset({200, 204}),
    RenewLock: frozenset({200, 204}),
    ProbeEntity: frozenset({200, 204}),
}


def _success(status: int, fields: Sequence[tuple[str, str]] = (), body: bytes = b"") -> Response:
    return Response(status=status, headers=Headers.of([PAIRGATE, *fields]), body=body)


def _build_delivered(operation: Operation, answer: Delivered, origin: str) -> Response:
    if not answer.deliveries:
        return _success(204)
    locked = isinstance(operation, ReceiveMessages) and operation.mode is ReceiveMode.PEEK_LOCK
    status = 201 if locked else 200
    if not isinstance(operation, ReceiveMessages) or operation.limit is not None:
        body = pairgate_frames.build_deliveries(answer.deliveries)
        return _success(status, [("Content-Type", Form.AMQP.value)], body)
    (delivery,) = answer.deliveries
    fields = delivery_headers(delivery)
    if delivery.lock_token is not None:
        lock = RenewLock(
            entity=operation.entity,
            message=str(delivery.sequence_number),
            lock_token=delivery.lock_token,
        )
        fields.append(("Location", origin + build_request(lock).target))
    return _success(status, fields, body_bytes(delivery.message, strict=False))


def _parse_success(operation: Operation, response: Response) -> Answer:
    match operation:
        case SendMessages():
            return Accepted(leg=_LEGS.get(response.headers.get(LEG) or "", Leg.PRIMARY))
        case RenewLock():
            return Renewed(locked_until=_parse_date(response.headers.get(LOCKED_UNTIL)))
        case SettleMessage() | ProbeEntity():
            return Done()
        case ReceiveMessages() | PeekMessages():
            return Delivered(deliveries=_parse_deliveries(operation, response))


def _parse_deliveries(
    operation: ReceiveMessages | PeekMessages, response: Response
) -> tuple[Delivery, ...]:
    if response.status == 204:
        return ()
    rich = not isinstance(operation, ReceiveMessages) or operation.limit is not None
    if rich and response.headers.get("Content-Type") == Form.AMQP.value:
        return pairgate_frames.parse_deliveries(response.body)
    return (delivery_of(response.headers, response.body),)


def _parse_date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{LOCKED_UNTIL}: {error}") from error
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
