import random
from itertools import pairwise

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import BacklogOrphaned
from gateway.domain.failover import State
from gateway.domain.message import Complete
from gateway.pairing.depth import Reading
from gateway.pairing.options import PairOptions
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.orphans import SPREAD, OrphanWatch
from tests.harness.faults import Operation, Refuse
from tests.pairing.harness import BILLS, LABEL, QUEUE, message, reaches, send, virtual_time

pytestmark = virtual_time

LATER = SPREAD * 300.0  # seconds, at most, until the first reading


async def diverted_and_back(harness, **options):
    pair = await harness.pair(failover_interval=0.0, **options)
    harness.primary.fail(Refuse(), Operation.SEND, times=1)
    await send(pair)()
    await reaches(pair.states, State.PRIMARY)
    return pair


async def test_a_backlog_that_nobody_moves_is_told_five_minutes_after_the_return(harness):
    await diverted_and_back(harness)

    await trio.sleep(299.0)
    before = harness.events.of(BacklogOrphaned)
    await trio.sleep(2.0 + LATER)

    assert before == []
    assert harness.events.of(BacklogOrphaned) == [BacklogOrphaned(pending=1, seconds=300.0)]


async def test_an_orphaned_backlog_is_reported_as_long_as_it_exists(harness):
    await diverted_and_back(harness)
    await trio.sleep(700.0)
    told = len(harness.events.of(BacklogOrphaned))

    await harness.secondary.empty(QUEUE)
    await trio.sleep(3600.0)

    assert told == 2
    assert len(harness.events.of(BacklogOrphaned)) == 2


async def test_a_backlog_that_is_moved_is_no_orphan(harness):
    await diverted_and_back(harness)
    await harness.syphon()

    await trio.sleep(3600.0)

    assert harness.events.of(BacklogOrphaned) == []


async def test_sends_that_were_diverted_while_suspect_leave_a_backlog_too(harness):
    pair = await harness.pair(failover_interval=60.0)
    harness.primary.fail(Refuse(), Operation.SEND, times=1)
    await send(pair)()
    await trio.sleep(1.0)
    await send(pair, message("m2"))()
    assert pair.states.troubled() == []

    await trio.sleep(301.0 + LATER)

    assert len(harness.events.of(BacklogOrphaned)) == 1


async def test_nothing_is_said_during_the_outage(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Refuse())
    await send(pair)()

    await trio.sleep(3600.0)

    assert harness.events.of(BacklogOrphaned) == []


async def test_short_trouble_elsewhere_doesnt_silence_it(harness):
    pair = await diverted_and_back(harness)
    await trio.sleep(100.0)
    # Two changes at once: suspect, and well again.
    failed = pair.states.begin(BILLS)
    pair.states.force_over(EntityPath("other"))
    pair.states.force_back(EntityPath("other"))
    pair.states.sent(failed)

    await trio.sleep(310.0)

    assert len(harness.events.of(BacklogOrphaned)) == 1


async def test_a_secondary_that_doesnt_tell_is_no_alarm(harness):
    await diverted_and_back(harness)
    harness.secondary.fail(Refuse(), Operation.MANAGE)

    await trio.sleep(3600.0)

    assert harness.events.of(BacklogOrphaned) == []
    assert await harness.secondary.ids(QUEUE) == ["m1"]


async def test_a_backlog_from_before_the_start_is_told_though_this_process_saw_no_trouble(harness):
    await harness.divert(message())
    await harness.pair()

    await trio.sleep(301.0 + LATER)

    assert harness.events.of(BacklogOrphaned) == [BacklogOrphaned(pending=1, seconds=300.0)]


async def test_after_how_long_is_an_option(harness):
    await harness.divert(message())
    await harness.pair(orphaned_after=20.0)

    await trio.sleep(21.0 + SPREAD * 20.0)

    assert harness.events.of(BacklogOrphaned) == [BacklogOrphaned(pending=1, seconds=20.0)]


async def test_a_backlog_that_somebody_moves_slowly_is_no_orphan(harness):
    for index in range(5):
        await harness.divert(message(f"m{index}"))
    await harness.pair()

    for _ in range(5):
        await trio.sleep(250.0)
        async with harness.secondary.store.open_receiver(QUEUE) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.settle(delivery, Complete())

    assert harness.events.of(BacklogOrphaned) == []


async def test_anothers_backlog_that_came_later_is_found_within_the_hour(harness):
    await harness.pair()
    await trio.sleep(LATER)
    await harness.divert(message())

    await trio.sleep(3600.0 + 301.0)

    assert len(harness.events.of(BacklogOrphaned)) == 1


