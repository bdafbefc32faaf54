"""
The worker processes of one listener: their number follows the load, and each is watched until it
ends.

    look     measures the load; an unknown load changes nothing
    decide   the number of processes (`gateway.listening.scaling.autoscaling`)
    match    starts missing processes; drains surplus ones, those with the least work first
    sleep    until the next look, an announcement, or the end of a process

A process that ends by itself is replaced after a backoff. After repeated ends soon after the start,
only one process is started at a time, as a trial.
"""

import random
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, Protocol

import attrs
import trio

from gateway.config.options import Agent
from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError
from gateway.domain.events.agents import (
    Autoscaled,
    FiguresLost,
    FiguresRegained,
    ProcessesCrash,
    ProcessKilled,
    ProcessLost,
    ProcessStarted,
)
from gateway.domain.status.listening import PoolStatus
from gateway.listening.agent.restart_policy import Crashes, WorkRates
from gateway.listening.scaling.autoscaling import Autoscaler, Workload
from gateway.ports import Observer
from gateway.wire.pairgate.listener_report import Report

RED_CRASHES: Final = 5  # failures in a row that make the state red
START_SECONDS: Final = 10.0  # to fork and exec, even on a machine that swaps
CUT_SECONDS: Final = 5.0  # after the second signal
RETRY: Final = Backoff(first=1.0, cap=10.0)  # after a failed look


@attrs.frozen(kw_only=True)
class ListenerLoad:
    """The load of one listener, over all its queues. None: unknown."""

    depth: int | None
    oldest_age: float | None  # seconds


UNKNOWN: Final = ListenerLoad(depth=None, oldest_age=None)


class Process(Protocol):
    """A worker process of one listener."""

    @property
    def pid(self) -> int: ...

    @property
    def report(self) -> Report:
        """The process's latest report of its work."""

    async def wait(self) -> int:
        """
        Return the exit code when the process has ended; a negative code is the signal that ended
        it. Called once.
        """

    def reload(self) -> None:
        """
        Ask the process to read its configuration again. A process that has just begun, and can't,
        ends instead. Does nothing if it has ended.
        """

    def terminate(self) -> None:
        """
        Ask the process to drain; at a second call, to cut off running handlers. Does nothing if it
        has ended.
        """

    def kill(self) -> None:
        """Kill the process. Does nothing if it has ended."""


@attrs.define(eq=False, kw_only=True)
class PoolWorker:
    """A process from its start to its end."""

    process: Process
    began: float
    is_leaving: bool = False  # True: it was told to drain
    # ends when the process has drained for too long
    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, kw_only=True)
