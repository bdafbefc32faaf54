"""
The processes of one listener: as many as there should be, each watched until it has ended.

    looks    how much work there is; what can't be known changes nothing
    decides  how many there should be (`gateway.domain.staffing`)
    matches  starts those that are missing, tells those of too many to drain that work on least
    rests    until the next look, an announcement, or the end of a process

A process that ends by itself is replaced after a pause. While they end soon after their start, one
after the other, there is one at a time, as a trial.
"""

import random
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, Protocol

import attrs
import trio

from gateway.app.crew_memory import Crashes, Pace
from gateway.config.options import Agent
from gateway.domain.agent_events import (
    FiguresLost,
    FiguresRegained,
    ProcessesCrash,
    ProcessKilled,
    ProcessLost,
    ProcessStarted,
    Staffed,
)
from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError
from gateway.domain.staffing import Staffing, Workload
from gateway.ports import Observer
from gateway.wire.listener_report import Report

RED_CRASHES: Final = 5  # so many of them in a row are a red state
START_SECONDS: Final = 10.0
CUT_SECONDS: Final = 5.0  # after the second signal
RETRY: Final = Backoff(first=1.0, cap=10.0)  # of a look


@attrs.frozen(kw_only=True)
class Work:
    """What waits for one listener, in all its queues. None: nobody can tell."""

    depth: int | None
    oldest_age: float | None  # seconds


class Process(Protocol):
    """One listener's process, which runs."""

    @property
    def pid(self) -> int: ...

    @property
    def report(self) -> Report:
        """What it has last said that it has done."""

    async def wait(self) -> int:
        """Return the exit code when it has ended; negative: that signal ended it. Called once."""

    def terminate(self) -> None:
        """Ask it to drain; asked again, it cuts what still runs. Nothing, if it has ended."""

    def kill(self) -> None:
        """End it as it is. Nothing, if it has ended."""