async def test_while_nothing_waits_it_is_looked_once_an_hour(harness):
    await diverted_and_back(harness)
    await harness.secondary.empty(QUEUE)
    await trio.sleep(301.0)
    looks = len(harness.secondary.times(Operation.MANAGE))

    await trio.sleep(3600.0)

    # One question for the depth, one for the syphons.
    assert len(harness.secondary.times(Operation.MANAGE)) == looks + 2


class Lagging:
    """The counts of ten seconds ago, as RabbitMQ's management reports them; moved after 1 s."""

    def __init__(self):
        self.moved = trio.current_time() + 1.0

    async def ask(self, _seconds):
        await trio.lowlevel.checkpoint()
        pending = 1 if trio.current_time() - 10.0 < self.moved else 0
        return Reading(pending=pending, lag=10.0)


async def test_counts_that_lag_are_given_their_time(harness):
    pair = await harness.pair()
    watch = OrphanWatch(depth=Lagging(), states=pair.states, after=4.0, rng=random.Random(1))
    await harness.nursery.start(watch.run)

    await trio.sleep(100.0)

    assert harness.events.of(BacklogOrphaned) == []


class OnceUnknown:
    """Another process receives, so that its locked messages can't be counted; then it is gone."""

    def __init__(self):
        self.known_from = trio.current_time() + 1000.0

    async def ask(self, _seconds):
        await trio.lowlevel.checkpoint()
        return Reading(pending=None if trio.current_time() < self.known_from else 5)


async def test_a_depth_that_was_unknown_is_read_again_as_soon_as_one_of_waiting_messages(harness):
    pair = await harness.pair()
    watch = OrphanWatch(depth=OnceUnknown(), states=pair.states, after=300.0, rng=random.Random(1))
    await harness.nursery.start(watch.run)

    await trio.sleep(1000.0 + 2 * 300.0 + LATER)

    assert harness.events.of(BacklogOrphaned) == [BacklogOrphaned(pending=5, seconds=300.0)]


async def test_gateways_that_get_their_primary_back_together_look_one_after_the_other(harness):
    moments = []

    class Noting:
        async def ask(self, _seconds):
            await trio.lowlevel.checkpoint()
            moments.append(trio.current_time())

    pair = await harness.pair()
    began = trio.current_time()
    for seed in range(20):
        watch = OrphanWatch(
            depth=Noting(), states=pair.states, after=300.0, rng=random.Random(seed)
        )
        await harness.nursery.start(watch.run)
    await trio.sleep(LATER)

    assert len({int(moment - began) for moment in moments}) > 10


@attrs.define
class Scripted:
    """Tells these depths, one at each look, and then the last one again."""

    readings: list[Reading | None]
    looks: list[float] = attrs.field(factory=list)

    async def ask(self, seconds):
        assert seconds == 30.0
        await trio.lowlevel.checkpoint()
        self.looks.append(trio.current_time())
        return self.readings[min(len(self.looks), len(self.readings)) - 1]


async def watched(harness, *readings):
    """Entities that are well, and the depths that their watch is told."""
    options = PairOptions(label=LABEL)
    states = EntityStates(
        options=options, clock=harness.clock, observer=harness.events, rng=random.Random(1)
    )
    depth = Scripted(list(readings))
    watch = OrphanWatch(depth=depth, states=states, after=300.0, rng=random.Random(1))
    await harness.nursery.start(watch.run)
    return states, depth


EMPTY, WAITING = Reading(pending=0), Reading(pending=5)
LATE = Reading(pending=0, lag=10.0)


@pytest.mark.parametrize(
    ("readings", "pauses"),
    [
        ([EMPTY], [3600.0, 3600.0]),
        ([LATE], [310.0, 3600.0]),
        ([WAITING], [300.0, 300.0]),
        ([None], [300.0, 300.0]),
    ],
    ids=["empty", "empty by an old count", "waiting", "unknown"],
)
async def test_the_next_look_is_soon_unless_the_backlog_is_known_to_be_empty(
    harness, readings, pauses
):
    _, depth = await watched(harness, *readings)
    await trio.sleep(3 * 3600.0)

    assert [after - before for before, after in pairwise(depth.looks[:3])] == pytest.approx(pauses)


async def test_a_depth_that_becomes_unknown_is_no_alarm(harness):
    await watched(harness, Reading(pending=1), None)
    await trio.sleep(3600.0)

    assert harness.events.of(BacklogOrphaned) == []


async def test_trouble_before_the_first_look_puts_it_off(harness):
    states, depth = await watched(harness, WAITING)
    states.force_over(BILLS)
    await trio.sleep(3600.0)

    assert depth.looks == []
