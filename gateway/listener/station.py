"""
Takes the messages of one queue: tasks that look for them, as many as there is work for.

    work detected   a look found messages after one that didn't, or as many as it asked for: the
                    rule says how many tasks there should be
    queue empty     a look found nothing: the handler says when to look again, or that the task ends

Where the namespace pushes, a look is a wait that costs nothing: the last task waits for ever, the
others end. Where it must be polled, the last task goes on polling, unless triggers announce each
message: then none is left, and a trigger starts the next.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final, Generic, TypeVar

import attrs
import trio

from gateway.capabilities import Polls
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Unavailable
from gateway.domain.events import TasksEnded, WorkDetected
from gateway.domain.lock_tuning import LockTuning
from gateway.domain.message import Delivery
from gateway.domain.scaling import Sample
from gateway.listener.desk import Desk
from gateway.listener.endpoint import Endpoint
from gateway.listener.job import Job, QueueEmpty
from gateway.listener.ledger import Ledger, QueueState
from gateway.listener.locks import Locks
from gateway.listener.room import Room
from gateway.listener.triggers import Subscription
from gateway.listener.work import Work
from gateway.ports import Receiver

T = TypeVar("T")

LAST_LOOK: Final = 1.0  # seconds that a request under way has to end when a drain begins


@attrs.define(eq=False, kw_only=True)
class Station(Generic[T]):
    """One queue of a listener."""

    job: Job[T]
    queue: EntityPath
    room: Room
    endpoint: Endpoint
    locks: Locks
    bell: Subscription
    ledger: Ledger = attrs.field(factory=Ledger, init=False)
    _tuning: LockTuning = attrs.field(init=False)
    _desk: Desk[T] | None = attrs.field(default=None, init=False)
    _works: set[Work[T]] = attrs.field(factory=set, init=False)
    _takers: trio.Nursery | None = attrs.field(default=None, init=False)
    _handlers: trio.Nursery | None = attrs.field(default=None, init=False)
    _total: int = attrs.field(default=0, init=False)
    _active: int = attrs.field(default=0, init=False)
    _failures: int = attrs.field(default=0, init=False)  # to receive, in a row
    _rest_until: float = attrs.field(default=-inf, init=False)
    _starting: trio.TaskStatus[None] = attrs.field(default=trio.TASK_STATUS_IGNORED, init=False)
    _draining: trio.Event = attrs.field(factory=trio.Event, init=False)
    _next_scale: float = attrs.field(default=-inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._tuning = LockTuning(lock=self.job.options.lock_duration)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Take messages until drained. It has started when the queue is open, or couldn't be opened
        at the first attempt: the next ones follow.
        """
        self._starting = task_status
        self.ledger.tally.start(trio.current_time())
        while not self._draining.is_set():
            await self._serve()
            self._tell_started()
            await self._rest()
        self._tell_started()

    def drain(self) -> None:
        """Take nothing more; finish what runs, give back the rest."""
        self._draining.set()
        if self._desk is not None:
            self._desk.is_draining = True
        self.bell.ring()
        for work in list(self._works):
            work.put_down()
        if self._takers is not None:
            pushes = self._desk is not None and not isinstance(self._desk.receiver, Polls)
            last = 0.0 if pushes else LAST_LOOK
            self._takers.cancel_scope.deadline = trio.current_time() + last
        if self._handlers is not None:
            grace = self.job.options.grace
            self._handlers.cancel_scope.deadline = trio.current_time() + grace

    async def query_state(self) -> QueueState:
        """How it is now. It costs a request: for the depth."""
        return self.state(await self._depth())

    def state(self, depth: int | None = None) -> QueueState:
        """How it is now; nobody is asked."""
        return QueueState(
            queue=self.queue,
            depth=depth,
            active_tasks=self._active,
            total_tasks=self._total,
            held=len(self._works),
            completed=self.ledger.completed,
            failed=self.ledger.failed,
            poisoned=self.ledger.poisoned,
            too_late=self.ledger.too_late,
            advice=self.ledger.advice,
            bill=self.ledger.bill(),
        )

    async def _serve(self) -> None:
        """Work with one receiver, until that is broken or we are drained."""
        limit = self.job.options.answer_timeout
        try:
            with trio.move_on_after(limit) as scope:
                async with self.job.broker.open_receiver(self.queue) as receiver:
                    scope.deadline = inf
                    self._tell_started()
                    await self._work_with(receiver)
                    scope.deadline = trio.current_time() + limit
            if scope.cancelled_caught:
                self._note_failure(Unavailable(f"no receiver could be opened or left in {limit} s"))
        except BrokerError as error:
            self._note_failure(error)
        finally:
            self._desk = self._takers = self._handlers = None

    def _tell_started(self) -> None:
        starting, self._starting = self._starting, trio.TASK_STATUS_IGNORED
        starting.started()

    async def _work_with(self, receiver: Receiver) -> None:
        self._desk = desk = self._open_desk(receiver)
        async with trio.open_nursery() as self._handlers, trio.open_nursery() as self._takers:
            for _ in range(self.job.options.tasks):
                self._start_taker(desk, is_fresh=False)
            self._takers.start_soon(self._watch_bell, desk)
            if self._draining.is_set():
                self.drain()

    def _open_desk(self, receiver: Receiver) -> Desk[T]:
        return Desk(
            job=self.job,
            queue=self.queue,
            receiver=receiver,
            room=self.room,
            endpoint=self.endpoint,
            locks=self.locks,
            ledger=self.ledger,
            tuning=self._tuning,
            bell=self.bell,
        )

    # Looking for messages

    def _start_taker(self, desk: Desk[T], *, is_fresh: bool) -> None:
        if self._takers is not None:
            self._total += 1
            self._takers.start_soon(self._take_all, desk, is_fresh, self.bell.rings)

    async def _take_all(self, desk: Desk[T], is_fresh: bool, rings: int) -> None:
        """One task: look, hand over what was found, and look again. It was started at `rings`."""
        idle_count, has_worked = 0, False
        try:
            while not self._draining.is_set():
                limit = await self._wait_for_more(desk)
                began = trio.current_time()
                if self.bell.rings != rings:
                    idle_count, is_fresh, rings = 0, False, self.bell.rings
                try:
                    with self._counted_as_active():
                        deliveries = await self._look(desk, limit)
                except BrokerError as error:
                    self._note_failure(error)
                    if self._give_up_receiver():
                        return
                    await self._rest()
                    continue
                self._failures = 0
                if deliveries:
                    self._hand_over(desk, deliveries)
                    was_idle = idle_count > 0 or not has_worked
                    self._detect(desk, deliveries, was_idle, limit)
                    idle_count, is_fresh, has_worked = 0, False, True
                    continue
                idle_count += 1
                if await self._is_to_end(desk, idle_count, is_fresh, began, rings):
                    self.job.observer.report(TasksEnded(queue=self.queue, tasks=self._total - 1))
                    return
        finally:
            self._total -= 1

    async def _wait_for_more(self, desk: Desk[T]) -> int:
        """Return when messages are wanted, and how many at most."""
        await self.room.wait_for_more(self.queue.key)
        is_trial = await self.endpoint.wait_for_turn()
        return 1 if is_trial else self.job.options.batch

    async def _look(self, desk: Desk[T], limit: int) -> list[Delivery]:
        """Where the namespace pushes: wait, for ever if this is the last task."""
        if isinstance(desk.receiver, Polls) or self._total == 1:
            return await desk.take(limit)
        with trio.move_on_after(self.job.options.idle_max):
            return await desk.take(limit)
        return []

    async def _is_to_end(
        self, desk: Desk[T], idle_count: int, is_fresh: bool, began: float, rings: int
    ) -> bool:
        """Whether the task that looked in vain is to end; if not, wait until the next look."""
        await trio.lowlevel.checkpoint()
        if self._draining.is_set():
            return True
        if not isinstance(desk.receiver, Polls):
            return self._may_end(desk)  # it has waited for as long as a task may
        answer = self.job.on_empty(
            QueueEmpty(
                queue=self.queue, idle_count=idle_count, tasks=self._total, is_fresh=is_fresh
            )
        )
        if answer.end and self._may_end(desk) and self.bell.rings == rings:
            return True
        with trio.move_on_at(began + answer.delay):
            await self.bell.wait(rings)
        return False

    def _may_end(self, desk: Desk[T]) -> bool:
        """The last task stays, but where whoever enqueues tells us so."""
        is_told = isinstance(desk.receiver, Polls) and self.bell.is_connected
        return self._total > 1 or is_told

    async def _watch_bell(self, desk: Desk[T]) -> None:
        """
        Start a task when none is left and a message was announced, or `sweep` has passed in which
        a sender may have announced nothing.
        """
        while True:
            seen = self.bell.rings
            sweep = None if self.bell.hears_all_senders else self.job.options.sweep
            with trio.move_on_after(sweep or inf):
                await self.bell.wait(seen)
            if self._draining.is_set():
                return
            if self._total == 0:
                self._start_taker(desk, is_fresh=self.bell.rings == seen)

    # What was found

    def _hand_over(self, desk: Desk[T], deliveries: list[Delivery]) -> None:
        assert self._handlers is not None, "tasks end before the nursery of the handlers does"
        for delivery in deliveries:
            size = self.job.measure(delivery.message)
            self.room.hold(size)
            work = Work(desk=desk, delivery=delivery, size=size)
            self._works.add(work)
            self._handlers.start_soon(self._work, work)

    async def _work(self, work: Work[T]) -> None:
        try:
            await work.run()
        finally:
            self._works.discard(work)

    def _detect(
        self, desk: Desk[T], deliveries: list[Delivery], was_idle: bool, limit: int
    ) -> None:
        """Work was detected: find out whether more tasks are needed, in a task of its own."""
        is_full = len(deliveries) >= limit
        now = trio.current_time()
        if self._takers is None or not (was_idle or is_full) or now < self._next_scale:
            return
        self._next_scale = now + self.job.options.scale_pause
        dates = [each.enqueued for each in deliveries if each.enqueued is not None]
        age = (self.job.clock() - min(dates)).total_seconds() if dates else None
        self._takers.start_soon(self._scale, desk, age, is_full)

    async def _scale(self, desk: Desk[T], age: float | None, is_full: bool) -> None:
        depth = await self._depth()
        sample = Sample(depth=depth, oldest_age=age, tasks=self._total, is_batch_full=is_full)
        wanted = min(self.job.on_work(sample), self.job.options.max_tasks)
        if self.room.is_busy or self.job.load() > self.job.options.max_load:
            wanted = min(wanted, self._total)  # more would only wait, or slow down the others
        self.job.observer.report(
            WorkDetected(queue=self.queue, depth=depth, tasks=max(wanted, self._total))
        )
        while self._total < wanted:
            self._start_taker(desk, is_fresh=True)

    async def _depth(self) -> int | None:
        self.ledger.count(Operation.INSPECT)
        with trio.move_on_after(self.job.options.answer_timeout):
            try:
                return (await self.job.broker.inspect(self.queue)).active
            except BrokerError:
                return None  # a listener needs no right to manage
        return None

    # Failures

    def _note_failure(self, error: BrokerError) -> None:
        """Tasks that fail together have one rest."""
        now = trio.current_time()
        if now >= self._rest_until:
            self._failures += 1
            seconds = self.job.options.receive_retry.delay(self._failures, self.job.rng)
            self._rest_until = now + max(seconds, _pause_wanted(error))
        self.job.note_failure(self.queue, error)

    def _give_up_receiver(self) -> bool:
        """A receiver may be broken for good: the next one is opened when this has no messages."""
        if self._works or self._takers is None:
            return False
        self._takers.cancel_scope.cancel()
        return True

    async def _rest(self) -> None:
        """After a failure, unless a drain begins."""
        with trio.move_on_at(self._rest_until):
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
