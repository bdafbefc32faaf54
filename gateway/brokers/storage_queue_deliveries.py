"""Messages that a receiver of Storage Queue has taken, and the numbers that they get here."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.brokers.storage_queue_peer import Shard
from gateway.brokers.tokens import lock_tokens
from gateway.domain.message import Delivery, Message
from gateway.ports import WallClock
from gateway.wire.storage_queue_body import Read, parse_item
from gateway.wire.storage_queue_operations import QueueMessage

_MOST: Final = 100_000  # messages whose numbers are remembered
_SECOND: Final = timedelta(seconds=1)


@attrs.define(eq=False)
class Numbers:
    """
    Sequence numbers, which the service has none of: in the order in which messages are first seen.

    A message keeps its number as long as it's remembered. They begin with the time of the start,
    so that those of another run are others.
    """

    _clock: WallClock
    _rng: random.Random
    _known: dict[tuple[str, str], int] = attrs.field(factory=dict)
    _last: int = 0
    new_token: Callable[[], str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.new_token = lock_tokens(self._rng)

    def of(self, queue: str, message_id: str) -> int:
        """The number of that message."""
        key = queue, message_id
        if (known := self._known.get(key)) is not None:
            return known
        self._last = self._last + 1 if self._last else int(self._clock().timestamp() * 1e6)
        self._known[key] = self._last
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        return self._last


@attrs.define(eq=False, kw_only=True)
class Held:
    """A message that is hidden from others. The receipt is the one that came last."""

    shard: Shard
    id: str
    token: str
    receipt: str
    message: Message | None  # None: it isn't kept any more
    weight: int  # bytes, of what is kept of it
    deliveries: int
    expires: datetime | None  # as the sender said it, by the sender's clock
    may_be_gone: bool = False  # somebody here asked to delete it, and nobody knows

    def forget_message(self) -> None:
        self.message, self.weight = None, 0


@attrs.frozen(kw_only=True)
class Taken:
    """What one item of the service's answer is, before anybody gets it."""

    held: Held
    delivery: Delivery
    is_expired: bool


def read_taken(
    shard: Shard,
    item: QueueMessage,
    lock: timedelta,
    asked: datetime,
    *,
    number: int,
    token: str,
) -> Taken:
    """
    `asked`: our date before it was asked for. By our clock the lock holds at least from then on,
    whatever the service's says.
    """
    read = parse_item(item)
    delivery = attrs.evolve(shown(item, read, number), lock_token=token, locked_until=asked + lock)
    held = Held(
        shard=shard,
        id=item.message_id,
        token=token,
        receipt=item.pop_receipt or "",
        message=read.message,
        weight=len(item.body or b""),
        deliveries=delivery.delivery_count,
        expires=read.expires,
    )
    past = _is_past(item, read.expires, lock, asked)
    return Taken(held=held, delivery=delivery, is_expired=past)


def shown(item: QueueMessage, read: Read, number: int) -> Delivery:
    """The delivery without a lock. A scheduled message is enqueued when it's due."""
    scheduled = read.message.scheduled
    return Delivery(
        message=read.message,
        sequence_number=number,
        delivery_count=max(1, item.dequeues or 0),
        enqueued=item.inserted if scheduled is None else max(item.inserted, scheduled),
        expires=read.expires or item.expires,
    )


def _is_past(item: QueueMessage, expires: datetime | None, lock: timedelta, now: datetime) -> bool:
    """
    Whether it has expired, by the service's own clock: ours and the sender's may be wrong.

    That clock can be read from when the message is visible again. It has whole seconds, so that
    within the last ones it's ours that says more. Some emulators hand out what is long past.
    """
    if item.expires is None or item.visible is None:
        return False
    there = item.visible - lock
    if item.expires + _SECOND < there:
        return True
    return expires is not None and expires <= now and item.expires - 2 * _SECOND <= there
