"""The thread that writes the log, when no process reads it, and when the disk is full."""

import errno
import fcntl
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.telemetry.log import LineWriter
from tests.harness.retained import entries

BLOCKED = 0.05  # seconds, for writers that won't get done
PIPE_SIZE = 4096


def gap(lines: int) -> str:
    return f"{lines} lost\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    yield reading, writing
    os.close(writing)
    os.close(reading)


def read_until(fd: int, end: str) -> str:
    text = ""
    while not text.endswith(end):
        text += os.read(fd, PIPE_SIZE).decode()
    return text


def test_lines_are_written_in_their_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing, gap)

    for number in range(100):
        writer.write(f"{number}\n")
    writer.close(5)

    assert os.read(reading, PIPE_SIZE).decode() == "".join(f"{n}\n" for n in range(100))


def test_lines_that_become_due_are_written_without_another_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    due = [0.01, 0.01, None]

    def tell() -> float | None:
        if len(due) == 1:
            writer.write("due\n")
        return due.pop(0) if len(due) > 1 else None

    writer = LineWriter(writing, gap, tell=tell)
    writer.write("first\n")
    text = read_until(reading, "due\n")
    writer.close(5)

    assert text.splitlines()[:2] == ["first", "due"]


def test_a_pipe_that_nobody_reads_stops_nobody_who_writes(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing, gap, most=10)

    for number in range(1000):
        writer.write(f"{number:099}\n")
    kept = ""
    while writer._lines:  # until there is room
        kept += os.read(reading, PIPE_SIZE).decode()
    writer.write("last\n")
    kept += read_until(reading, "last\n")
    writer.close(5)

    *lines, last = kept.splitlines()
    lost = [int(line.split()[0]) for line in lines if line.endswith("lost")]
    assert last == "last"
    assert sum(lost) + len(lines) - len(lost) == 1000
    assert sum(lost) > 900


def test_closing_waits_no_longer_than_it_is_told(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing, gap)
    writer.write("x" * 2 * PIPE_SIZE + "\n")

    ended = writer.close(BLOCKED)
    kept = entries(writer)
    writer.write("too late\n")
    kept_at_last = entries(writer)

    assert not ended
    assert kept_at_last == kept
    read_until(reading, "1 lost\n")
    assert writer.close(5)  # another test's pipe may get this one's descriptor


def test_a_full_disk_stops_nobody_and_the_gap_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = LineWriter(fd, gap)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        writer.write("one\n")
        writer.write("two is too long for this disk\n")
        writer.write("three\n")
        while writer._dropped < 2:
            time.sleep(0.001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.write("four\n")
    writer.close(5)
    os.close(fd)

    assert path.read_text().splitlines() == ["one", "two is", "2 lost", "four"]


def test_a_reader_who_has_gone_stops_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing, gap)

    writer.write("one\n")

    assert writer.close(5)
    with pytest.raises(OSError, match=os.strerror(errno.EPIPE)):
        os.write(writing, b"x")
    os.close(writing)


def test_a_descriptor_that_somebody_made_non_blocking_loses_no_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    writer = LineWriter(writing, gap)

    writer.write("x" * 3 * PIPE_SIZE + "\n")

    assert len(read_until(reading, "\n")) == 3 * PIPE_SIZE + 1
    writer.close(5)
