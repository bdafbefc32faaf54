"""A process tells its problems to the pair's others as soon as they change."""

import random
from collections.abc import Callable
from datetime import datetime

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway.app.runtime import Runtime
from gateway.app.status.own_problems import EVERY, RECORDS_A_SECOND, ProblemWatch, problems_here
from gateway.brokers.meter import Meter
from gateway.changes import Changes
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable, Unreachable
from gateway.domain.events.gateway import BacklogOrphaned, SyphonStalled
from gateway.domain.health.abilities import Ability
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import PairRecords, ProcessRecord
from gateway.pairing.options import PairOptions
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.states import EntityStates
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.abilities import AbilityWatch
from tests.harness.clocks import VirtualClock

LOST = Problem(kind="namespace-reach", entity="east", text="not reached", detail="refused")


async def test_the_problems_of_a_process_are_its_namespaces_and_alarms(
    autojump_clock: MockClock,
) -> None:
    clock = VirtualClock()
    runtime = Runtime()
    runtime.meters["east"] = Meter(trio.current_time)
    watch = runtime.abilities["east"] = AbilityWatch(clock=clock)
    watch.failed(Ability.SEND, Unreachable("refused"))
    runtime.observer.report(SyphonStalled(pending=5, seconds=60.0))
    # Each process that reads the depth finds out for itself.
    runtime.observer.report(BacklogOrphaned(pending=5, seconds=60.0))

    texts = [each.text for each in problems_here(runtime, None, None)]

    assert texts == ["namespace east hasn't been reached", "syphon_stalled"]


async def test_an_entity_that_the_primary_answers_again_is_no_problem_of_a_process(
    autojump_clock: MockClock,
) -> None:
    options = PairOptions(label="east", failover_interval=0.0, successes_to_return=100)
    states = EntityStates(
        options=options, clock=VirtualClock(), observer=Runtime().observer, rng=random.Random(1)
    )
    orders = EntityPath("orders")
    states.failed(states.begin(orders), Unavailable("503"))
    told = [texts_of(states)]
    for _ in range(4):
        states.probed(orders, states.begin(orders))
        told.append(texts_of(states))
        await trio.sleep(1.0)

    half_open = ["entities that are half-open"]
    assert told == [["entities that are secondary"], *[half_open] * 3, []]


def texts_of(states: EntityStates) -> list[str]:
    return [each.text for each in problems_here(Runtime(), None, states)]


def watch_of(
    problems: list[Problem],
    processes: int,
    diverted: Callable[[], int] = lambda: 0,
    back: Callable[[], datetime | None] = lambda: None,
    unknown: str = "",
) -> ProblemWatch:
    clock = VirtualClock()
    broker = MemoryBroker(clock, random.Random(1))
    reader = RecordReader(secondary=broker, label="east", clock=clock)
    record = ProcessRecord(
        process="a", host="h", kind="serve", pid=1, started=clock(), at=clock(), interval=30.0
    )
    reader.known = PairRecords(
        at=clock(), alive=(record,) * processes, since=clock(), unknown=unknown
    )
    return ProblemWatch(
        problems=lambda: problems,
        diverted=diverted,
        back=back,
        states=None,
        reader=reader,
        urgent=Changes(),
        rng=random.Random(2),
    )


async def test_a_change_of_the_problems_is_urgent_and_one_of_their_figures_is_not(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    problems = [LOST]
    watch = watch_of(problems, 2)
    await nursery.start(watch.run)
    problems[0] = attrs.evolve(LOST, detail="refused again")
    await trio.sleep(10 * EVERY)
    same = watch.urgent.version
    problems.clear()
    await trio.sleep(2 * EVERY)

    assert (same, watch.urgent.version) == (0, 1)


async def test_messages_that_were_diverted_in_no_trouble_are_told_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    diverted = 0
    watch = watch_of([], 2, lambda: diverted)
    await nursery.start(watch.run)
    diverted = 3
    await trio.sleep(2 * EVERY)

    assert watch.urgent.version == 1


async def test_the_return_of_the_primary_is_told_soon(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    back: list[datetime | None] = [None]
    watch = watch_of([], 2, back=lambda: back[-1])
    await nursery.start(watch.run)
    back.append(VirtualClock()())
    await trio.sleep(2 * EVERY)

    assert watch.urgent.version == 1


async def test_a_change_is_told_soon_though_the_last_reading_of_the_records_failed(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    problems = [LOST]
    watch = watch_of(problems, 2, unknown="the secondary doesn't answer")
    await nursery.start(watch.run)
    problems.clear()
    await trio.sleep(2 * EVERY)

    assert watch.urgent.version == 1


async def test_a_fleet_that_loses_its_primary_does_not_tell_it_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    problems: list[Problem] = []
    watch = watch_of(problems, 1000)
    await nursery.start(watch.run)
    problems.append(LOST)
    began = trio.current_time()
    await watch.urgent.wait(0)

    assert EVERY + 10.0 < trio.current_time() - began <= EVERY + 1000 / RECORDS_A_SECOND


async def test_the_turn_comes_as_soon_as_few_processes_are_known(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    problems: list[Problem] = []
    watch = watch_of(problems, 1000)
    known = attrs.evolve(watch.reader.known, alive=watch.reader.known.alive[:2])
    await nursery.start(watch.run)
    problems.append(LOST)
    await trio.sleep(5)
    before = watch.urgent.version
    watch.reader.known = known
    watch.reader.changes.notify()
    await trio.testing.wait_all_tasks_blocked()

    assert (before, watch.urgent.version) == (0, 1)


@pytest.mark.parametrize(("exists", "told"), [(False, 1), (True, 0)])
async def test_the_first_record_of_a_pair_waits_for_no_turn(
    autojump_clock: MockClock, nursery: trio.Nursery, exists: bool, told: int
) -> None:
    problems: list[Problem] = []
    watch = watch_of(problems, 0)
    watch.reader.may_read, watch.reader.exists = False, exists
    await nursery.start(watch.run)
    problems.append(LOST)
    await trio.sleep(2 * EVERY)

    assert watch.urgent.version == told
