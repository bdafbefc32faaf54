"""A backlog message in a syphon, the facts about its queue, and the rate limit."""

from datetime import timedelta
from math import inf

import attrs
import trio

from gateway.domain import backlog
from gateway.domain.clocks.lifetime import Stay
from gateway.domain.clocks.lock_ends import USUAL_LOCK
from gateway.domain.copies import CopyId
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Unwrapped
from gateway.domain.message import Delivery


@attrs.define(eq=False)
class BacklogMessage:
    """
    A backlog message that a syphon has claimed, unwrapped.

    Renewing the lock replaces `delivery`. `received` is the time of the first delivery, by Trio's
    clock, and `stay_at_receipt` the time on the backlog until then; None: the namespace doesn't
    report its dates.
    """

    copy: CopyId
    delivery: Delivery
    unwrapped: Unwrapped
    received: float
    stay_at_receipt: Stay | None

    @classmethod
    def of(
        cls, queue: EntityPath, delivery: Delivery, unwrapped: Unwrapped, now: float
    ) -> "BacklogMessage":
        """The message of a delivery by that backlog queue. `now` is by Trio's clock."""
        identity = unwrapped.attempt or str(delivery.message.message_id)
        copy = (queue.key, delivery.sequence_number, identity)
        return cls(copy, delivery, unwrapped, now, Stay.at_receipt(delivery))

    @property
    def can_expire(self) -> bool:
        return self.unwrapped.time_to_live is not None or self.unwrapped.expires is not None

    @property
    def stay(self) -> Stay | None:
        """Time on the backlog until now. None: the namespace doesn't report its dates."""
        if self.stay_at_receipt is None:
            return None
        since = timedelta(seconds=trio.current_time() - self.received)
        return attrs.evolve(self.stay_at_receipt, lasted=self.stay_at_receipt.lasted + since)


@attrs.frozen(kw_only=True)
class BacklogQueueInfo:
    """Facts about one backlog queue that its namespace reports. None: not reported."""

    depth: int | None = None  # messages
    lock_duration: timedelta | None = None

    @property
    def shortest_lock(self) -> float:
        """The shortest time, in seconds, that a lock of this queue can last."""
        return (self.lock_duration or backlog.LOCK).total_seconds()

    @property
    def longest_lock(self) -> float:
        """The longest time, in seconds, that a lock of this queue is assumed to last."""
        return USUAL_LOCK if self.lock_duration is None else self.lock_duration.total_seconds()


@attrs.define(eq=False)
class Progress:
    """Shared by a syphon's drains: the time since the last move, and the rate limit."""

    rate: float | None  # messages/s
    began: float = attrs.field(factory=trio.current_time)  # start of that syphon, by Trio's clock
    batches: int = 0  # that all drains together may have in progress
    _last_move: float = attrs.field(default=-inf, init=False)
    _last_received: float = attrs.field(default=-inf, init=False)
    _waiting_since: float = attrs.field(default=-inf, init=False)
    _free_at: float = attrs.field(default=0.0, init=False)
    _one_at_a_time: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def record_move(self) -> None:
        """Record that a message moved, or that the backlog is empty."""
        self._last_move = trio.current_time()

    def record_received(self) -> None:
        """Record that messages were received, so that this syphon now has their locks."""
        self._last_received = trio.current_time()

    @property
    def has_received(self) -> bool:
        """True if this syphon has received messages since they were first seen waiting."""
        return self._last_received >= self._waiting_since

    def record_waiting(self) -> float:
        """
        Record that messages wait; return for how many seconds they have waited without a move.

        The first call after a move returns 0: its messages may have arrived just before the call.
        """
        now = trio.current_time()
        if self._last_move >= self._waiting_since:
            self._waiting_since = now
        return now - self._waiting_since

    async def wait_for_rate_limit(self) -> None:
        """Return when the rate limit allows a send; `spend` must follow without a checkpoint."""
        async with self._one_at_a_time:  # each waiter delays the next
            await trio.sleep_until(self._free_at)

    def within_rate(self, messages: int) -> int:
        """Limit a batch of that many messages to what the rate limit allows in one second."""
        return messages if self.rate is None else max(1, min(messages, int(self.rate)))

    def within_lock(self, messages: int, lock: float) -> int:
        """
        Limit a batch of that many messages to its share of what the rate limit moves in a third of
        a lock of `lock` seconds: more messages would only be kept locked, until their locks end.
        """
        if self.rate is None:
            return messages
        return max(1, min(messages, int(self.rate * lock / 3.0 / max(1, self.batches))))

    def spend(self, messages: int) -> None:
        """Charge that many messages, which are sent now, to the rate limit."""
        if self.rate is not None:
            self._free_at = max(self._free_at, trio.current_time()) + messages / self.rate
