"""A store whose process is killed at any call to the disk has all acknowledged messages."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.store_work import World, open_committer, read_world, roomy
from tests.store.embedded import mortal
from tests.store.embedded.crash_states import STORE

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory) -> list[World]:
    """The content that the store must have after each batch: the same work, without a kill."""
    return mortal.live(tmp_path_factory.mktemp("unharmed"), lambda _: None)


@pytest.fixture
def nursery(request) -> Iterator[subprocess.Popen[str]]:
    work = getattr(request, "param", ())
    command = [sys.executable, "-m", "tests.store.embedded.mortal", *work]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


def last_words(nursery: subprocess.Popen[str], calls: int, folder: Path) -> tuple[int, bool]:
    """The number of the last batch that was acknowledged, and whether the process lived."""
    print(calls, folder, file=nursery.stdin, flush=True)
    acked = 0
    for line in nursery.stdout:
        match line.split():
            case ["acked", number]:
                acked = int(number)
            case [end]:
                return acked, end == "lived"
    raise RuntimeError("the nursery has died")


def kill_at_each_call(
    folder: Path, nursery: subprocess.Popen[str], worlds: list[World]
) -> tuple[int, int, list[int]]:
    """
    Kill a process at its first call to the disk, the next one at its second, until one survives.

    Returns the number of batches that the last process acknowledged, the number of processes, and
    the calls after whose kill the store lacked an acknowledged message.
    """
    wrong: list[int] = []
    calls, acked, lived = 0, 0, False
    while not lived:
        calls += 1
        place = folder / str(calls)
        place.mkdir()
        acked, lived = last_words(nursery, calls, place)
        _committer, store = open_committer(place / STORE, roomy())
        if read_world(store) not in worlds[acked : acked + 2]:
            wrong.append(calls)
        store.forsake()
    return acked, calls, wrong


@pytest.mark.slow
def test_a_kill_at_any_call_to_the_disk_loses_nothing(folder, nursery, worlds):
    acked, calls, wrong = kill_at_each_call(folder, nursery, worlds)
    print(f"kills: {calls - 1}")  # noqa: T201 a figure, for -rP

    assert acked == len(worlds) - 1
    assert calls > 300
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("nursery", [("transactions",)], indirect=True)
def test_a_kill_at_any_call_to_the_disk_leaves_whole_transactions(folder, nursery):
    worlds = mortal.live_transactions(folder, lambda _: None)

    acked, calls, wrong = kill_at_each_call(folder, nursery, worlds)

    assert acked == len(worlds) - 1 == 5
    assert calls > 100
    assert wrong == []
