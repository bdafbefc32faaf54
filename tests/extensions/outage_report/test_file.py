"""Outages survive a restart of the process, in a small file beside the pair's state."""

from pathlib import Path

import pytest
import trio

from gateway.domain.events.gateway import Doubtful
from gateway.domain.events.outages import NamespaceBack, NamespaceLost
from gateway.extensions.outage_report.book import OutageBook
from gateway.extensions.outage_report.file import OutageFile
from gateway.extensions.outage_report.markdown import report_of
from tests.harness.clocks import VirtualClock
from tests.harness.patience import PATIENCE
from tests.pairing.harness import Events


def opened(path: Path, events: Events) -> OutageFile:
    file = OutageFile(
        path=path, book=OutageBook(primary="north", clock=VirtualClock()), observer=events
    )
    file.restore()
    return file


async def test_outages_are_told_after_a_restart_and_one_under_way_as_far_as_it_was_known(
    tmp_path: Path, events: Events
) -> None:
    path = tmp_path / "var" / "outages.json"
    first = opened(path, events)
    async with trio.open_nursery() as nursery:
        await nursery.start(first.run)
        first.book.record(NamespaceLost(namespace="north", reason="refused"))
        first.book.record(NamespaceBack(namespace="north", seconds=1.0))
        first.book.close(empty=True)
        first.book.record(NamespaceLost(namespace="north", reason="again"))
        nursery.cancel_scope.cancel()

    second = opened(path, events)

    again, done = second.book.all()
    assert done == first.book.all()[1]
    assert (again.cause, again.ended, again.empty, again.interrupted) == ("again", None, None, True)
    assert "| over | not known: this process ended before it |" in report_of([again])
    assert events.of(Doubtful) == []


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 2}', b'{"version": 1, "outages": [1]}']
)
async def test_a_damaged_file_costs_the_report_and_not_the_start(
    tmp_path: Path, events: Events, content: bytes
) -> None:
    path = tmp_path / "outages.json"
    path.write_bytes(content)

    assert opened(path, events).book.all() == ()
    [doubt] = events.of(Doubtful)
    assert "no outages are read" in doubt.text


async def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, events: Events) -> None:
    (tmp_path / "var").write_text("in the way")
    file = opened(tmp_path / "var" / "outages.json", events)
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        file.book.record(NamespaceLost(namespace="north", reason="refused"))
        with trio.fail_after(PATIENCE):
            while True:
                if events.of(Doubtful):
                    break
                await trio.sleep(0.01)
        file.book.record(NamespaceBack(namespace="north", seconds=1.0))
        nursery.cancel_scope.cancel()  # it writes once more

    assert len(events.of(Doubtful)) == 1
