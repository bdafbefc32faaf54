"""
A process pool keeps as many processes as the work needs, on virtual time and with fake processes.
"""

import random
from itertools import pairwise
from typing import Any, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.config.options import Agent
from gateway.domain.backoff import Backoff
from gateway.domain.errors import Unavailable
from gateway.domain.events.agents import (
    Autoscaled,
    FiguresLost,
    FiguresRegained,
    ProcessesCrash,
    ProcessKilled,
    ProcessLost,
    ProcessStarted,
)
from gateway.domain.events.gateway import Event
from gateway.listening.agent.process_pool import CUT_SECONDS, RED_CRASHES, ListenerLoad, ProcessPool
from gateway.listening.agent.restart_policy import STEADY_SECONDS
from gateway.listening.scaling.autoscaling import Autoscaler, AutoscalingOptions, Workload
from gateway.wire.pairgate.listener_report import Report

INTERVAL, IDLE, COOLDOWN, GRACE = 5.0, 60.0, 60.0, 30.0
ONE_DAY = 86400.0  # virtual seconds, in which every test must end
RELOADED = -1
TERMINATED = -15
KILLED = -9

E = TypeVar("E", bound=Event)


@attrs.define(eq=False)
class FakeProcess:
    """Ends at the first SIGTERM, or when it is told, or never before SIGKILL."""

    pid: int
    is_deaf: bool = False
    report: Report = attrs.field(factory=Report)
    signals: list[int] = attrs.field(factory=list)
    code: int | None = None
    _ended: trio.Event = attrs.field(factory=trio.Event)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.code is not None
        return self.code

    def reload(self) -> None:
        self.signals.append(RELOADED)

    def terminate(self) -> None:
        self.signals.append(TERMINATED)
        if not self.is_deaf:
            self.end(0)

    def kill(self) -> None:
        self.signals.append(KILLED)
        self.end(KILLED)

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self._ended.set()


@attrs.define(eq=False)
class Harness:
    """A process pool, with the figures that it reads and the processes that it starts."""

    nursery: trio.Nursery
    depth: int | None = 0
    age: float | None = None
    busy: float | None = None
    is_away: bool = False  # the gateway
    is_deaf: bool = False  # each process that is started
    error: OSError | None = None  # of each start
    life: float | None = None  # seconds, of each process
    effort: float = 0.0  # seconds, of each start
    looks: list[float] = attrs.field(factory=list)
    samples: list[Workload] = attrs.field(factory=list)
    processes: list[FakeProcess] = attrs.field(factory=list)
    starts: list[float] = attrs.field(factory=list)  # attempts
    events: list[Event] = attrs.field(factory=list)
    pool: ProcessPool = attrs.field(init=False)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def open(self, **options: Any) -> None:
        autoscaling = AutoscalingOptions(**{"cooldown": COOLDOWN, "max_processes": 10, **options})
        rule = autoscaling.make_rule()

        def noted(sample: Workload) -> int:
            self.samples.append(sample)
            return rule(sample)

        self.pool = ProcessPool(
            listener="orders",
            autoscaler=Autoscaler(options=autoscaling, rule=noted, max_load=0.9),
            options=Agent(
                interval=INTERVAL,
                idle_interval=IDLE,
                grace=GRACE,
                restart=Backoff(first=1.0, cap=60.0, jitter=0.0),
            ),
            parallel=4,
            look=self._look,
            start=self._start,
            load=lambda: self.busy,
            observer=self,
            rng=random.Random(1),
        )
        self.nursery.start_soon(self._run)
        await wait_all_tasks_blocked()

    async def _run(self) -> None:
        await self.pool.run()
        self.ended.set()

    def report(self, event: Event) -> None:
        self.events.append(event)

    async def _look(self) -> ListenerLoad:
        await trio.lowlevel.checkpoint()
        self.looks.append(trio.current_time())
        if self.is_away:
            raise Unavailable("nobody answers")
        return ListenerLoad(depth=self.depth, oldest_age=self.age)

    async def _start(self) -> FakeProcess:
        await trio.lowlevel.checkpoint()
        self.starts.append(trio.current_time())
        await trio.sleep(self.effort)
        if self.error is not None:
            raise self.error
        process = FakeProcess(len(self.processes) + 1, is_deaf=self.is_deaf)
        self.processes.append(process)
        if self.life is not None:
            self.nursery.start_soon(self._end_after, process, self.life)
        return process

    async def _end_after(self, process: FakeProcess, seconds: float) -> None:
        await trio.sleep(seconds)
        process.end(1)

    async def handle(self, *, calls: int, seconds: float) -> None:
        """Report a number of messages that were handled between this look and the next one."""
        await trio.sleep(INTERVAL / 2)
        self.processes[0].report += Report(calls=calls, seconds=seconds)
        await trio.sleep(INTERVAL / 2)

    @property
    def running(self) -> list[FakeProcess]:
        return [process for process in self.processes if process.code is None]

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


