"""Unsettled deliveries of a RabbitMQ receiver, and their settlements in RabbitMQ's terms."""

from datetime import datetime
from typing import Final

import attrs

from gateway.domain.clocks.times import moved
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
    derive_message,
)
from gateway.domain.texts import check_reason
from gateway.net.rabbitmq.channel import Channel
from gateway.wire.rabbitmq.properties import Incoming

_COUNTER_BITS: Final = 20  # as `properties._TAG_BITS` of the wire: a million within a millisecond
_LOW: Final = (1 << 48) - 1  # the bits of a UUID's last group


@attrs.define(eq=False)
class Consumer:
    """
    A consumer on a channel: the broker pushes messages until `prefetch` of them are unsettled.
    """

    tag: str
    prefetch: int
    unsettled: int = 0


@attrs.define(eq=False)
class Held:
    """An unsettled delivery."""

    delivery: Delivery
    channel: Channel
    tag: int
    consumer: Consumer
    taken: float  # trio.current_time(), as `ends`
    ends: float
    weight: int = 0  # bytes that it occupies here
    without_message: bool = False  # whether the message was dropped by `forget_message`


def lock_token(receiver: str, number: int) -> str:
    """A UUID that begins with the receiver's own 16 hexadecimal digits."""
    return f"{receiver}-{number >> 48:04x}-{number & _LOW:012x}"


def token_prefix(nonce: int) -> str:
    """The beginning of all lock tokens of a receiver; `nonce` has at most 64 bits."""
    digits = f"{nonce:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:]}"


def delivery_of(
    incoming: Incoming,
    *,
    token: str,
    number: int,
    redelivered: bool,
    now: datetime,
    locked_until: datetime,
) -> Delivery:
    """
    Make the delivery with this token, the receiver's `number`th.

    A message sent by Pairgate contains the time of its sending, by the sender's clock, and a
    sequence number that is the same in each delivery. Other messages get a new sequence number per
    delivery.
    """
    message, copy, failed = incoming.message, incoming.copy, incoming.delivery_count
    enqueued = expires = None
    if copy is None:
        milliseconds = int(now.timestamp() * 1000)
        sequence_number = (milliseconds << _COUNTER_BITS) | (number % (1 << _COUNTER_BITS))
    else:
        sequence_number, enqueued = copy.sequence_number, copy.sent_at
        if message.time_to_live is not None:
            expires = moved(enqueued, message.time_to_live)
    return Delivery(
        message=message,
        sequence_number=sequence_number,
        lock_token=token,
        delivery_count=1 + (int(redelivered) if failed is None else max(failed, 0)),
        enqueued=enqueued,
        locked_until=locked_until,
        expires=expires,
    )


def check_settlement(settlement: Settlement, entity: EntityPath) -> None:
    """
    Check that RabbitMQ can do this settlement.

    Raises:
        NotSupported: RabbitMQ can't do it.
        InvalidRequest: the settlement is invalid in any namespace.
    """
    if isinstance(settlement, DeadLetter):
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a dead letter can't be dead-lettered")
        check_reason(settlement)
    elif isinstance(settlement, Defer):
        raise NotSupported("RabbitMQ can't defer a message; complete, abandon or dead-letter it")
    elif isinstance(settlement, Abandon) and settlement.properties:
        raise NotSupported("RabbitMQ can't change the properties of an abandoned message")


def as_dead_letter(held: Held, settlement: DeadLetter) -> Message:
    """
    The message as it is sent to the dead-letter queue, with the reason.

    Raises:
        NotSupported: the message was dropped by `forget_message`.
    """
    if held.without_message:
        raise NotSupported(
            "the receiver has dropped this message with `forget_message`: it can't be dead-lettered"
        )
    message = held.delivery.message
    reasons = {
        DEAD_LETTER_REASON: settlement.reason,
        DEAD_LETTER_DESCRIPTION: settlement.description,
    }
    properties = {**message.properties, **settlement.properties, **reasons}
    return derive_message(message, properties=properties)
