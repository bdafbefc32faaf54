"""A process asks the system for files for its connections, and gives free memory back."""

import gc
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from gateway.app import process
from gateway.app.process import Trimmer, allow_files


@pytest.fixture
def few_files() -> Iterator[int]:
    """Limit the open files of the process; the hard limit stays as before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_may_open_as_many_files_as_the_system_allows(few_files: int) -> None:
    assert allow_files(10) is None
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files


def test_connections_that_need_more_files_are_doubtful(few_files: int) -> None:
    if few_files == resource.RLIM_INFINITY:
        pytest.skip("this system has no limit")

    doubt = allow_files(few_files)

    assert doubt is not None
    assert f"may have {few_files}" in doubt


@pytest.mark.parametrize("refused", [ValueError("not allowed"), PermissionError(1, "no")])
def test_a_process_that_may_not_raise_its_limit_has_the_files_that_it_has(
    few_files: int, refused: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise refused

    monkeypatch.setattr(resource, "setrlimit", refuse)
    doubt = allow_files(100)

    assert allow_files(10) is None
    assert doubt is not None
    assert "may have 256" in doubt
    monkeypatch.undo()


async def test_memory_goes_back_seldom_and_after_the_last_connection_has_ended(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed, left = list[float](), list[object]()
    connection = type("Connection", (), {})()
    connection.itself = connection
    of_connection = weakref.ref(connection)
    gc.disable()

    class Library:
        @staticmethod
        def malloc_trim(kept: int) -> int:
            trimmed.append(trio.current_time())
            left.append(of_connection())
            return 1

    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: Library)
    trimmer = Trimmer()
    async with trio.open_nursery() as nursery:
        await nursery.start(trimmer.run)
        await trio.sleep(3600)
        before = list(trimmed)
        connection = None
        began = trio.current_time()
        for _ in range(160):  # for 64 seconds
            trimmer.record_end()
            await trio.sleep(0.4)
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    gc.enable()

    assert before == []
    assert left == [None, None], "cycles are collected before"
    assert trimmed == pytest.approx([began + 60, began + 70])


def test_cycles_that_live_for_a_while_are_collected() -> None:
    """Of 200,000 objects in cycles of which 2,000 are in use at a time, few remain."""
    program = """
import gc
from collections import deque
from gateway.app.process import collect_seldom

of_the_start = [[] for _ in range(200_000)]
gc.collect()
collect_seldom()
in_use, most = deque(maxlen=20), 0
for _ in range(2_000):
    connection = [[] for _ in range(100)]
    for part in connection:
        part.append(connection)
    in_use.append(connection)
    most = max(most, len(gc.get_objects()))
print(most)
"""
    most = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert int(most) < 22_000
