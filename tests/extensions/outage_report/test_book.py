"""The book counts what one outage costs, in bounded memory; its report is Markdown."""

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Diverted, EntityStateChanged
from gateway.domain.events.outages import NamespaceBack, NamespaceLost
from gateway.domain.health.process_records import PairRecords, ProcessRecord
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import AcceptedBy
from gateway.extensions.outage_report.book import ClientCounts, OutageBook
from gateway.extensions.outage_report.markdown import report_of
from gateway.extensions.outage_report.outage import DepthPoint, EntityOutage, RecordedOutage
from tests.pairing.harness import LABEL, ORDERS

BEGAN = datetime(2027, 1, 1, 12, tzinfo=UTC)


def test_a_short_doubt_is_no_outage(clock):
    book = OutageBook(primary="north", clock=clock)
    book.record(moved("primary", "suspect"))
    book.record(moved("suspect", "primary"))
    book.record(NamespaceLost(namespace="south", reason="the secondary"))

    assert book.all() == ()


def test_the_outage_begins_with_the_first_doubt(clock):
    book = OutageBook(primary="north", clock=clock)
    book.record(moved("primary", "suspect"))
    first = clock.now
    clock.now += timedelta(seconds=60)
    book.record(moved("suspect", "secondary"))

    [outage] = book.all()

    assert outage.began == first


def test_a_gateway_with_workers_tells_no_figure_of_its_clients(clock):
    """Workers count what clients send."""
    book = OutageBook(primary="north", clock=clock, counts=False)
    book.record(NamespaceLost(namespace="north", reason="refused"))
    book.record(NamespaceBack(namespace="north", seconds=1.0))

    over = book.close(empty=True)

    assert (over.diverted, over.twice, over.possibly_twice, over.longest_stall) == (None,) * 4


def test_the_workers_figures_of_an_outage_are_those_since_the_one_before(clock):
    book = OutageBook(primary="north", clock=clock, counts=False)
    found = []
    for diverted, twice in ((5, 1), (12, 1)):
        book.record(NamespaceLost(namespace="north", reason="refused"))
        book.record(NamespaceBack(namespace="north", seconds=1.0))
        book.record(moved("primary", "secondary"))
        book.record(moved("secondary", "primary"))
        book.workers = ClientCounts(
            diverted=diverted, possibly_twice=twice, by_entity={ORDERS.key: diverted}
        )
        over = book.close(empty=True)
        found.append((over.diverted, over.possibly_twice))

    assert found == [(5, 1), (7, 0)]
    assert [one.diverted for each in book.all() for one in each.entities] == [7, 5]


@pytest.mark.parametrize(("seconds", "is_told"), [(-1, False), (30, True), (90, False)])
def test_a_return_while_the_process_was_restarted_is_told_by_others(clock, seconds, is_told):
    """A return after the restart is of a later outage."""
    back = clock.now + timedelta(seconds=seconds)
    interrupted = RecordedOutage(began=clock.now, cause="refused", empty=None, interrupted=True)
    other = ProcessRecord(
        process="s",
        host="gw-2",
        kind="syphon",
        pid=7,
        started=BEGAN,
        at=BEGAN,
        interval=30.0,
        primary_back=back,
    )
    clock.now += timedelta(seconds=60)
    book = OutageBook(primary="north", clock=clock)
    book.restore([interrupted])
    book.read_from(SendCounters(), tuple, lambda: PairRecords(alive=(other,), unknown=""))

    [outage] = book.all()

    assert outage.namespace_back == (back if is_told else None)


def test_of_workers_that_leave_names_out_no_figure_by_entity_is_told():
    counts = ClientCounts(diverted=5, by_entity={"orders": 4})

    assert counts.of("orders") is None
    assert attrs.evolve(counts, diverted=4).of("Orders") == 4
    assert attrs.evolve(counts, diverted=4).of("bills") == 0


def test_the_last_ten_outages_are_remembered(clock):
    book = OutageBook(primary="north", clock=clock)
    for number in range(12):
        book.record(NamespaceLost(namespace="north", reason=f"outage {number}"))
        book.record(NamespaceBack(namespace="north", seconds=1.0))
        book.close(empty=True)

    assert [each.cause for each in book.all()] == [f"outage {each}" for each in range(11, 1, -1)]


@pytest.mark.parametrize("state", ["secondary", "pinned"])
def test_a_diverted_message_of_an_entity_that_left_is_counted_for_it(clock, state):
    book = OutageBook(primary="north", clock=clock)
    book.record(moved("primary", state))
    book.record(
        Diverted(
            entity=ORDERS,
            accepted_by=AcceptedBy.BACKLOG,
            queue=EntityPath(LABEL),
            messages=3,
            in_doubt=True,
        )
    )

    [outage] = book.all()

    assert (outage.diverted, outage.possibly_twice) == (3, 3)
    assert [(each.entity, each.diverted) for each in outage.entities] == [("orders", 3)]


def test_the_report_is_a_document_that_names_cannot_break():
    outage = RecordedOutage(
        began=BEGAN,
        cause="refused | by <b>\nall",
        entities_back=BEGAN + timedelta(seconds=75),
        ended=BEGAN + timedelta(seconds=90),
        empty=True,
        troubled=2,
        entities=(EntityOutage(entity="orders", began=BEGAN, reason="refused", diverted=7),),
        diverted=7,
        moved=None,
        longest_stall=2.256,
        dead_lettered={"TTLExpiredException": 2},
        curve=(
            DepthPoint(at=BEGAN, pending=0),
            DepthPoint(at=BEGAN + timedelta(seconds=10), pending=None),
            DepthPoint(at=BEGAN + timedelta(seconds=20), pending=7),
        ),
    )

    text = report_of([outage])

    assert "# Outage of 2027-01-01 12:00:00 UTC" in text
    assert "| cause | refused \\| by &lt;b> all |" in text
    assert "| over | 2027-01-01 12:01:30 UTC, after 0:01:30 |" in text
    assert "| moved home by syphons | not known |" in text
    assert "| slowest send | 2.26 s |" in text
    assert "| dead-lettered | TTLExpiredException: 2 |" in text
    assert "and 1 more." in text
    assert "12:00:10          ?\n12:00:20          7 " + "#" * 40 in text


def test_without_an_outage_the_report_says_so():
    assert report_of([]) == "No outage is known.\n"


def moved(before: str, after: str) -> EntityStateChanged:
    return EntityStateChanged(
        entity=ORDERS, before=before, after=after, reason="refused", cause="failed"
    )


class Dates:
    now = BEGAN

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Dates()
