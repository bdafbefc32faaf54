"""
The batch that a sender writes to a link: the transfers to write, and the result of their outcomes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from gateway.brokers.amqp.dialects import Dialect
from gateway.brokers.amqp.senders import Sender
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    Outcome,
    OutcomeUnknown,
    PartlyAccepted,
    Unavailable,
)
from gateway.domain.message import Message, Typed
from gateway.net.amqp.links import InFlight, LinkVoid
from gateway.wire.amqp.conditions import error_from_condition
from gateway.wire.amqp.events import Accepted, DeliveryState, Modified, Rejected, Released
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.servicebus.batches import BATCH, MAX_SIZE, SINGLE, batch_of

_BATCH_OVERHEAD: Final = 8  # bytes of the data section around each message

Transfer = tuple[bytes, int]  # payload and message format


def encoded(messages: Sequence[Message], dialect: Dialect, user: str) -> list[bytes]:
    """
    Encode the messages.

    Raises:
        InvalidRequest, NotSupported: a message can't be encoded, or would not be delivered
            unchanged.
    """
    try:
        for message in messages:
            dialect.check(message, user)
        return [encode_message(dialect.written(message)) for message in messages]
    except MessageError as error:
        raise InvalidRequest(str(error)) from error


def transfers_of(payloads: Sequence[bytes], sender: Sender) -> list[Transfer]:
    """
    The transfers to send, in order: batches as large as allowed, or single messages.

    Raises:
        MessageTooLarge: a message is above the link's limit.
    """
    most = sender.max_size
    for payload in payloads:
        if len(payload) > most:
            raise MessageTooLarge(f"a message of {len(payload)} bytes, at most {most} expected")
    if len(payloads) == 1 or not sender.peer.dialect.of_service_bus:
        return [(payload, SINGLE) for payload in payloads]
    return [
        (batch_of(part), BATCH) if len(part) > 1 else (part[0], SINGLE)
        for part in _parts(payloads, _batch_size(sender))
    ]


async def post_all(sender: Sender, transfers: Sequence[Transfer]) -> Sequence[InFlight]:
    """
    Write all transfers, in their order, as soon as there is credit.

    Raises:
        LinkVoid: nothing was sent.
        OutcomeUnknown: the link ended after a part.
    """
    under_way: list[InFlight] = []
    try:
        for payload, message_format in transfers:
            under_way.append(await sender.link.post(payload, message_format))
    except LinkVoid as void:
        if not under_way:
            raise
        raise OutcomeUnknown(
            f"{len(under_way)} of {len(transfers)} parts were sent, then: {void.link.failure()}"
        ) from void
    return under_way


async def check_all(
    sender: Sender, under_way: Sequence[InFlight], messages: Sequence[Message]
) -> None:
    """
    Return when all transfers of these messages were accepted. All together have one outcome.

    Raises:
        BrokerError: not all were accepted; `OutcomeUnknown` if a part may have arrived, and
            `PartlyAccepted` if it is known of each message.
    """
    verdicts: list[BrokerError | None] = []
    for each in under_way:
        try:
            verdicts.append(verdict(await each.outcome(), sender.peer.dialect))
        except OutcomeUnknown as unknown:
            verdicts.append(unknown)
    if any(verdicts):
        raise _one_of(verdicts, messages)


def verdict(state: DeliveryState | None, dialect: Dialect) -> BrokerError | None:
    """
    The error of an outcome; None: the broker owns the message. A message that it released or
    modified isn't stored.
    """
    match state:
        case Accepted():
            return None
        case Rejected(error=None):
            return dialect.unexplained("the broker rejected the message without a reason")
        case Rejected(error=error) if error is not None:
            return error_from_condition(error.condition, error.description)
        case Released() | Modified():
            return Unavailable(
                f"the broker didn't take the message: {type(state).__name__.lower()}"
            )
    return OutcomeUnknown("the message was settled without an outcome")


def _one_of(verdicts: Sequence[BrokerError | None], messages: Sequence[Message]) -> BrokerError:
    errors = [each for each in verdicts if each is not None]
    unknown = [each for each in errors if each.outcome is Outcome.UNKNOWN]
    worst, of = (unknown or errors)[0], len(verdicts)
    if of == 1 or (len(errors) == of and not unknown):
        return worst
    text = f"{of - len(errors)} of {of} parts were accepted, then: {worst}"
    if of != len({id(message) for message in messages}):  # a batch, or one message several times
        return OutcomeUnknown(text)
    accepted = [message for message, error in zip(messages, verdicts, strict=True) if error is None]
    return PartlyAccepted(text, accepted, worst)


def _batch_size(sender: Sender) -> int:
    assert sender.link.answer is not None, "it is attached"
    said: Any = sender.link.answer.properties.get(MAX_SIZE)
    if isinstance(said, Typed):
        said = said.value
    return min(said, sender.max_size) if isinstance(said, int) and said > 0 else sender.max_size


def _parts(payloads: Iterable[bytes], most: int) -> list[list[bytes]]:
    parts: list[list[bytes]] = []
    room = 0
    for payload in payloads:
        size = len(payload) + _BATCH_OVERHEAD
        if not parts or size > room:
            parts.append([])
            room = most
        parts[-1].append(payload)
        room -= size
    return parts
