"""
State that the messages of one queue share for as long as a receiver is open, and the completions of
handled messages; if the namespace can, all that are due at one moment in one step.

A completion is sent at least once, because the message would otherwise be handled twice: so a task
that waits for its completion isn't cancelled, and a timeout limits its wait.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import attrs
import trio

from gateway.capabilities import Polls, SettlesMany, TakesBack
from gateway.capabilities.settling import settle_all, settle_one
from gateway.deadlines import answered_within
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, OutcomeUnknown
from gateway.domain.events.gateway import LockTooShort, SettledTooLate
from gateway.domain.message import Complete, Delivery, Settlement
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

_DONE: Final = Complete()


@attrs.define(eq=False)
class _Completion:
    """A completion that a task waits for."""

    delivery: Delivery
    task: trio.lowlevel.Task | None = None  # woken with the result; None: this task leads
    verdict: BrokerError | None = None


@attrs.define(eq=False, kw_only=True)
class Completions:
    """Completions of one receiver. `limit`: timeout of an answer in seconds."""

    receiver: Receiver
    limit: float
    _together: bool = attrs.field(init=False)
    # The first completion's task leads.
    _next: list[_Completion] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._together = offered(self.receiver, SettlesMany) is not None

    async def complete(self, delivery: Delivery) -> BrokerError | None:
        """
        Return None when the namespace has completed the message, else the error, `OutcomeUnknown`
        after a timeout. A cancellation takes effect after that.
        """
        if not self._together:
            return await self._complete_one(delivery)
        completion = _Completion(delivery)
        self._next.append(completion)
        if self._next[0] is completion:
            await self._lead()
        else:
            completion.task = trio.lowlevel.current_task()
            # The leader's timeout covers this task; a shield for each message would be a scope for
            # each.
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return completion.verdict

    async def _lead(self) -> None:
        """Complete all messages that are due by the next tick, and wake their tasks."""
        await trio.lowlevel.cancel_shielded_checkpoint()
        batch, self._next = self._next, []
        # Also after a bug every waiting task gets a verdict.
        verdicts: Sequence[BrokerError | None] = [OutcomeUnknown("the settlement broke off")] * len(
            batch
        )
        try:
            if len(batch) == 1:
                verdicts = [await self._complete_one(batch[0].delivery)]
            else:
                with trio.CancelScope(shield=True):
                    verdicts = await settle_all(
                        self.receiver, [(each.delivery, _DONE) for each in batch], self.limit
                    )
        finally:
            for each, verdict in zip(batch, verdicts, strict=True):
                each.verdict = verdict
                if each.task is not None:
                    trio.lowlevel.reschedule(each.task)

    async def _complete_one(self, delivery: Delivery) -> BrokerError | None:
        return await settle_one(self.receiver, delivery, _DONE, self.limit, shield=True)


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
