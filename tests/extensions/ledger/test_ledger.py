"""The file of a ledger: what it remembers, forgets, and knows to be missing."""

import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import apsw
import pytest
import trio

from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import InvalidRequest, MessageError, Unavailable
from gateway.extensions.ledger.events import LedgerNotSaved
from gateway.extensions.ledger.facts import Fact, FactsQuery, LedgerFacts, PairSide, What
from gateway.extensions.ledger.file import LedgerFile, read
from gateway.extensions.ledger.ledger import Ledger
from gateway.extensions.ledger.options import LEAST
from gateway.extensions.ledger.report import LedgerSource, Totals, opened, sealed

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def fact(number: int, *, message: str | None = None, what: What = What.ACCEPTED) -> Fact:
    return Fact(
        at=NOW + timedelta(seconds=number),
        message=f"m{number}" if message is None else message,
        entity="orders",
        side=PairSide.PRIMARY,
        what=what,
        why="x" * 200,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "ledger.db"


def open_file(path, run="first", limit=LEAST, now=NOW):
    return LedgerFile.open(path, limit, run, now)


def page(path, **query) -> LedgerFacts:
    return read(path, FactsQuery(**query))


def test_facts_are_read_as_they_were_written(path):
    file = open_file(path)
    written = [
        Fact(
            at=NOW,
            message="m",
            entity="orders",
            side=side,
            what=what,
            queue="q",
            why="no answer: ö",
        )
        for side in PairSide
        for what in What
    ]

    file.append(written, 0, NOW)

    assert list(page(path).facts) == written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_query_selects_by_id_and_by_dates(path):
    file = open_file(path)
    file.append([fact(number) for number in range(10)], 0, NOW)
    since, until = NOW + timedelta(seconds=3), NOW + timedelta(seconds=6)

    assert [each.message for each in page(path, message="m4").facts] == ["m4"]
    dated = page(path, since=since, until=until).facts
    assert [each.message for each in dated] == ["m3", "m4", "m5"]


def test_pages_follow_each_other_without_a_loss(path):
    file = open_file(path)
    file.append([fact(number) for number in range(10)], 0, NOW)
    found, after = [], 0
    while after is not None:
        answer = page(path, after=after, limit=3)
        found += [each.message for each in answer.facts]
        after = answer.next

    assert found == [f"m{number}" for number in range(10)]


def test_a_full_ledger_forgets_the_oldest_and_says_since_when_it_knows_all(path):
    file = open_file(path)
    number = 0
    while (answer := page(path, limit=1)).since == NOW:
        file.append([fact(number + each) for each in range(500)], 0, NOW)
        number += 500
        assert number < 100_000
    kept, after = [], 0
    while after is not None:
        answer = page(path, after=after)
        kept += answer.facts
        after = answer.next

    assert kept[-1].message == f"m{number - 1}"
    assert len(kept) > number / 2
    assert all(each.at > answer.since for each in kept)
    assert kept[0].at - answer.since == timedelta(seconds=1)
    assert path.stat().st_size < 2 * LEAST


def test_a_second_run_remembers_the_first(path):
    first = open_file(path)
    first.append([fact(1)], 0, NOW)
    first.close()

    second = open_file(path, "second", now=NOW + timedelta(hours=1))
    second.append([fact(2)], 0, NOW)

    answer = page(path)
    assert ([each.message for each in answer.facts], answer.since) == (["m1", "m2"], NOW)
    assert answer.gaps == ()


def test_a_process_that_was_killed_leaves_a_gap(path):
    """Another process opens the file and ends without closing it."""
    code = (
        "import os, sys; from datetime import *; from pathlib import Path;"
        "from gateway.extensions.ledger.file import LedgerFile;"
        "LedgerFile.open(Path(sys.argv[1]), 1 << 20, 'killed', datetime.fromtimestamp(60, UTC));"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)

    assert page(path).gaps == (datetime.fromtimestamp(60, UTC),)


def test_runs_that_go_on_are_no_gaps(path):
    open_file(path)

    assert page(path).gaps == ()


class Observer(list):
    def report(self, event):
        self.append(event)


async def opened_ledger(path) -> tuple[Ledger, Observer]:
    observer = Observer()
    return Ledger(file=open_file(path), clock=lambda: NOW, observer=observer), observer


async def test_a_read_has_all_facts_up_to_now(path):
    ledger, _ = await opened_ledger(path)
    ledger.record([fact(1)])

    assert [each.message for each in (await ledger.read(FactsQuery())).facts] == ["m1"]


async def test_facts_are_written_by_themselves_and_at_the_end(path, nursery):
    ledger, _ = await opened_ledger(path)
    await nursery.start(ledger.run)
    ledger.record([fact(1)])
    with trio.fail_after(20):
        while not page(path).facts:  # noqa: ASYNC110 a thread writes them
            await trio.sleep(0.05)
    nursery.cancel_scope.cancel()
    ledger.record([fact(2)])

    ledger.close()

    assert [each.message for each in page(path).facts] == ["m1", "m2"]


async def test_facts_without_room_are_counted(path):
    ledger, _ = await opened_ledger(path)
    ledger.most = 2
    ledger.record([fact(1), fact(2), fact(3)])
    ledger.record([fact(4)])

    answer = await ledger.read(FactsQuery())

    assert ([each.message for each in answer.facts], answer.unwritten) == (["m1", "m2"], 2)


async def test_facts_that_could_not_be_written_are_counted_and_reported_once(path):
    ledger, observer = await opened_ledger(path)
    other = apsw.Connection(str(path))
    other.execute("ALTER TABLE run RENAME TO held")
    for number in range(3):
        ledger.record([fact(number)])
        await ledger.write()
    other.execute("ALTER TABLE held RENAME TO run")
    ledger.record([fact(3)])

    answer = await ledger.read(FactsQuery())

    assert ([each.message for each in answer.facts], answer.unwritten) == (["m3"], 3)
    assert [type(each) for each in observer] == [LedgerNotSaved]


async def test_a_ledger_that_cannot_be_read_is_unavailable(path):
    ledger, _ = await opened_ledger(path)
    path.unlink()

    with pytest.raises(Unavailable, match=r"ledger\.db"):
        await ledger.read(FactsQuery())


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"message": "x" * 513}, "message: at most 512"),
        ({"since": datetime(2026, 1, 1)}, "since: a date with a time zone"),
        ({"until": datetime(2026, 1, 1)}, "until: a date with a time zone"),
        ({"since": "yesterday"}, "a date such as"),
        ({"after": "many"}, "a number expected"),
        ({"after": -1}, "after: 0 or more"),
        ({"limit": 0}, "limit: 1 to"),
        ({"limit": 2001}, "limit: 1 to"),
        ({"search": True}, "search: needs a message"),
        ({"message": "m", "entity": "a//b"}, "a//b"),
    ],
)
def test_a_bad_query_is_refused_by_name(query, named):
    with pytest.raises(InvalidRequest, match=named):
        FactsQuery(**query)


