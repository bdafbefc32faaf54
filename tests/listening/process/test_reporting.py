"""A listener's process reports its work, and notices the end of the agent."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from gateway.app.failure import ExitCode, Failure
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Message, Settlement
from gateway.listening.items import Item
from gateway.listening.process.reporting import REPORT_SECONDS, Measured, Reporter, open_report
from gateway.wire.pairgate.listener_report import Report, parse_report

MESSAGE = Message(body=b"one")
DELIVERY = Delivery(message=MESSAGE, sequence_number=1, enqueued=datetime(2026, 1, 1, tzinfo=UTC))
ITEM = Item(value=MESSAGE, delivery=DELIVERY, queue=EntityPath("orders"), account="")


async def work(item: Item[Message]) -> Settlement | None:
    await trio.sleep(2.0)
    if item.delivery.delivery_count > 1:
        raise ValueError("again")
    return None


async def test_the_work_of_handlers_is_counted_with_its_time(autojump_clock: MockClock) -> None:
    measured = Measured(work)

    await measured(ITEM)
    await measured(ITEM)

    assert measured.report == Report(calls=2, seconds=pytest.approx(4.0))


async def test_a_running_handler_is_counted_until_it_has_ended(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    measured = Measured(work)
    for _ in range(3):
        nursery.start_soon(measured, ITEM)
    await trio.sleep(1.0)
    at_work = measured.report
    await trio.sleep(2.0)

    assert (at_work.calls, at_work.running) == (0, 3)
    assert (measured.report.calls, measured.report.running) == (3, 0)


async def test_a_change_is_reported_and_not_too_often(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    ours, theirs = memory_stream_pair()
    measured = Measured(work)
    nursery.start_soon(Reporter(stream=theirs, measured=measured).run, lambda: None)
    for _ in range(1000):
        measured.report += Report(calls=1, seconds=0.5)
        measured.changed.notify()
        await trio.sleep(0.01)
    await trio.sleep(100.0)
    lines = bytes(await ours.receive_some()).splitlines()

    assert len(lines) <= 10 / REPORT_SECONDS + 2
    assert parse_report(lines[-1]) == Report(calls=1000, seconds=500.0)


async def test_the_end_of_the_other_side_is_noticed(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    parted: list[float] = []
    async with trio.open_nursery() as nursery:
        reporter = Reporter(stream=theirs, measured=Measured(work))
        nursery.start_soon(reporter.run, lambda: parted.append(trio.current_time()))
        await trio.sleep(3600)
        before = list(parted)
        await ours.aclose()

    assert (before, len(parted)) == ([], 1)


def test_an_invalid_socket_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    try:
        with pytest.raises(Failure, match=f"--report {fd}: ") as caught:
            open_report(fd)
    finally:
        os.close(fd)

    assert caught.value.code is ExitCode.WRONG
