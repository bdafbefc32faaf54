"""A syphon reports the progress of the backlog as a whole."""

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.events.gateway import DeadLettered, Event, Syphoned, SyphonStalled
from gateway.domain.events.outages import BacklogEmpty, BacklogFound, BacklogMoves, BacklogProgress
from gateway.pairing.syphon.progress import EVERY, UNKNOWN, ProgressReporter
from tests.harness.faults import Operation, Refuse
from tests.pairing.harness import LABEL, ORDERS, QUEUE, Events, message, virtual_time

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


# The reporter alone, with counts that the test gives


@attrs.define(eq=False)
class Counted:
    """A reporter of a backlog with `left` messages, by its namespace."""

    events: Events
    left: int | None = 0
    seconds: float = 0.0  # of a count
    asked: list[float] = attrs.field(factory=list)
    reporter: ProgressReporter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reporter = ProgressReporter(observer=self.events, label=LABEL)

    async def count(self) -> int | None:
        self.asked.append(trio.current_time())
        await trio.sleep(self.seconds)
        return self.left

    def move(self, messages: int = 1) -> None:
        self.reporter.report(Syphoned(entity=ORDERS, queue=QUEUE, messages=messages))

    def dead_letter(self) -> None:
        self.reporter.report(
            DeadLettered(queue=QUEUE, message_id="m", reason="NotSupported", description="")
        )

    def told(self) -> list[Event]:
        return [each for each in self.events.all if isinstance(each, TOLD)]


@pytest.fixture
def counted(events: Events) -> Counted:
    return Counted(events)


@pytest.mark.parametrize(("pending", "found", "asked"), [(None, 7, 1), (3, 3, 0), (0, 0, 0)])
async def test_a_backlog_is_counted_at_the_start_only_if_its_depth_isnt_known(
    counted: Counted, nursery: trio.Nursery, pending: int | None, found: int, asked: int
) -> None:
    counted.left = 7
    nursery.start_soon(counted.reporter.run, counted.count, pending)
    await wait_all_tasks_blocked()

    assert counted.told() == [BacklogFound(label=LABEL, pending=found)]
    assert len(counted.asked) == asked


async def test_each_event_of_a_drain_goes_on_to_the_observer(counted: Counted) -> None:
    counted.move()
    counted.dead_letter()
    counted.reporter.report(SyphonStalled(pending=1, seconds=1.0))

    assert [type(each) for each in counted.events.all] == [Syphoned, DeadLettered, SyphonStalled]


async def test_messages_that_leave_while_they_are_counted_are_among_those_that_waited(
    counted: Counted, nursery: trio.Nursery
) -> None:
    nursery.start_soon(counted.reporter.run, counted.count, 10)
    await wait_all_tasks_blocked()
    counted.left, counted.seconds = 6, 0.5
    counted.move(2)
    await trio.sleep(0.1)
    counted.move(1)
    counted.dead_letter()
    await trio.sleep(0.5)

    assert counted.events.of(BacklogMoves) == [BacklogMoves(label=LABEL, left=10)]


async def test_a_backlog_is_empty_as_soon_as_nothing_moves_for_a_second(
    counted: Counted, nursery: trio.Nursery
) -> None:
    nursery.start_soon(counted.reporter.run, counted.count, 5)
    await wait_all_tasks_blocked()
    counted.left = 3
    counted.move(2)
    await trio.sleep(0.5)
    counted.move(2)
    counted.dead_letter()
    counted.left = 0
    await trio.sleep(0.99)
    before = counted.events.of(BacklogEmpty)
    await trio.sleep(0.02)

    assert before == []
    assert counted.events.of(BacklogEmpty) == [
        BacklogEmpty(label=LABEL, moved=4, seconds=0.5, dead_lettered=1)
    ]
    assert counted.events.of(BacklogProgress) == []


async def test_a_backlog_that_is_only_dead_lettered_moves_and_is_empty(
    counted: Counted, nursery: trio.Nursery
) -> None:
    nursery.start_soon(counted.reporter.run, counted.count, 1)
    await wait_all_tasks_blocked()
    counted.dead_letter()
    await trio.sleep(5.0)

    assert [type(each) for each in counted.told()] == [BacklogFound, BacklogMoves, BacklogEmpty]


async def test_the_next_backlog_is_counted_by_itself(
    counted: Counted, nursery: trio.Nursery
) -> None:
    nursery.start_soon(counted.reporter.run, counted.count, 5)
    await wait_all_tasks_blocked()
    for _ in range(2):
        counted.move(2)
        counted.dead_letter()
        await trio.sleep(5.0)

    assert counted.events.of(BacklogMoves) == [BacklogMoves(label=LABEL, left=3)] * 2
    assert (
        counted.events.of(BacklogEmpty)
        == [BacklogEmpty(label=LABEL, moved=2, seconds=0.0, dead_lettered=1)] * 2
    )


@pytest.mark.parametrize(("left", "seconds_left"), [(30, 15.0), (None, None)])
async def test_progress_is_told_every_ten_seconds_with_the_rate_since_the_last_time(
    counted: Counted, nursery: trio.Nursery, left: int | None, seconds_left: float | None
) -> None:
    counted.left = left
    nursery.start_soon(counted.reporter.run, counted.count, 100)
    await wait_all_tasks_blocked()
    counted.move(1)
    await trio.sleep(0.1)
    for messages in (20, 20):
        counted.move(messages)
        await trio.sleep(EVERY)

    assert counted.events.of(BacklogProgress) == [
        BacklogProgress(label=LABEL, moved=moved, left=left, rate=2.0, seconds_left=seconds_left)
        for moved in (21, 41)
    ]


async def test_the_progress_of_a_second_backlog_is_its_own(
    counted: Counted, nursery: trio.Nursery
) -> None:
    nursery.start_soon(counted.reporter.run, counted.count, 5)
    await wait_all_tasks_blocked()
    counted.move(7)
    await trio.sleep(5.0)
    counted.left = 30
    counted.move(1)
    await trio.sleep(0.1)
    counted.move(20)
    await trio.sleep(EVERY)

    assert [each.moved for each in counted.events.of(BacklogProgress)] == [21]


async def test_a_backlog_of_which_nothing_moves_tells_no_progress(
    counted: Counted, nursery: trio.Nursery
) -> None:
    counted.left = 30
    nursery.start_soon(counted.reporter.run, counted.count, 30)
    await wait_all_tasks_blocked()
    counted.move(1)
    await trio.sleep(10 * EVERY)

    assert len(counted.events.of(BacklogProgress)) == 0
    assert counted.events.of(BacklogEmpty) == []


async def test_an_unknown_depth_is_asked_for_until_nothing_has_moved_for_two_minutes(
    counted: Counted, nursery: trio.Nursery
) -> None:
    counted.left = None
    nursery.start_soon(counted.reporter.run, counted.count, 30)
    await wait_all_tasks_blocked()
    counted.move(1)
    await trio.sleep(UNKNOWN + EVERY)
    asked = len(counted.asked)
    await trio.sleep(10 * UNKNOWN)
    counted.move(1)
    await trio.sleep(0.1)

    assert (asked, len(counted.asked)) == (25, 26)  # two in ten seconds, for two minutes
    assert len(counted.events.of(BacklogMoves)) == 2
    assert counted.events.of(BacklogEmpty) == []
