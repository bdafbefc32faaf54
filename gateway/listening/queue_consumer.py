"""
Receives the messages of one queue, with as many tasks as there is work for.

    work detected   a receive found messages after one that didn't, or as many as it asked for:
                    the rule says how many tasks there should be
    queue empty     a receive found nothing: `on_empty` says when to receive again, or that the
                    task ends

If the namespace pushes, a receive waits at no cost: the last task waits for ever, the others end.
If the namespace must be polled, the last task continues to poll, unless triggers announce every
message: then no task is left, and a trigger starts the next.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Final, Generic, TypeVar

import attrs
import trio

from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Unavailable
from gateway.domain.events.gateway import TasksEnded, WorkDetected
from gateway.domain.message import Delivery
from gateway.listening.concurrency_limiter import ConcurrencyLimiter
from gateway.listening.consumer_stats import ConsumerStats, QueueState
from gateway.listening.endpoint import HandlerEndpoint
from gateway.listening.job import Job, QueueEmpty
from gateway.listening.locks import LockRenewals
from gateway.listening.queue_session import QueueSession
from gateway.listening.scaling.concurrency import Sample
from gateway.listening.scaling.lock_tuning import LockTuning
from gateway.listening.triggers import Subscription
from gateway.listening.work import Work
from gateway.ports import Receiver

T = TypeVar("T")

LAST_LOOK: Final = 1.0  # seconds that a pending receive has to end when a drain begins


@attrs.define(eq=False, kw_only=True)
class QueueConsumer(Generic[T]):
    """The part of a listener that receives from one queue."""

    job: Job[T]
    queue: EntityPath
    limiter: ConcurrencyLimiter
    endpoint: HandlerEndpoint
    locks: LockRenewals
    subscription: Subscription
    opening: trio.CapacityLimiter  # of the listener's receivers that are being opened
    stats: ConsumerStats = attrs.field(factory=ConsumerStats, init=False)
    _tuning: LockTuning = attrs.field(init=False)
    _session: QueueSession[T] | None = attrs.field(default=None, init=False)
    _works: set[Work[T]] = attrs.field(factory=set, init=False)
    _takers: trio.Nursery | None = attrs.field(default=None, init=False)
    _handlers: trio.Nursery | None = attrs.field(default=None, init=False)
    _total: int = attrs.field(default=0, init=False)
    _active: int = attrs.field(default=0, init=False)
    _failures: int = attrs.field(default=0, init=False)  # receives that failed in a row
    _paused_until: float = attrs.field(default=-inf, init=False)
    _starting: trio.TaskStatus[None] = attrs.field(default=trio.TASK_STATUS_IGNORED, init=False)
    _draining: trio.Event = attrs.field(factory=trio.Event, init=False)
    _next_scale: float = attrs.field(default=-inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._tuning = LockTuning(lock=self.job.options.lock_duration)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Receive until drained. The consumer has started when the queue is open, or couldn't be
        opened at the first attempt: further attempts follow.
        """
        self._starting = task_status
        self.stats.operations.start(trio.current_time())
        while not self._draining.is_set():
            await self._serve()
            self._report_started()
            await self._back_off()
        self._report_started()

    def drain(self) -> None:
        """Receive nothing more; let running handlers finish, abandon the other messages."""
        self._draining.set()
        if self._session is not None:
            self._session.is_draining = True
        self.subscription.notify()
        for work in list(self._works):
            work.release()
        if self._takers is not None:
            pushes = self._session is not None and self._session.polls is None
            last = 0.0 if pushes else LAST_LOOK
            self._takers.cancel_scope.deadline = trio.current_time() + last
        if self._handlers is not None:
            grace = self.job.options.grace
            self._handlers.cancel_scope.deadline = trio.current_time() + grace

    async def query_state(self) -> QueueState:
        """The present state. Costs one request, for the depth."""
        return self.state(await self._depth())

    def state(self, depth: int | None = None) -> QueueState:
        """The present state, without a request."""
        return QueueState(
            queue=self.queue,
            depth=depth,
            active_tasks=self._active,
            total_tasks=self._total,
            locked=len(self._works),
            completed=self.stats.completed,
            failed=self.stats.failed,
            poisoned=self.stats.poisoned,
            too_late=self.stats.too_late,
            advice=self.stats.advice,
            usage=self.stats.usage(),
            handled=self.stats.handled(),
        )

    async def _serve(self) -> None:
        """Use one receiver until it is broken or the listener drains."""
        limit = self.job.options.answer_timeout
        await self.opening.acquire()
        with ExitStack() as turn:
            turn.callback(self.opening.release)
            if self._draining.is_set():
                return
            try:
                with trio.move_on_after(limit) as scope:
                    async with self.job.broker.open_receiver(self.queue) as receiver:
                        scope.deadline = inf
                        turn.close()
                        self._report_started()
                        await self._work_with(receiver)
                        scope.deadline = trio.current_time() + limit
                if scope.cancelled_caught:
                    self._record_failure(
                        Unavailable(f"no receiver could be opened or closed within {limit} s")
                    )
            except BrokerError as error:
                self._record_failure(error)
            finally:
                self._session = self._takers = self._handlers = None

    def _report_started(self) -> None:
        starting, self._starting = self._starting, trio.TASK_STATUS_IGNORED
        starting.started()

    async def _work_with(self, receiver: Receiver) -> None:
        self._session = session = self._open_session(receiver)
        async with trio.open_nursery() as self._handlers, trio.open_nursery() as self._takers:
            for _ in range(self.job.options.tasks):
                self._start_taker(session, is_fresh=False)
            self._takers.start_soon(self._watch_subscription, session)
            if self._draining.is_set():
                self.drain()

    def _open_session(self, receiver: Receiver) -> QueueSession[T]:
        return QueueSession(
            job=self.job,
            queue=self.queue,
            receiver=receiver,
            limiter=self.limiter,
            endpoint=self.endpoint,
            locks=self.locks,
            stats=self.stats,
            tuning=self._tuning,
            subscription=self.subscription,
        )

    # Receiving

    def _start_taker(self, session: QueueSession[T], *, is_fresh: bool) -> None:
        if self._takers is not None:
            self._total += 1
            self._takers.start_soon(
                self._consume, session, is_fresh, self.subscription.notifications
            )

    async def _consume(self, session: QueueSession[T], is_fresh: bool, seen: int) -> None:
        """
        Receive, hand over the messages, and receive again. Each call runs in a task of its own, and
        `seen` is read at its start.
        """
        idle_count, has_worked = 0, False
        try:
            while not self._draining.is_set():
                limit = await self._wait_for_more()
                began = trio.current_time()
                if self.subscription.notifications != seen:
                    idle_count, is_fresh, seen = 0, False, self.subscription.notifications
                try:
                    with self._counted_as_active():
                        deliveries = await self._poll(session, limit)
                except BrokerError as error:
                    self._record_failure(error)
                    if self._give_up_receiver():
                        return
                    await self._back_off()
                    continue
                self._failures = 0
                if deliveries:
                    self._hand_over(session, deliveries)
                    was_idle = idle_count > 0 or not has_worked
                    self._detect(session, deliveries, was_idle, limit)
                    idle_count, is_fresh, has_worked = 0, False, True
                    continue
                idle_count += 1
                if await self._is_to_end(session, idle_count, is_fresh, began, seen):
                    self.job.observer.report(TasksEnded(queue=self.queue, tasks=self._total - 1))
                    return
        finally:
            self._total -= 1

    async def _wait_for_more(self) -> int:
        """Return the maximum number of messages, once messages are wanted."""
        await self.limiter.wait_for_more(self.queue.key)
        is_trial = await self.endpoint.wait_for_turn()
        return 1 if is_trial else self.job.options.batch

    async def _poll(self, session: QueueSession[T], limit: int) -> list[Delivery]:
        """Receive once. If the namespace pushes, wait; for ever in the last task."""
        if session.polls is not None or self._total == 1:
            return await session.receive(limit)
        with trio.move_on_after(self.job.options.idle_max):
            return await session.receive(limit)
        return []

    async def _is_to_end(
        self,
        session: QueueSession[T],
        idle_count: int,
        is_fresh: bool,
        began: float,
        seen: int,
    ) -> bool:
        """
        True if the task whose receive found nothing ends; otherwise wait until the next receive.
        """
        await trio.lowlevel.checkpoint()
        if self._draining.is_set():
            return True
        if session.polls is None:
            return self._may_end(session)  # the task has waited for as long as a task may
        answer = self.job.on_empty(
            QueueEmpty(
                queue=self.queue, idle_count=idle_count, tasks=self._total, is_fresh=is_fresh
            )
        )
        if answer.end and self._may_end(session) and self.subscription.notifications == seen:
            return True
        with trio.move_on_at(began + answer.delay):
            await self.subscription.wait(seen)
        return False

    def _may_end(self, session: QueueSession[T]) -> bool:
        """True if the task may end: the last one stays, unless all messages are announced."""
        is_told = session.polls is not None and self.subscription.is_connected
        return self._total > 1 or is_told

    async def _watch_subscription(self, session: QueueSession[T]) -> None:
        """
        Start a task if none is left, when a message was announced, or when `sweep` has passed, as a
        sender may have announced nothing.
        """
        while True:
            seen = self.subscription.notifications
            sweep = None if self.subscription.hears_all_senders else self.job.options.sweep
            with trio.move_on_after(sweep or inf):
                await self.subscription.wait(seen)
            if self._draining.is_set():
                return
            if self._total == 0:
                self._start_taker(session, is_fresh=self.subscription.notifications == seen)

    # Messages received

    def _hand_over(self, session: QueueSession[T], deliveries: list[Delivery]) -> None:
        assert self._handlers is not None, "tasks end before the handlers' nursery does"
        for delivery in deliveries:
            size = self.job.measure(delivery.message)
            self.limiter.lock(size)
            work = Work(session=session, delivery=delivery, size=size)
            self._works.add(work)
            self._handlers.start_soon(self._work, work)

    async def _work(self, work: Work[T]) -> None:
        try:
            await work.run()
        finally:
            self._works.discard(work)

    def _detect(
        self, session: QueueSession[T], deliveries: list[Delivery], was_idle: bool, limit: int
    ) -> None:
        """Decide if the detected work needs more tasks, in a task of its own."""
        is_full = len(deliveries) >= limit
        now = trio.current_time()
        if self._takers is None or not (was_idle or is_full) or now < self._next_scale:
            return
        self._next_scale = now + self.job.options.scale_pause
        dates = [each.enqueued for each in deliveries if each.enqueued is not None]
        age = (self.job.clock() - min(dates)).total_seconds() if dates else None
        self._takers.start_soon(self._scale, session, age, is_full)

    async def _scale(self, session: QueueSession[T], age: float | None, is_full: bool) -> None:
        depth = await self._depth()
        sample = Sample(depth=depth, oldest_age=age, tasks=self._total, is_batch_full=is_full)
        wanted = min(self.job.on_work(sample), self.job.options.max_tasks)
        if self.limiter.is_busy or self.job.load() > self.job.options.max_load:
            # More tasks would only wait, or slow down the other queues.
            wanted = min(wanted, self._total)
        self.job.observer.report(
            WorkDetected(queue=self.queue, depth=depth, tasks=max(wanted, self._total))
        )
        while self._total < wanted:
            self._start_taker(session, is_fresh=True)

    async def _depth(self) -> int | None:
        self.stats.count(Operation.INSPECT)
        with trio.move_on_after(self.job.options.answer_timeout):
            try:
                return (await self.job.broker.inspect(self.queue)).active
            except BrokerError:
                return None  # a listener needs no right to manage
        return None

    # Failures

    def _record_failure(self, error: BrokerError) -> None:
        """Count a failure; tasks that fail together share one backoff."""
        now = trio.current_time()
        if now >= self._paused_until:
            self._failures += 1
            seconds = self.job.options.receive_retry.delay(self._failures, self.job.rng)
            self._paused_until = now + max(seconds, _pause_wanted(error))
        self.job.report_failure(self.queue, error)

    def _give_up_receiver(self) -> bool:
        """
        Replace the receiver, which may be broken for good: the next receiver is opened when this
        one has no messages left.
        """
        if self._works or self._takers is None:
            return False
        self._takers.cancel_scope.cancel()
        return True

    async def _back_off(self) -> None:
        """Back off after a failure, unless a drain begins."""
        with trio.move_on_at(self._paused_until):
            await self._draining.wait()

    @contextmanager
    def _counted_as_active(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1


def _pause_wanted(error: BrokerError) -> float:
    return error.retry_after if isinstance(error, Busy) else 0.0
