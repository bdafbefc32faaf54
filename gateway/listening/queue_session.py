"""State that the messages of one queue share for as long as a receiver is open."""

from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import attrs

from gateway.capabilities import Polls, TakesBack
from gateway.deadlines import answered_within
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost
from gateway.domain.events.gateway import LockTooShort, SettledTooLate
from gateway.domain.message import Delivery, Settlement
from gateway.listening.completions import Completions
from gateway.listening.concurrency_limiter import ConcurrencyLimiter
from gateway.listening.consumer_stats import ConsumerStats
from gateway.listening.endpoint import HandlerEndpoint
from gateway.listening.items import Item
from gateway.listening.job import Job
from gateway.listening.locks import LockRenewals
from gateway.listening.scaling.lock_tuning import LockTuning
from gateway.listening.triggers import Subscription
from gateway.offering import offered
from gateway.ports import Receiver

T = TypeVar("T")

MARGIN: Final = 0.1  # of its lock is left when a handler is cancelled
LONGEST_MARGIN: Final = 5.0  # seconds: enough for a handler to end, and to settle
# seconds: a lock of 1 s, the shortest that is usable, has already lost some time
SHORTEST_LOCK: Final = 0.9


@attrs.define(eq=False, kw_only=True)
class QueueSession(Generic[T]):
    """The held messages of one queue."""

    job: Job[T]
    queue: EntityPath
    receiver: Receiver
    limiter: ConcurrencyLimiter
    endpoint: HandlerEndpoint
    locks: LockRenewals
    stats: ConsumerStats
    tuning: LockTuning
    subscription: Subscription
    is_draining: bool = False
    polls: Polls | None = attrs.field(init=False)  # None: the namespace pushes
    _completions: Completions = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.polls = offered(self.receiver, Polls)
        limit = self.job.options.answer_timeout
        self._completions = Completions(receiver=self.receiver, limit=limit)

    @property
    def takes_back_uncounted(self) -> bool:
        """True if abandoning a message that no handler has started doesn't count as a delivery."""
        takes_back = offered(self.receiver, TakesBack)
        return takes_back is not None and takes_back.takes_back_uncounted

    async def receive(self, limit: int) -> list[Delivery]:
        """
        Wait for messages; if the namespace must be polled, receive once.

        Raises:
            BrokerError: as `Receiver.receive`.
        """
        if self.polls is not None:
            is_tuned = self.stats.advice is not None and self.job.options.tune_lock
            lock = timedelta(seconds=self.tuning.lock) if is_tuned else None
            try:
                deliveries = list(await self.polls.poll(limit, lock))
            except BrokerError:
                self.stats.count(Operation.EMPTY)
                raise
        else:
            deliveries = list(await self.receiver.receive(limit))
        operation = Operation.RECEIVE if deliveries else Operation.EMPTY
        self.stats.count(operation, len(deliveries))
        return deliveries

    async def complete(self, delivery: Delivery) -> BrokerError | None:
        """As `Completions.complete`."""
        self.stats.count(Operation.SETTLE)
        return await self._completions.complete(delivery)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`, with a timeout.

        Raises:
            BrokerError: as `Receiver.settle`; `OutcomeUnknown` after the timeout.
        """
        limit = self.job.options.answer_timeout
        self.stats.count(Operation.SETTLE)
        with answered_within(limit, "to a settlement"):
            await self.receiver.settle(delivery, settlement)

    async def renew(self, delivery: Delivery, limit: float) -> datetime:
        """
        As `Receiver.renew`, with a timeout in seconds.

        Raises:
            BrokerError: as `Receiver.renew`; `OutcomeUnknown` after the timeout.
        """
        limit = min(limit, self.job.options.answer_timeout)
        self.stats.count(Operation.RENEW)
        with answered_within(limit, "to a renewal"):
            return await self.receiver.renew(delivery)

    def seconds_locked(self, locked_until: datetime | None) -> float:
        """
        The seconds for which a lock holds from now on.

        The usual duration is assumed if the namespace reports no date, or if its clock or ours is
        so wrong that the lock would end within a second.
        """
        if locked_until is not None:
            left = (locked_until - self.job.clock()).total_seconds()
            if left >= SHORTEST_LOCK:
                return left
        return self.job.options.lock_duration

    def record_done(self, item: Item[T], seconds: float) -> None:
        self.stats.completed += 1
        self._tune(late=False, work=seconds)
        for subscriber in self.job.subscribers:
            subscriber.on_item(item)

    def record_late(self, delivery: Delivery, seconds: float) -> None:
        """Report work that was done too late or cut off: its message is delivered again."""
        self.stats.too_late += 1
        self._tune(late=True, work=seconds)
        message_id = str(delivery.message.message_id)
        self.job.observer.report(SettledTooLate(queue=self.queue, message_id=message_id))
        self.job.report_error(
            self.queue,
            LockLost(f"the lock of message {message_id} expired before its handler ended"),
        )

    def _tune(self, *, late: bool, work: float) -> None:
        advice = self.tuning.record(late=late, work=work)
        if advice is not None:
            self.stats.advice = advice
            event = LockTooShort(
                queue=self.queue, seconds=advice.lock, late_share=advice.late_share
            )
            self.job.observer.report(event)


def margin(seconds: float) -> float:
    """
    The seconds before the end of a lock at which its handler is cancelled; `seconds` is the lock's
    duration.
    """
    return min(LONGEST_MARGIN, MARGIN * seconds)
