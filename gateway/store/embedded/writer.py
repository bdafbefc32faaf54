"""
The thread that owns a store: natural group commit.

The thread takes all steps that were requested meanwhile, runs them in one transaction, and answers
after COMMIT has returned. While one batch is synced, the next one forms by itself, without a timer.

  task                        thread                                  Trio
  run() ─ room? ─ put ─────▶ drain ─ BEGIN ─ steps ─ COMMIT ───────▶ answer all, one hop
  waits ◀─────────────────────────────────────────────────────────── reschedule

Steps run in the order of the calls, including those that had to wait for room. A step is committed
even if the calling task is cancelled. Large reads have an order of their own: each runs alone,
after the other steps that were requested meanwhile. So a send waits for one of them, not for many.

The durations of commits, and the numbers of operations that share one, are counted.
"""

import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import attrs
import trio

from gateway.domain.clocks.times import Now
from gateway.domain.errors import Unavailable, starting_thread
from gateway.domain.health.distribution import BATCHES, SHORT_LATENCIES, Histogram
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import StoreError
from gateway.store.engine.deliveries import StepReport
from gateway.store.local.step import Step


@attrs.frozen(eq=False)
class CommitStats:
    """The writer's thread counts, any thread reads."""

    seconds: Histogram = attrs.field(factory=lambda: Histogram(SHORT_LATENCIES))
    operations: Histogram = attrs.field(factory=lambda: Histogram(BATCHES))

    def record(self, operations: int, seconds: float) -> None:
        """Count a commit."""
        self.operations.record(operations)
        self.seconds.record(seconds)


T = TypeVar("T")

_MOST_STEPS: Final = 1000  # in one transaction
_MOST_BYTES: Final = 4 * 1024 * 1024  # a batch that a disk syncs in some milliseconds
_SAME: Final = 0.001  # seconds for which a reading of the clocks is used in one batch
_IDLE: Final = 0.2  # seconds without work until background work is done
_CLOSE: Final = 30.0  # seconds for the last batch and the checkpoint