def test_the_report_counts_messages_and_not_facts():
    totals = Totals()
    totals.add([fact(1), fact(2), fact(2), fact(3, what=What.UNKNOWN), fact(4, message="")])

    found = totals.reconciled(NOW, NOW, [], all_ids=False)

    assert (found.accepted, found.twice, found.unknown, found.without_id) == (2, 1, 1, 1)
    assert (found.ids["twice"], found.ids["unknown"]) == (("orders/m2",), ("orders/m3",))
    assert "accepted" not in found.ids
    everything = totals.reconciled(NOW, NOW, [], all_ids=True)
    assert everything.ids["accepted"] == ("orders/m1", "orders/m2")


@pytest.mark.parametrize(
    ("source", "complete"),
    [
        (LedgerSource(name="a", since=NOW), True),
        (LedgerSource(name="a", since=NOW + timedelta(seconds=1)), False),
        (LedgerSource(name="a", since=NOW, unwritten=1), False),
        (LedgerSource(name="a", since=NOW, gaps=(NOW - timedelta(seconds=1),)), True),
        (LedgerSource(name="a", since=NOW, gaps=(NOW,)), False),
        (LedgerSource(name="a", error="no answer"), False),
    ],
)
def test_a_report_is_complete_if_no_source_lacks_anything(source, complete):
    assert Totals().reconciled(NOW, NOW, [source], all_ids=False).complete is complete


def test_a_seal_is_of_the_pairs_key_and_of_each_character():
    key, other = EnvelopeKey(id="a", key=b"k" * 32), EnvelopeKey(id="a", key=b"o" * 32)
    found = Totals().reconciled(NOW, NOW, [LedgerSource(name="a", since=NOW)], all_ids=False)
    content = sealed(found, key)

    assert opened(content, [other, key]) == found
    for keys, changed in [
        ([other], content),
        ([], content),
        ([key], {**content, "report": content["report"] + " "}),
        ([key], {**content, "seal": {"kid": "a", "mac": "ö"}}),
        ([key], {"report": 1}),
        ([key], []),
    ]:
        with pytest.raises(MessageError):
            opened(changed, keys)
