"""Messages that a receiver of Storage Queue holds, and their sequence numbers."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.brokers.lock_tokens import lock_tokens
from gateway.capabilities import LONGEST_TOKEN
from gateway.domain.bounded import Bounded
from gateway.domain.clocks.times import moved
from gateway.domain.errors import LockLost
from gateway.domain.message import Delivery, Message
from gateway.ports import WallClock
from gateway.wire.storage_queue.body import Read, parse_item
from gateway.wire.storage_queue.operations import QueueMessage

_MOST: Final = 100_000  # messages whose numbers are remembered
_SECOND: Final = timedelta(seconds=1)
_TOKEN: Final = b"Q"  # begins a token: id, line feed, pop receipt


@attrs.define(eq=False)
class Numbers:
    """
    Assigns sequence numbers, which the service doesn't have, in the order in which messages are
    first seen.

    A message keeps its number as long as the number is remembered. Numbers start with the time of
    the start, so that those of different runs differ.
    """

    _clock: WallClock
    _rng: random.Random
    _known: Bounded[tuple[str, str], int] = attrs.field(factory=lambda: Bounded(_MOST))
    _last: int = 0
    new_token: Callable[[], str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.new_token = lock_tokens(self._rng)

    def of(self, queue: str, message_id: str) -> int:
        """The number of a message."""
        key = queue, message_id
        if (known := self._known.get(key)) is not None:
            return known
        self._last = self._last + 1 if self._last else int(self._clock().timestamp() * 1e6)
        self._known[key] = self._last
        return self._last


@attrs.define(eq=False, kw_only=True)
class Held:
    """A hidden message with its current pop receipt."""

    id: str
    token: str
    receipt: str
    message: Message | None  # None: dropped
    deliveries: int
    expires: datetime | None = None  # as the sender set it, by the sender's clock
    is_text: bool = False  # the message is a text alone, without more fields
    # Held by each request that carries the receipt: the answer to a renewal replaces it, and a
    # settlement sent meanwhile would carry the old one, which the service refuses.
    request: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def handed_out(self) -> bytes | None:
        """
        All that another receiver needs to hide or delete the message; None: its content, too.
        """
        return write_token(self.id, self.receipt) if self.is_text else None


def write_token(message_id: str, receipt: str) -> bytes | None:
    """The token of a message that is a text alone; None: its id or receipt can't be told."""
    if not message_id or not receipt or "\n" in message_id:
        return None
    try:
        token = b"%b%b\n%b" % (_TOKEN, message_id.encode(), receipt.encode())
    except UnicodeEncodeError:
        return None
    return token if len(token) <= LONGEST_TOKEN else None


def read_token(token: bytes, lock_token: str) -> Held:
    """
    The message of a token that was handed out.

    Raises:
        LockLost: it isn't a token of this kind of namespace.
    """
    text = token.removeprefix(_TOKEN).decode(errors="replace")
    id_, _, receipt = text.partition("\n")
    if not token.startswith(_TOKEN) or not id_ or not receipt:
        raise LockLost("the token isn't one of Azure Storage")
    return Held(
        id=id_,
        token=lock_token,
        receipt=receipt,
        message=None,
        deliveries=1,
        is_text=True,
    )


@attrs.frozen(kw_only=True)
class Taken:
    """A message as the service returned it, before it is delivered."""

    held: Held
    delivery: Delivery
    weight: int  # bytes of its message in memory
    is_expired: bool


def read_taken(
    item: QueueMessage,
    lock: timedelta,
    asked: datetime,
    *,
    number: int,
    token: str,
) -> Taken:
    """
    Read a message of the service's answer.

    `asked` is the local date before the request. By the local clock the lock begins at that date at
    the earliest, whatever the service's clock says.
    """
    read = parse_item(item)
    delivery = attrs.evolve(
        peeked(item, read, number),
        lock_token=token,
        locked_until=asked + lock,
        received=None if item.visible is None else moved(item.visible, -lock),
    )
    held = Held(
        id=item.message_id,
        token=token,
        receipt=item.pop_receipt or "",
        message=read.message,
        deliveries=delivery.delivery_count,
        expires=read.expires,
        is_text=read.is_text,
    )
    past = _is_past(item, read.expires, lock, asked)
    return Taken(held=held, delivery=delivery, weight=len(item.body or b""), is_expired=past)


def peeked(item: QueueMessage, read: Read, number: int) -> Delivery:
    """Make the delivery, without a lock. A scheduled message counts as enqueued when it is due."""
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
    True if the message has expired by the service's clock; the local clock and the sender's may be
    wrong.

    The service's clock is derived from the date at which the message becomes visible. It has whole
    seconds, so within the last seconds the local clock decides. Some emulators return messages that
    expired long ago.
    """
    there = None if item.visible is None else moved(item.visible, -lock)
    if item.expires is None or there is None:
        return False
    if item.expires + _SECOND < there:
        return True
    return expires is not None and expires <= now and item.expires - 2 * _SECOND <= there