@attrs.define(eq=False, kw_only=True)
class Writer:
    """
    Runs steps durably. Opens the store when it starts.

    `failed` is set if the thread has stopped for good by itself. Methods are called on Trio's side,
    except those below the line.
    """

    _open: Callable[[], Committer]
    _tell: Callable[[StepReport], None]
    _most_steps: int  # requested and not yet answered; more wait outside
    _most_bytes: int
    failed: trio.Event = attrs.field(factory=trio.Event)
    stats: CommitStats = attrs.field(factory=CommitStats)
    _steps: int = 0
    _bytes: int = 0
    # Steps that wait for room, in order, each with a task that still waits.
    _waiting: "OrderedDict[Step[Any], None]" = attrs.field(factory=OrderedDict)
    _asked: "queue.SimpleQueue[Step[Any] | None]" = attrs.field(factory=queue.SimpleQueue)
    _reads: deque[Step[Any]] = attrs.field(factory=deque)  # large ones, taken from `_asked`
    _latest: Now | None = None  # of the last batch
    _now: Now | None = None  # the last reading of the clocks for the batch that is being collected
    _closed: str = "the store is not open"  # why no step is accepted; empty: steps are accepted
    _refusal: StoreError | None = None
    _started: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _token: trio.lowlevel.TrioToken | None = None

    @property
    def is_open(self) -> bool:
        """True once `start` has returned."""
        return self._started.is_set() and self._refusal is None

    async def start(self) -> None:
        """
        Return once the store is open.

        Raises:
            StoreError: it can't be opened; another call tries again.
        """
        self._token = trio.lowlevel.current_trio_token()
        self._started, self._ended = trio.Event(), trio.Event()
        thread = threading.Thread(target=self._main, name="pairgate-store", daemon=True)
        try:
            with starting_thread():
                thread.start()
        except OSError as error:
            raise StoreError(f"the thread of the store doesn't start: {error}") from error
        try:
            await self._started.wait()
        except trio.Cancelled:
            self._asked.put(None)
            raise
        if self._refusal is not None:
            raise self._refusal
        self._closed = ""

    async def stop(self) -> None:
        """Accept no more steps, finish the accepted ones, and close the store."""
        self._closed = self._closed or "the store is closed"
        if self._token is None:  # it was never started
            await trio.lowlevel.checkpoint()
            return
        self._asked.put(None)
        with trio.move_on_after(_CLOSE, shield=True):
            await self._ended.wait()

    async def run(self, step: Step[T]) -> T:
        """
        Return the step's result once it is durable. If cancelled, the outcome is unknown.

        Raises:
            Unavailable: the store is closed or has failed; nothing was done.
            OutcomeUnknown: the store failed while the step ran.
            BrokerError: the step's own error.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise Unavailable(self._closed)
        step.task = trio.lowlevel.current_task()
        if self._has_room:  # no other step waits outside then
            self._put(step)
            await trio.lowlevel.wait_task_rescheduled(step.leave)
        else:
            await self._wait_for_room(step)
        return step.result()

    def post(self, step: Step[Any]) -> None:
        """Run a step soon, unless the store is closed."""
        if not self._closed:
            self._put(step)

    def now(self, read: Callable[[], Now]) -> Now:
        """
        The time for a step that is put next. Steps of one batch share a reading of at most a
        millisecond's age: reading both clocks takes as long as half of a step's work.
        """
        now = self._now
        if now is None or trio.current_time() - now.monotonic > _SAME:
            now = self._now = read()
        return now

    @property
    def _has_room(self) -> bool:
        return self._steps < self._most_steps and self._bytes < self._most_bytes

    async def _wait_for_room(self, step: Step[Any]) -> None:
        """Run a step as soon as there is room, after the steps that wait already."""
        self._waiting[step] = None

        def leave(raise_cancel: Any) -> trio.lowlevel.Abort:
            self._waiting.pop(step, None)
            return step.leave(raise_cancel)

        await trio.lowlevel.wait_task_rescheduled(leave)

    def _next_waiting(self) -> Step[Any]:
        return self._waiting.popitem(last=False)[0]

    def _put(self, step: Step[Any]) -> None:
        self._steps += 1
        self._bytes += step.cost
        self._asked.put(step)

    def _answer(self, steps: Sequence[Step[Any]], report: StepReport) -> None:
        self._tell(report)
        for step in steps:
            self._bytes -= step.cost
            if step.task is not None:
                trio.lowlevel.reschedule(step.task)
            elif step.undo is not None and step.error is None:
                step.undo(step.result())
        self._steps -= len(steps)
        while self._waiting and self._has_room:
            self._put(self._next_waiting())

    def _end(self, why: str) -> None:
        """The thread has ended: steps that still wait were never begun."""
        if why:
            self._closed = why
            self.failed.set()
        while self._waiting:
            self._put(self._next_waiting())
        left = [*self._reads]
        self._reads.clear()
        while not self._asked.empty():
            step = self._asked.get_nowait()
            if step is not None:
                left.append(step)
        for step in left:
            step.error = Unavailable(self._closed)
        self._answer(left, StepReport())
        self._ended.set()

    def _begin(self, refusal: StoreError | None) -> None:
        self._refusal = refusal
        self._started.set()
        if refusal is not None:
            self._ended.set()

    # --- in the thread -------------------------------------------------------------------

    def _main(self) -> None:
        refusal: StoreError | None = StoreError("a bug ended the writer before it began")
        try:
            committer = self._open()
            refusal = None
        except StoreError as error:
            refusal = error
            return
        finally:
            self._hop(self._begin, refusal)
        try:
            self._serve(committer)
        finally:
            committer.close()
            self._hop(self._end, committer.failed)

    def _serve(self, committer: Committer) -> None:
        while not committer.failed:
            batch, last = self._next_batch(committer)
            if batch:
                self._run_batch(committer, batch)
                committer.shorten_log()
            while self._reads and not committer.failed:
                self._run_batch(committer, [self._next_read()])
                if not last:
                    break
            if last:
                return

    def _next_read(self) -> Step[Any]:
        """The next large read, which runs no earlier than the steps before it did."""
        read = self._reads.popleft()
        if self._latest is not None and self._latest.monotonic > read.now.monotonic:
            read.now = self._latest
        return read

    def _run_batch(self, committer: Committer, steps: Sequence[Step[Any]]) -> None:
        report: StepReport | None = None
        self._latest = steps[-1].now
        began = time.perf_counter()
        try:
            report = committer.run(steps)
            self.stats.record(len(steps), time.perf_counter() - began)
        finally:
            if report is None:
                committer.fail(steps, "a bug ended the writer")
            self._hop(self._answer, steps, report or StepReport())

    def _next_batch(self, committer: Committer) -> tuple[list[Step[Any]], bool]:
        """
        The requested steps, and whether they are the last ones; none after an idle time, or if all
        are large reads, which wait in `_reads`.
        """
        batch: list[Step[Any]] = []
        size = 0
        try:
            step = self._next_step(committer)
            self._now = None
            while step is not None:
                (self._reads if step.is_large_read else batch).append(step)
                size += step.cost
                if len(batch) >= _MOST_STEPS or size >= _MOST_BYTES:
                    return batch, False
                step = self._asked.get_nowait()
        except queue.Empty:
            report = None if batch or self._reads else committer.tidy()
            if report is not None:
                self._hop(self._tell, report)
            return batch, False
        return batch, True

    def _next_step(self, committer: Committer) -> Step[Any] | None:
        if self._reads:
            return self._asked.get_nowait()
        return self._asked.get(timeout=_IDLE if committer.untidy else None)

    def _hop(self, function: Callable[..., object], *arguments: object) -> None:
        """Call the function on Trio's side, if Trio still runs."""
        token = self._token
        if token is None:
            raise RuntimeError("the writer was never started")
        try:
            token.run_sync_soon(function, *arguments)
        except trio.RunFinishedError:
            self._asked.put(None)
