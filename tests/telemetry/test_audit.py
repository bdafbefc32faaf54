"""The audit log: each line reaches the disk, even if the file is moved or removed."""

import json
import os
import threading
from pathlib import Path

import attrs
import pytest
import trio

from gateway.changes import Changes
from gateway.domain.events.control import AuditFailed, AuditRestored
from gateway.domain.events.gateway import Event
from gateway.telemetry import audit
from gateway.telemetry.audit import AuditLog, AuditLogs


@attrs.define
class Heard:
    events: list[Event] = attrs.field(factory=list)
    changes: Changes = attrs.field(factory=Changes)

    def report(self, event: Event) -> None:
        self.events.append(event)
        self.changes.notify()


def lines_of(file: Path) -> list[int]:
    return [json.loads(line)["number"] for line in file.read_text().splitlines()]


async def test_lines_are_appended_in_their_order_and_only_the_user_can_read_them(
    tmp_path: Path,
) -> None:
    log = AuditLog(tmp_path / "var" / "audit.jsonl", Heard())

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(log.record, {"number": number})

    assert sorted(lines_of(log.file)) == list(range(20))
    assert log.file.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", Heard())
    await log.record({"number": 1})
    log.file.rename(tmp_path / "old.jsonl")
    await log.record({"number": 2})

    assert lines_of(tmp_path / "old.jsonl") == [1]
    assert lines_of(log.file) == [2]


async def test_a_line_that_can_not_be_written_is_an_event(tmp_path: Path) -> None:
    heard = Heard()
    (tmp_path / "audit.jsonl").mkdir()

    await AuditLog(tmp_path / "audit.jsonl", heard).record({"number": 1})

    assert heard.events == [AuditFailed(reason=f"{tmp_path / 'audit.jsonl'}: Is a directory")]


async def test_a_line_is_written_to_no_pipe_and_waits_for_nobody_who_reads_it(
    tmp_path: Path,
) -> None:
    heard = Heard()
    os.mkfifo(tmp_path / "audit.jsonl")

    with trio.fail_after(5):
        await AuditLog(tmp_path / "audit.jsonl", heard).record({"number": 1})

    assert heard.events == [
        AuditFailed(reason=f"{tmp_path / 'audit.jsonl'}: No such device or address")
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a link to another user")
async def test_a_line_is_written_behind_no_link_of_another_user(tmp_path: Path) -> None:
    heard = Heard()
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    os.chown(tmp_path / "audit.jsonl", 65534, 65534, follow_symlinks=False)

    await AuditLog(tmp_path / "audit.jsonl", heard).record({"number": 1})

    assert not (tmp_path / "elsewhere").exists()
    [event] = heard.events
    assert isinstance(event, AuditFailed)
    assert "belongs to another user (65534)" in event.reason


async def test_a_cancellation_leaves_no_call_without_its_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", Heard())

    with trio.CancelScope() as scope:
        scope.cancel()
        await log.record({"number": 1})

    assert lines_of(log.file) == [1]


async def test_a_full_disk_is_an_event() -> None:
    heard = Heard()

    await AuditLog(Path("/dev/full"), heard).record({"number": 1})

    assert [type(event) for event in heard.events] == [AuditFailed]


async def test_missing_lines_are_written_in_their_order_as_soon_as_the_file_takes_them(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    heard, logs, file = Heard(), AuditLogs(every=0.01), tmp_path / "audit.jsonl"
    log = logs.at(file, heard)
    assert logs.at(file, heard) is log
    await nursery.start(logs.run)
    file.mkdir()
    for number in (1, 2):
        await log.record({"number": number})
    for _ in range(3):
        await log.try_again()
    before, heard.events = heard.events, []
    file.rmdir()
    with trio.fail_after(10.0):
        await heard.changes.wait_next()
    await log.record({"number": 3})
    await log.try_again()

    assert [type(event) for event in before] == [AuditFailed] * 2  # none for each try
    assert heard.events == [AuditRestored(file=str(file), lines=2, missing=0)]
    assert lines_of(file) == [1, 2, 3]


async def test_a_line_whose_write_hangs_is_not_written_twice_and_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, goes_on, append = Heard(), threading.Event(), audit.append

    def hang(file: Path, line: bytes) -> None:
        goes_on.wait()
        append(file, line)

    monkeypatch.setattr(audit, "append", hang)
    log = AuditLog(tmp_path / "audit.jsonl", heard, longest_write=0.01)
    await log.record({"number": 1})
    log.longest_write = 10.0
    goes_on.set()
    await log.try_again()

    assert heard.events[1:] == [AuditRestored(file=str(log.file), lines=0, missing=1)]
    assert lines_of(log.file) == [1]


async def test_calls_at_a_disk_that_hangs_keep_one_thread_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    """Others need threads too, for example to resolve the name of a namespace's host."""
    heard, goes_on = Heard(), threading.Event()

    def hang(_file: Path, _line: bytes) -> None:
        goes_on.wait()

    monkeypatch.setattr(audit, "append", hang)
    log = AuditLog(tmp_path / "audit.jsonl", heard)
    try:
        for number in range(3):
            await log.record({"number": number})
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
    finally:
        goes_on.set()

    assert [type(event) for event in heard.events] == [AuditFailed] * 3
