"""
Service Bus REST: the answers to the operations, both directions.

The answers' format is described with the requests, in `rest`; errors are in `errors`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest, OutcomeUnknown
from gateway.domain.identity import Identity, parse_identity
from gateway.domain.message import AcceptedBy, DeadLetter, Delivery, ReceiveMode
from gateway.wire.http.date import parse_http_date
from gateway.wire.http.messages import Headers, Response
from gateway.wire.pairgate import frames
from gateway.wire.servicebus.errors import PAIRGATE, parse_error
from gateway.wire.servicebus.operations import (
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
    SendAccepted,
    SendMessages,
    SettleMessage,
)
from gateway.wire.servicebus.rest import lock_path
from gateway.wire.servicebus.rest_message import body_bytes, delivery_headers, delivery_of

LOCKED_UNTIL: Final = "X-Pairgate-Locked-Until"
ACCEPTED_BY: Final = "X-Pairgate-Accepted-By"
IDENTITY: Final = "X-Pairgate-Identity"
_ACCEPTED_BY: Final = {accepted_by.value: accepted_by for accepted_by in AcceptedBy}


def build_response(operation: Operation, answer: Answer, origin: str) -> Response:
    """Build a success. `origin` begins the Location of a locked message; see `origin_of`."""
    match answer:
        case SendAccepted(accepted_by=accepted_by):
            return _ACCEPTED[accepted_by]
        case Delivered():
            return _build_delivered(operation, answer, origin)
        case Renewed(locked_until=date):
            return _success(200, [] if date is None else [(LOCKED_UNTIL, date.isoformat())])
        case Done():
            return _DONE


def build_identity(identity: Identity) -> Response:
    """Build the answer with the namespace's identity."""
    return _success(200, [(IDENTITY, str(identity))])


def parse_identity_response(response: Response) -> Identity:
    """
    Parse a namespace's identity.

    Raises:
        BrokerError: the answer is an error.
        InvalidRequest: the answer has no identity.
    """
    if response.status != 200:
        raise parse_error(response)
    return parse_identity(response.headers.get(IDENTITY) or "")


def parse_response(operation: Operation, response: Response) -> Answer:
    """
    Parse the answer to a request of `build_request`.

    Raises:
        BrokerError: the answer is an error. OutcomeUnknown also if a success is malformed, or if a
            server other than a Pairgate answered an operation between Pairgates.
    """
    if response.status not in _EXPECTED[type(operation)]:
        settling = isinstance(operation, SettleMessage | RenewLock)
        raise parse_error(response, settling=settling)
    if needs_pairgate(operation) and response.headers.get(PAIRGATE[0]) is None:
        raise OutcomeUnknown(
            "the answer isn't from a Pairgate, which alone supports this operation"
        )
    try:
        return _parse_success(operation, response)
    except InvalidRequest as error:
        raise OutcomeUnknown(f"the answer is malformed: {error}") from error


def needs_pairgate(operation: Operation) -> bool:
    """
    True if only a Pairgate supports the operation. A receive with a limit isn't such an operation.
    """
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


# Made once: they are the answers to all sends and settlements.
_ACCEPTED: Final = {each: _success(201, [(ACCEPTED_BY, each.value)]) for each in AcceptedBy}
_DONE: Final = _success(200)


def _build_delivered(operation: Operation, answer: Delivered, origin: str) -> Response:
    if not answer.deliveries:
        return _success(204)
    locked = isinstance(operation, ReceiveMessages) and operation.mode is ReceiveMode.PEEK_LOCK
    status = 201 if locked else 200
    if not isinstance(operation, ReceiveMessages) or operation.limit is not None:
        body = frames.build_deliveries(answer.deliveries)
        return _success(status, [("Content-Type", Form.AMQP.value)], body)
    (delivery,) = answer.deliveries
    fields = delivery_headers(delivery)
    if delivery.lock_token is not None:
        number = str(delivery.sequence_number)
        path = lock_path(operation.entity, number, delivery.lock_token)
        fields.append(("Location", origin + path))
    return _success(status, fields, body_bytes(delivery.message, strict=False))


def _parse_success(operation: Operation, response: Response) -> Answer:
    match operation:
        case SendMessages():
            return SendAccepted(
                accepted_by=_ACCEPTED_BY.get(
                    response.headers.get(ACCEPTED_BY) or "", AcceptedBy.PRIMARY
                )
            )
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
        deliveries = frames.parse_deliveries(response.body)
    else:
        deliveries = (delivery_of(response.headers, response.body),)
    most = operation.most if isinstance(operation, ReceiveMessages) else operation.limit
    if len(deliveries) > most:
        raise InvalidRequest(f"{len(deliveries)} messages, where {most} were wanted")
    date = parse_http_date(response.headers.get("Date") or "")
    return tuple(attrs.evolve(each, received=date) for each in deliveries)


def _parse_date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{LOCKED_UNTIL}: {error}") from error
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
