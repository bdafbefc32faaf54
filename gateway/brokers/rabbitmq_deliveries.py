"""What a receiver of RabbitMQ has taken: as the gateway knows it, and as the broker does."""

from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Abandon,
    DeadLetter,
    Defer,
    Delivery,
    Message,
    Settlement,
)
from gateway.domain.queue_checks import check_reason
from gateway.net.rabbitmq_channel import Channel
from gateway.wire.rabbitmq_properties import Incoming

_COUNTER_BITS: Final = 20


@attrs.define(eq=False)
class Consumer:
    """A subscription on a channel: the broker pushes until `prefetch` aren't settled."""

    tag: str
    prefetch: int
    unsettled: int = 0


@attrs.define(eq=False)
class Held:
    """A delivery that isn't settled."""

    delivery: Delivery
    channel: Channel
    tag: int
    consumer: Consumer
    taken: float  # trio.current_time(), as `ends`
    ends: float
    weight: int = 0  # bytes that it keeps here
    without_message: bool = False  # nobody needs that any more


def lock_token(receiver: int, number: int) -> str:
    """A UUID of the receiver's own number, of 64 bits, and that of its delivery."""
    digits = f"{receiver:016x}{number:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def delivery_of(
    incoming: Incoming,
    *,
    token: str,
    number: int,
    redelivered: bool,
    now: datetime,
    lock_duration: timedelta,
) -> Delivery:
    """
    The delivery with that token, the receiver's `number`th.

    A message of ours tells when it was sent, by its sender's clock, and has the same sequence
    number whenever it is delivered. A message of others gets one of this delivery.
    """
    copy, ttl, failed = incoming.copy, incoming.message.time_to_live, incoming.delivery_count
    enqueued = copy.sent_at if copy is not None else None
    if copy is None:
        milliseconds = int(now.timestamp() * 1000)
        sequence_number = (milliseconds << _COUNTER_BITS) | (number % (1 << _COUNTER_BITS))
    else:
        sequence_number = copy.sequence_number
    return Delivery(
        message=incoming.message,
        sequence_number=sequence_number,
        lock_token=token,
        delivery_count=1 + (int(redelivered) if failed is None else max(failed, 0)),
        enqueued=enqueued,
        locked_until=now + lock_duration,
        expires=_expiry(enqueued, ttl),
    )


def check_settlement(settlement: Settlement, entity: EntityPath) -> None:
    """
    Raises:
        NotSupported: RabbitMQ can't do that.
        InvalidRequest: nobody can.
    """
    if isinstance(settlement, DeadLetter):
        if entity.is_dead_letter:
            raise InvalidRequest("a dead letter can't be dead-lettered")
        check_reason(settlement)
    elif isinstance(settlement, Defer):
        raise NotSupported("RabbitMQ can't put a message aside")
    elif isinstance(settlement, Abandon) and settlement.properties:
        raise NotSupported("RabbitMQ can't change a message that is given back")


def as_dead_letter(held: Held, settlement: DeadLetter) -> Message:
    """
    The message as it is sent to where dead letters are, with the reason.

    Raises:
        NotSupported: the message was forgotten.
    """
    if held.without_message:
        raise NotSupported("who took this message has said that nothing of it is needed any more")
    message = held.delivery.message
    reasons = {
        DEAD_LETTER_REASON: settlement.reason,
        DEAD_LETTER_DESCRIPTION: settlement.description,
    }
    properties = {**message.properties, **settlement.properties, **reasons}
    return attrs.evolve(message, properties=properties, time_to_live=None)


def _expiry(enqueued: datetime | None, ttl: timedelta | None) -> datetime | None:
    try:
        return None if enqueued is None or ttl is None else enqueued + ttl
    except OverflowError:  # past the year 9999
        return None