@attrs.define(eq=False, kw_only=True)
class Stint:
    """A process from its start to its end."""

    process: Process
    began: float
    is_leaving: bool = False  # it was told to
    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope)  # with its leaving
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False, kw_only=True)
class Crew:
    """Keeps as many processes of one listener as its work needs."""

    listener: str  # its queues: that is its name
    staffing: Staffing
    options: Agent
    parallel: int  # handlers of one process
    look: Callable[[], Awaitable[Work]]  # raises a BrokerError
    start: Callable[[], Awaitable[Process]]  # raises an OSError
    load: Callable[[], float | None]  # of the processors, since it was last asked
    observer: Observer
    rng: random.Random
    is_told: bool = attrs.field(default=False, init=False)  # of what comes to its queues
    _target: int = attrs.field(default=0, init=False)  # how many there should be
    _stints: list[Stint] = attrs.field(factory=list, init=False)  # in the order of their start
    _past: Report = attrs.field(factory=Report, init=False)  # of those that have ended
    _pace: Pace = attrs.field(factory=Pace, init=False)
    _crashes: Crashes = attrs.field(factory=Crashes, init=False)
    _is_idle: bool = attrs.field(default=False, init=False)
    _is_announced: bool = attrs.field(default=False, init=False)
    _looked_at: float = attrs.field(default=-inf, init=False)
    _lost_looks: int = attrs.field(default=0, init=False)  # in a row
    _retry_at: float = attrs.field(default=-inf, init=False)  # after a lost look
    _resting: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Keep them until drained, and return when all have ended. Cancelled, they aren't waited for:
        they notice by themselves that nobody holds them any more, and drain.
        """
        async with trio.open_nursery() as nursery:
            task_status.started()
            with self._scope:
                while True:
                    await self._look()
                    await self._match(nursery)
                    await self._rest()
            for stint in self._present:
                self._release(nursery, stint)

    def drain(self) -> None:
        """Start no more of them, and tell all to drain."""
        self._scope.cancel()

    def cut(self) -> None:
        """They drain; now they shall end at once."""
        for stint in self._stints:
            stint.process.terminate()
            stint.patience.deadline = trio.current_time() + CUT_SECONDS

    def announce(self) -> None:
        """Somebody says that messages come, or have come."""
        self._is_announced = True
        self._resting.deadline = self._next_look()

    def tell(self, *, is_told: bool) -> None:
        """From now on all that comes is announced, or nobody is sure to."""
        self.is_told = is_told
        self._is_idle = False  # nobody knows what came meanwhile
        self._resting.deadline = self._next_look()

    @property
    def _present(self) -> list[Stint]:
        return [stint for stint in self._stints if not stint.is_leaving]

    async def _look(self) -> None:
        """Find out how many there should be."""
        await trio.lowlevel.checkpoint()
        announced, self._is_announced = self._is_announced, False
        self._looked_at = trio.current_time()
        try:
            work = await self.look()
        except BrokerError as error:
            self._is_announced |= announced
            self._note_lost_look(error)
            return
        if self._lost_looks:
            self._lost_looks = 0
            self.observer.report(FiguresRegained(listener=self.listener))
        workload = self._workload(work, announced)
        before, self._target = self._target, self.staffing.decide(workload, trio.current_time())
        self._is_idle = work.depth == 0 and self._target <= self.staffing.options.min_processes
        if self._target != before:
            self.observer.report(
                Staffed(
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

    def _note_lost_look(self, error: BrokerError) -> None:
        """What runs goes on. The first of a row of failures is told."""
        self._lost_looks += 1
        self._retry_at = trio.current_time() + RETRY.delay(self._lost_looks, self.rng)
        self._pace.forget()
        self.staffing.forget()
        if self._lost_looks == 1:
            self.observer.report(FiguresLost(listener=self.listener, reason=str(error)))

    def _workload(self, work: Work, announced: bool) -> Workload:
        total = self._total()
        arrivals = self._pace.arrivals(trio.current_time(), work.depth, total)
        # Not every namespace counts those that are locked, and who works on them must stay.
        depth = None if work.depth is None else max(work.depth, total.running)
        return Workload(
            depth=depth,
            oldest_age=work.oldest_age,
            is_announced=announced,
            processes=self._target,
            parallel=self.parallel,
            arrivals=arrivals,
            handling=self._pace.handling,
            load=self.load(),
        )

    def _total(self) -> Report:
        return sum((stint.process.report for stint in self._stints), self._past)

    async def _match(self, nursery: trio.Nursery) -> None:
        """Start those that are missing; of too many release those that work on least."""
        await trio.lowlevel.checkpoint()
        if self._lost_looks:
            return
        busiest = sorted(self._present, key=lambda stint: -stint.process.report.running)
        for stint in busiest[self._target :]:
            self._release(nursery, stint)
        while len(self._present) < self._target and self._may_start():
            await self._start(nursery)

    def _may_start(self) -> bool:
        begins = [stint.began for stint in self._present]
        return self._crashes.may_start(begins, trio.current_time())

    async def _start(self, nursery: trio.Nursery) -> None:
        """Whatever happens meanwhile, a process that was started is watched."""
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + START_SECONDS) as scope:
            try:
                process = await self.start()
            except OSError as error:
                self._crashes.count_failed_start(trio.current_time())
                self._note_end(None, f"it couldn't be started: {error.strerror}")
                return
        if scope.cancelled_caught:
            self._crashes.count_failed_start(trio.current_time())
            self._note_end(None, f"it couldn't be started within {START_SECONDS:g} s")
            return
        stint = Stint(process=process, began=trio.current_time())
        self._stints.append(stint)
        self.observer.report(ProcessStarted(listener=self.listener, pid=process.pid))
        nursery.start_soon(self._watch, stint)

    async def _watch(self, stint: Stint) -> None:
        code = await stint.process.wait()
        stint.ended.set()
        self._stints.remove(stint)
        self._past += attrs.evolve(stint.process.report, running=0)
        if stint.is_leaving:
            return
        self._crashes.count_end(stint.began, trio.current_time())
        reason = f"exit code {code}" if code >= 0 else f"signal {-code}"
        self._note_end(stint.process.pid, reason)
        self._resting.deadline = self._next_look()

    def _note_end(self, pid: int | None, reason: str) -> None:
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

    def _release(self, nursery: trio.Nursery, stint: Stint) -> None:
        stint.is_leaving = True
        until = trio.current_time() + self.options.grace
        stint.patience.deadline = min(stint.patience.deadline, until)
        stint.process.terminate()
        nursery.start_soon(self._see_off, stint)

    async def _see_off(self, stint: Stint) -> None:
        with stint.patience:
            await stint.ended.wait()
        if not stint.ended.is_set():
            stint.process.kill()
            event = ProcessKilled(listener=self.listener, pid=stint.process.pid)
            self.observer.report(event)

    async def _rest(self) -> None:
        """Until the next look is due, which may become sooner or later meanwhile."""
        with trio.CancelScope(deadline=self._next_look()) as self._resting:
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
