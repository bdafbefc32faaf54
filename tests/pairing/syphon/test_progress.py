"""A syphon reports the progress of the backlog as a whole."""

import attrs
import trio

from gateway.domain.events.outages import BacklogEmpty, BacklogFound, BacklogMoves, BacklogProgress
from gateway.pairing.syphon.progress import EVERY, UNKNOWN
from tests.harness.faults import Operation, Refuse
from tests.pairing.harness import LABEL, message, virtual_time

pytestmark = virtual_time
TOLD = (BacklogFound, BacklogMoves, BacklogProgress, BacklogEmpty)


def told(harness):
    return [each for each in harness.events.all if isinstance(each, TOLD)]


async def test_a_backlog_is_told_when_it_begins_to_move_every_ten_seconds_and_when_it_is_empty(
    harness,
):
    await harness.divert(*[message(f"m{number}") for number in range(150)])

    await harness.syphon(max_drain_rate=5.0, batch=5)
    await trio.sleep(60.0)
    found, moves, *progress, empty = told(harness)

    assert found == BacklogFound(label=LABEL, pending=150)
    assert isinstance(moves, BacklogMoves)
    assert [each.moved + each.left for each in progress] == [150] * len(progress)
    assert all(each.seconds_left == each.left / each.rate for each in progress)
    assert len(progress) in (2, 3)
    assert attrs.evolve(empty, seconds=0.0) == BacklogEmpty(
        label=LABEL, moved=150, seconds=0.0, dead_lettered=0
    )
    assert 25.0 <= empty.seconds <= 31.0


async def test_a_second_outage_is_told_as_the_first(harness):
    await harness.syphon()
    for _ in range(2):
        await trio.sleep(60.0)
        await harness.divert(message())
        await trio.sleep(60.0)

    assert [type(each) for each in told(harness)] == [
        BacklogFound,
        BacklogMoves,
        BacklogEmpty,
        BacklogMoves,
        BacklogEmpty,
    ]
    assert [each.moved for each in harness.events.of(BacklogEmpty)] == [1, 1]


async def test_where_the_depth_isnt_known_nothing_is_told_to_be_empty(harness):
    await harness.divert(message())
    await harness.syphon()
    await trio.sleep(0.05)
    harness.secondary.fail(Refuse(), Operation.MANAGE)
    await trio.sleep(60.0)

    assert harness.events.of(BacklogEmpty) == []


async def test_a_depth_that_is_known_again_after_a_minute_is_told_to_be_empty(harness):
    await harness.divert(message())
    await harness.syphon()
    await trio.sleep(0.05)
    harness.secondary.fail(Refuse(), Operation.MANAGE)
    await trio.sleep(90.0)
    harness.secondary.heal()
    await trio.sleep(2 * EVERY)

    assert [each.moved for each in harness.events.of(BacklogEmpty)] == [1]


async def test_a_depth_that_nobody_tells_isnt_asked_for_without_end(harness):
    await harness.divert(message())
    await harness.syphon()
    await trio.sleep(0.05)
    harness.secondary.fail(Refuse(), Operation.MANAGE)
    await trio.sleep(UNKNOWN + 2 * EVERY)
    harness.secondary.heal()
    await trio.sleep(600.0)

    assert harness.events.of(BacklogEmpty) == []
