"""The messages that wait for each entity are told where they are known, and never guessed."""

import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Diverted, Syphoned
from gateway.domain.message import AcceptedBy
from gateway.telemetry.waiting import LAG, CountingMoves, WaitingCounts
from gateway.telemetry.watch import GatewayWatch
from tests.harness.clocks import VirtualClock

ORDERS, BILLS = EntityPath("orders"), EntityPath("Bills")
ALL = 1_000_000


class Bench:
    """Counts, their clock, and readings of the depth at that clock."""

    def __init__(self, most: int = 100) -> None:
        self.now = 0.0
        self.counts = WaitingCounts(lambda: self.now, most=most)

    def read(self, pending: int | None, later: float = 2 * LAG) -> dict[str, int] | None:
        self.now += later
        self.counts.compare(self.counts.total, pending)
        found = self.counts.most_waiting(ALL)
        return None if found is None else dict(found)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_before_the_depth_is_known_nothing_is(bench: Bench) -> None:
    bench.counts.diverted(ORDERS, 3)

    assert bench.counts.most_waiting(ALL) is None
    assert bench.counts.of(ORDERS) is None


def test_a_message_that_was_diverted_and_not_moved_waits(bench: Bench) -> None:
    bench.counts.diverted(ORDERS, 3)
    bench.counts.diverted(BILLS, 5)
    bench.counts.moved(ORDERS, 1)

    assert bench.read(7) == {"Bills": 5, "orders": 2}
    assert (bench.counts.of(ORDERS), bench.counts.of(EntityPath("audit"))) == (2, 0)
    bench.counts.moved(BILLS, 5)  # between two readings the counts go on
    assert bench.counts.most_waiting(ALL) == {"orders": 2}


@pytest.mark.parametrize("pending", [None, 6, 8, 0])
def test_if_another_depth_is_read_nothing_is_known(bench: Bench, pending: int | None) -> None:
    """Another gateway diverts, another syphon moves, or messages are from before the start."""
    bench.counts.diverted(ORDERS, 7)
    assert bench.read(7) == {"orders": 7}

    found = bench.read(pending)

    assert found == ({} if pending == 0 else None)


def test_a_depth_that_is_told_late_does_not_matter_while_messages_move(bench: Bench) -> None:
    bench.counts.diverted(ORDERS, 100)
    bench.read(100)
    bench.counts.moved(ORDERS, 40)

    assert bench.read(100, later=1.0) == {"orders": 60}
    assert bench.read(100) is None  # the count stays: another gateway has put 40 there


def test_messages_that_others_diverted_make_it_unknown_until_the_backlog_is_empty(
    bench: Bench,
) -> None:
    bench.counts.moved(BILLS, 10)
    bench.counts.diverted(ORDERS, 15)

    assert bench.read(5) is None  # the sums agree, by chance
    assert bench.read(0) == {}
    bench.counts.diverted(ORDERS, 4)
    assert bench.read(4) == {"orders": 4}


def test_a_backlog_that_is_empty_between_two_diverted_messages_is_no_new_beginning(
    bench: Bench,
) -> None:
    bench.counts.diverted(ORDERS, 1)

    assert bench.read(0, later=1.0) == {"orders": 1}
    assert bench.read(1) == {"orders": 1}


def test_with_too_many_entities_nothing_is_known_until_the_backlog_is_empty() -> None:
    bench = Bench(most=2)
    for number in range(3):
        bench.counts.diverted(EntityPath(f"tenant-{number}"), 1)

    assert bench.read(3) is None
    assert bench.read(0) == {}


def test_only_those_for_which_the_most_messages_wait_are_told(bench: Bench) -> None:
    for number in range(10):
        bench.counts.diverted(EntityPath(f"tenant-{number}"), number + 1)
    bench.read(55)

    assert bench.counts.most_waiting(2) == {"tenant-9": 10, "tenant-8": 9}


async def test_the_spool_is_no_part_of_the_backlog() -> None:
    clock = VirtualClock()

    class Silent:
        def report(self, event: object) -> None:
            """Nothing to do."""

    watch = GatewayWatch(Silent(), clock)
    moves = CountingMoves(watch, watch.waiting)
    for accepted_by in (AcceptedBy.BACKLOG, AcceptedBy.SPOOL):
        watch.report(Diverted(entity=ORDERS, accepted_by=accepted_by, queue=ORDERS, messages=5))
    moves.report(Syphoned(entity=ORDERS, queue=ORDERS, messages=2))
    watch.report(Syphoned(entity=ORDERS, queue=ORDERS, messages=5))  # the spool's

    assert watch.waiting.total == 3
    assert watch.moved == 7