class ProcessPool:
    """Runs as many processes of one listener as its load needs."""

    listener: str  # the listener, named by its queues
    autoscaler: Autoscaler
    options: Agent
    parallel: int  # concurrent handlers of one process
    look: Callable[[], Awaitable[ListenerLoad]]  # raises a BrokerError
    start: Callable[[], Awaitable[Process]]  # raises an OSError
    load: Callable[[], float | None]  # share of processor time used since the last call
    observer: Observer
    rng: random.Random
    is_told: bool = attrs.field(default=False, init=False)  # True: new messages are announced
    _target: int = attrs.field(default=0, init=False)  # wanted number of processes
    ended: int = attrs.field(default=0, init=False)  # processes, since the start
    _workers: list[PoolWorker] = attrs.field(
        factory=list, init=False
    )  # in the order of their start
    _work: ListenerLoad = attrs.field(default=UNKNOWN, init=False)  # of the last look
    _past: Report = attrs.field(factory=Report, init=False)  # totals of ended processes
    _rates: WorkRates = attrs.field(factory=WorkRates, init=False)
    _crashes: Crashes = attrs.field(factory=Crashes, init=False)
    _is_idle: bool = attrs.field(default=False, init=False)
    _is_announced: bool = attrs.field(default=False, init=False)
    _looked_at: float = attrs.field(default=-inf, init=False)
    _lost_looks: int = attrs.field(default=0, init=False)  # in a row
    _retry_at: float = attrs.field(default=-inf, init=False)  # after a failed look
    _sleep: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def status(self) -> PoolStatus:
        """The processes and the load of the pool, as measured last."""
        total = self._total()
        return PoolStatus(
            listener=self.listener,
            processes=self.running,
            wanted=self._target,
            handling=total.running,
            handled=total.calls,
            depth=self._work.depth,
            oldest_age=self._work.oldest_age,
        )

    @property
    def running(self) -> int:
        """The number of the listener's processes now, including those that drain."""
        return len(self._workers)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Run the processes until drained, and return when all have ended. A cancellation doesn't wait
        for them: they notice that their agent has gone, and drain by themselves.
        """
        async with trio.open_nursery() as nursery:
            task_status.started()
            with self._scope:
                while True:
                    await self._poll()
                    await self._match(nursery)
                    await self._wait_until_due()
            for worker in self._present:
                self._release(nursery, worker)

    def drain(self) -> None:
        """Start no more processes, and let all drain."""
        self._scope.cancel()

    def reload(self) -> None:
        """Tell all processes to read their configuration again."""
        for worker in self._workers:
            worker.process.reload()

    def cut(self) -> None:
        """Tell the draining processes to end at once."""
        for worker in self._workers:
            worker.process.terminate()
            worker.patience.deadline = trio.current_time() + CUT_SECONDS

    def announce(self) -> None:
        """Note that messages are coming, or have come."""
        self._is_announced = True
        self._sleep.deadline = self._next_look()

    def set_announced(self, *, is_told: bool) -> None:
        """Note whether all new messages are announced from now on."""
        self.is_told = is_told
        self._is_idle = False  # messages may have come meanwhile
        self._sleep.deadline = self._next_look()

    @property
    def _present(self) -> list[PoolWorker]:
        return [worker for worker in self._workers if not worker.is_leaving]

    async def _poll(self) -> None:
        """Measure the load and decide the number of processes."""
        announced, self._is_announced = self._is_announced, False
        self._looked_at = trio.current_time()
        try:
            work = self._work = await self.look()
        except BrokerError as error:
            self._work = UNKNOWN
            self._is_announced |= announced
            self._record_lost_poll(error)
            return
        if self._lost_looks:
            self._lost_looks = 0
            self.observer.report(FiguresRegained(listener=self.listener))
        workload = self._workload(work, announced)
        before, self._target = self._target, self.autoscaler.decide(workload, trio.current_time())
        self._is_idle = work.depth == 0 and self._target <= self.autoscaler.options.min_processes
        if self._target != before:
            self.observer.report(
                Autoscaled(
                    listener=self.listener,
                    before=before,
                    after=self._target,
                    depth=workload.depth,
                    oldest_age=workload.oldest_age,
                    arrivals=workload.arrivals,
                    handling=workload.handling,
                    load=workload.load,
                )
            )

    def _record_lost_poll(self, error: BrokerError) -> None:
        """Leave the processes as they are; report the first of consecutive failures."""
        self._lost_looks += 1
        self._retry_at = trio.current_time() + RETRY.delay(self._lost_looks, self.rng)
        self._rates.forget()
        self.autoscaler.forget()
        if self._lost_looks == 1:
            self.observer.report(FiguresLost(listener=self.listener, reason=str(error)))

    def _workload(self, work: ListenerLoad, announced: bool) -> Workload:
        total = self._total()
        arrivals = self._rates.arrivals(trio.current_time(), work.depth, total)
        # Not every namespace counts locked messages in its depth, and the processes that hold them
        # must stay.
        depth = None if work.depth is None else max(work.depth, total.running)
        return Workload(
            depth=depth,
            oldest_age=work.oldest_age,
            is_announced=announced,
            processes=self._target,
            parallel=self.parallel,
            arrivals=arrivals,
            handling=self._rates.handling,
            load=self.load(),
        )

    def _total(self) -> Report:
        return sum((worker.process.report for worker in self._workers), self._past)

    async def _match(self, nursery: trio.Nursery) -> None:
        """Start missing processes; drain surplus ones, those with the least work first."""
        if self._lost_looks:
            return
        busiest = sorted(self._present, key=lambda worker: -worker.process.report.running)
        for worker in busiest[self._target :]:
            self._release(nursery, worker)
        while len(self._present) < self._target and self._may_start():
            await self._start(nursery)

    def _may_start(self) -> bool:
        begins = [worker.began for worker in self._present]
        return self._crashes.may_start(begins, trio.current_time())

    async def _start(self, nursery: trio.Nursery) -> None:
        """Start a process. Once started it is watched, even after a cancellation."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + START_SECONDS) as scope:
            try:
                process = await self.start()
            except OSError as error:
                self._crashes.count_failed_start(trio.current_time())
                self._record_end(None, f"the process couldn't be started: {error.strerror}")
                return
        if scope.cancelled_caught:
            self._crashes.count_failed_start(trio.current_time())
            self._record_end(None, f"the process couldn't be started within {START_SECONDS:g} s")
            return
        worker = PoolWorker(process=process, began=trio.current_time())
        self._workers.append(worker)
        self.observer.report(ProcessStarted(listener=self.listener, pid=process.pid))
        nursery.start_soon(self._watch, worker)

    async def _watch(self, worker: PoolWorker) -> None:
        code = await worker.process.wait()
        worker.ended.set()
        self._workers.remove(worker)
        self.ended += 1
        self._past += attrs.evolve(worker.process.report, running=0)
        if worker.is_leaving:
            return
        self._crashes.count_end(worker.began, trio.current_time())
        reason = f"exit code {code}" if code >= 0 else f"signal {-code}"
        self._record_end(worker.process.pid, reason)
        self._sleep.deadline = self._next_look()

    def _record_end(self, pid: int | None, reason: str) -> None:
        crashes = self._crashes.row
        seconds = self.options.restart.delay(crashes, self.rng)
        self._crashes.not_before = trio.current_time() + seconds
        self.observer.report(
            ProcessLost(listener=self.listener, pid=pid, reason=reason, seconds=seconds)
        )
        if crashes >= RED_CRASHES:
            self.observer.report(
                ProcessesCrash(
                    listener=self.listener, crashes=crashes, reason=reason, seconds=seconds
                )
            )

    def _release(self, nursery: trio.Nursery, worker: PoolWorker) -> None:
        worker.is_leaving = True
        until = trio.current_time() + self.options.grace
        worker.patience.deadline = min(worker.patience.deadline, until)
        worker.process.terminate()
        nursery.start_soon(self._see_off, worker)

    async def _see_off(self, worker: PoolWorker) -> None:
        with worker.patience:
            await worker.ended.wait()
        if not worker.ended.is_set():
            worker.process.kill()
            event = ProcessKilled(listener=self.listener, pid=worker.process.pid)
            self.observer.report(event)

    async def _wait_until_due(self) -> None:
        """Wait until the next look is due, which may change meanwhile."""
        with trio.CancelScope(deadline=self._next_look()) as self._sleep:
            await trio.sleep_forever()

    def _next_look(self) -> float:
        if self._lost_looks:
            return self._retry_at
        if self._is_announced and not self._target:
            return self._looked_at
        is_short = len(self._present) < self._target
        is_quiet = self._is_idle and self.is_told and not self._is_announced and not is_short
        due = self._looked_at + (self.options.idle_interval if is_quiet else self.options.interval)
        if is_short and self._crashes.not_before > self._looked_at:
            return min(due, self._crashes.not_before)
        return due