async def _end_test() -> None:
    await trio.sleep(ONE_DAY)
    raise AssertionError("what the test waits for never comes")


@pytest.fixture
def harness(nursery: trio.Nursery) -> Harness:
    nursery.start_soon(_end_test)
    return Harness(nursery)


async def test_as_many_are_started_as_the_work_needs(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 350
    await harness.open()

    assert len(harness.running) == 4
    assert [(each.before, each.after, each.depth) for each in harness.of(Autoscaled)] == [
        (0, 4, 350)
    ]
    assert [each.pid for each in harness.of(ProcessStarted)] == [1, 2, 3, 4]


async def test_when_the_work_is_done_the_youngest_go_after_a_quiet_time(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 350
    await harness.open()
    harness.depth = 0
    await trio.sleep(INTERVAL + COOLDOWN + 1)
    first = [process.pid for process in harness.running]
    await trio.sleep(3 * COOLDOWN)

    assert first == [1, 2]
    assert harness.running == []
    assert harness.of(ProcessLost) == []
    assert all(process.signals == [TERMINATED] for process in harness.processes)


async def test_a_working_process_stays_where_the_namespace_does_not_count_what_is_locked(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 1
    await harness.open()
    harness.processes[0].report = Report(running=1)
    harness.depth = 0
    await trio.sleep(10 * COOLDOWN)
    at_work = list(harness.processes[0].signals)
    harness.processes[0].report = Report(calls=1, seconds=1.0)
    await trio.sleep(2 * COOLDOWN)

    assert (at_work, harness.processes[0].signals) == ([], [TERMINATED])


async def test_of_too_many_those_go_that_work_on_least(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 400
    await harness.open()
    for process, running in zip(harness.processes, (1, 0, 2, 3), strict=True):
        process.report = Report(running=running)
    harness.depth = 0
    await trio.sleep(INTERVAL + COOLDOWN + 1)

    assert [process.pid for process in harness.running] == [3, 4]


async def test_the_work_of_a_lost_process_is_no_work_any_more(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 1
    await harness.open()
    harness.processes[0].report = Report(running=1)
    harness.processes[0].end(KILLED)
    harness.depth = 0
    await trio.sleep(3 * COOLDOWN)

    assert harness.samples[-1].depth == 0
    assert harness.running == []


async def test_a_process_that_does_not_end_in_time_is_killed(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth, harness.is_deaf = 1, True
    await harness.open()
    harness.pool.drain()
    began = trio.current_time()
    await harness.ended.wait()

    assert trio.current_time() - began == pytest.approx(GRACE)
    assert harness.processes[0].signals == [TERMINATED, KILLED]
    assert [each.pid for each in harness.of(ProcessKilled)] == [1]


async def test_at_the_end_all_are_told_to_drain_and_waited_for(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 1000
    await harness.open()
    harness.pool.drain()
    await harness.ended.wait()

    assert len(harness.processes) == 10
    assert [process.signals for process in harness.processes] == [[TERMINATED]] * 10


async def test_a_second_signal_goes_on_to_all_and_they_have_little_time(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth, harness.is_deaf = 1, True
    await harness.open()
    harness.pool.drain()
    await trio.sleep(1)
    harness.pool.cut()
    began = trio.current_time()
    await harness.ended.wait()

    assert trio.current_time() - began == pytest.approx(CUT_SECONDS)
    assert harness.processes[0].signals == [TERMINATED, TERMINATED, KILLED]


async def test_one_that_ends_by_itself_is_replaced_after_a_pause(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 350
    await harness.open()
    await trio.sleep(STEADY_SECONDS)
    harness.processes[1].end(KILLED)
    began = trio.current_time()
    await wait_all_tasks_blocked()
    before = len(harness.running)
    await trio.sleep(1.5)

    assert (before, len(harness.running)) == (3, 4)
    assert harness.starts[-1] - began == pytest.approx(1.0)
    (lost,) = harness.of(ProcessLost)
    assert (lost.pid, lost.reason, lost.seconds) == (2, "signal 9", 1.0)


async def test_processes_that_crash_at_once_are_tried_one_at_a_time_and_ever_later(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth, harness.life = 1000, 0.1
    await harness.open()
    await trio.sleep(3600)
    harness.life = None
    rest = harness.starts[20:]  # once more all of them, and then one at a time
    pauses = [after - before for before, after in pairwise(rest)]

    assert len(harness.starts) < 20 + 70  # in an hour
    assert min(pauses) > 1.0
    assert harness.of(ProcessesCrash)[0].crashes == RED_CRASHES
    assert harness.of(ProcessesCrash)[-1].seconds == 60.0


async def test_processes_that_crash_one_by_one_are_a_row_of_crashes_too(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth, harness.life, harness.effort = 250, 3.0, 0.5
    await harness.open()
    await trio.sleep(120)

    assert harness.of(ProcessesCrash)[0].crashes == RED_CRASHES
    assert len(harness.starts) <= 2 * 3 + 6


async def test_several_that_end_together_are_one_crash(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 1000
    await harness.open()
    await trio.sleep(1)
    for process in harness.processes:
        process.end(KILLED)
    await trio.sleep(1.5)

    assert len(harness.of(ProcessLost)) == len(harness.running) == 10
    assert harness.of(ProcessesCrash) == []


async def test_when_a_trial_goes_well_the_others_follow(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth, harness.life = 1000, 0.1
    await harness.open()
    await trio.sleep(300)
    harness.life = None
    await trio.sleep(60 + STEADY_SECONDS)
    while len(harness.running) < 10:
        assert len(harness.running) <= 1
        await trio.sleep(1)


async def test_one_that_can_not_be_started_is_as_one_that_crashes(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth, harness.error = 1, BlockingIOError(11, "Resource temporarily unavailable")
    await harness.open()
    await trio.sleep(600)
    harness.error = None
    await trio.sleep(66)

    assert len(harness.running) == 1
    assert "Resource temporarily unavailable" in harness.of(ProcessLost)[0].reason
    assert harness.of(ProcessesCrash)


async def test_while_nobody_tells_the_figures_all_stays_as_it_is(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 350
    await harness.open()
    await trio.sleep(STEADY_SECONDS)
    harness.depth, harness.is_away = 0, True
    await trio.sleep(10 * COOLDOWN)
    harness.processes[0].end(KILLED)
    await trio.sleep(COOLDOWN)
    without = len(harness.running)
    harness.depth, harness.is_away = 350, False
    await trio.sleep(COOLDOWN)

    assert without == 3  # no process was stopped or started
    assert len(harness.running) == 4
    assert len(harness.of(FiguresLost)) == len(harness.of(FiguresRegained)) == 1


async def test_time_in_which_nobody_knows_the_figures_is_no_quiet_time(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 1
    await harness.open()
    harness.depth = 0
    await trio.sleep(COOLDOWN - INTERVAL)
    harness.is_away = True
    await trio.sleep(COOLDOWN)
    harness.is_away = False
    await trio.sleep(COOLDOWN / 2 + 30)

    assert len(harness.running) == 1


async def test_an_announcement_brings_back_the_first_one_at_once(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.open()
    harness.pool.set_announced(is_told=True)
    await trio.sleep(10 * IDLE + 1)
    looks = len(harness.looks)
    harness.pool.announce()
    began = trio.current_time()
    await wait_all_tasks_blocked()

    assert looks <= 12
    assert (harness.looks[-1], len(harness.running)) == (began, 1)


async def test_announcements_to_listeners_that_run_are_no_storm_of_looks(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.open(min_processes=1)
    harness.pool.set_announced(is_told=True)
    await trio.sleep(IDLE)
    before = len(harness.looks)
    for _ in range(6000):
        harness.pool.announce()
        await trio.sleep(0.01)

    assert len(harness.looks) - before <= 60 / INTERVAL + 1


async def test_one_that_ends_is_replaced_as_soon_while_nothing_waits(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.open(min_processes=1)
    harness.pool.set_announced(is_told=True)
    await trio.sleep(STEADY_SECONDS + INTERVAL)
    harness.processes[0].end(KILLED)
    await trio.sleep(1.5)

    assert len(harness.running) == 1


async def test_an_idle_queue_is_looked_at_as_often_as_others_where_nobody_announces(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.open()
    await trio.sleep(10 * INTERVAL + 1)

    assert len(harness.looks) == 11


async def test_messages_that_came_while_the_stream_was_broken_are_looked_for(
    harness: Harness, autojump_clock: MockClock
) -> None:
    await harness.open()
    harness.pool.set_announced(is_told=True)
    await trio.sleep(INTERVAL + 1)
    harness.pool.set_announced(is_told=False)
    harness.depth = 1
    harness.pool.set_announced(is_told=True)
    await trio.sleep(INTERVAL)

    assert len(harness.running) == 1


async def test_rates_and_times_are_those_of_what_the_processes_report(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 100
    await harness.open()
    harness.processes[0].report = Report(calls=50, seconds=100.0)
    harness.depth = 200
    await trio.sleep(INTERVAL + 1)

    assert harness.samples[-1].handling == 2.0
    assert harness.samples[-1].arrivals == (50 + 100) / INTERVAL
    # (30 + 200 / 60) a second x 2 s / 4 at once
    assert harness.of(Autoscaled)[-1].after == 10


@pytest.mark.parametrize(("calls", "numbers"), [(500, [1]), (9000, [1, 5])])
async def test_one_handler_that_takes_long_among_thousands_changes_no_number(
    harness: Harness, autojump_clock: MockClock, calls: int, numbers: list[int]
) -> None:
    harness.depth = 10
    await harness.open()
    for long in [*[0] * 20, 1, *[0] * 20]:
        await harness.handle(calls=calls, seconds=0.01 * calls + 60 * long)

    assert [each.after for each in harness.of(Autoscaled)] == numbers


async def test_a_handler_that_takes_long_in_an_idle_time_makes_no_storm_of_what_comes_next(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 10
    await harness.open()
    for _ in range(20):
        await harness.handle(calls=500, seconds=5.0)
    await harness.handle(calls=1, seconds=60.0)
    harness.depth = 90
    await trio.sleep(2 * INTERVAL)

    assert len(harness.starts) == 1


async def test_when_all_handlers_take_longer_the_processes_are_enough_within_a_minute(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 10
    await harness.open()
    for _ in range(20):
        await harness.handle(calls=500, seconds=5.0)
    for _ in range(12):
        await harness.handle(calls=50, seconds=100.0)
    await wait_all_tasks_blocked()

    # (10 + 10 / 60) a second x 2 s / 4 at once
    assert len(harness.running) == 6


async def test_the_work_of_a_process_counts_after_its_end_too(
    harness: Harness, autojump_clock: MockClock
) -> None:
    harness.depth = 100
    await harness.open()
    harness.processes[0].report = Report(calls=10, seconds=1.0)
    await trio.sleep(2 * INTERVAL + 1)
    harness.processes[0].end(1)
    await trio.sleep(2 * INTERVAL)

    assert harness.samples[-1].arrivals == 0.0
    assert harness.samples[-1].handling == pytest.approx(0.1)


async def test_cancelled_it_waits_for_nobody(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        harness = Harness(nursery, depth=1, is_deaf=True)
        await harness.open()
        began = trio.current_time()
        nursery.cancel_scope.cancel()

    assert trio.current_time() == began
    assert harness.processes[0].signals == []
