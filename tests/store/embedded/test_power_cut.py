"""
The crash ladder's last rungs, with a real kernel: `make powercut`, as root on Linux.

Ext4 drops all data that aren't on the disk, at an acknowledgement of a process at work; and a
process is killed at calls of the system, also at those of SQLite itself.
"""

import fcntl
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from gateway.store.embedded.files import StoreError
from tests.harness.store_work import World, open_committer, read_world, roomy
from tests.store.embedded import busy
from tests.store.embedded.crash_states import STORE

pytestmark = pytest.mark.powercut

ROOT = Path(__file__).parents[3]
MOST = 400  # batches
# linux/fs/ext4/ioctl.h
SHUTDOWN = 0x8004587D
NO_FLUSH_OF_THE_LOG = 2


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


@attrs.define
class LoopDisk:
    """An ext4 file system in a file."""

    image: Path
    mount: Path

    def format(self) -> None:
        with self.image.open("wb") as file:
            file.truncate(128 * 2**20)
        run("mkfs.ext4", "-q", "-F", self.image)
        self.mount.mkdir(exist_ok=True)
        self.attach()

    def attach(self) -> None:
        run("mount", "-o", "loop", self.image, self.mount)

    def cut(self) -> None:
        folder = os.open(self.mount, os.O_RDONLY)
        fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", NO_FLUSH_OF_THE_LOG))
        os.close(folder)

    def detach(self) -> None:
        run("umount", self.mount)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    disk = LoopDisk(tmp_path / "image", tmp_path / "mount")
    disk.format()
    yield disk
    disk.detach()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[World]:
    return busy.worlds_of(tmp_path_factory.mktemp("unharmed"), MOST)


def cut_at(disk: LoopDisk, acknowledgement: int, synchronous: str) -> int:
    """Cut the power there; return the last batch that was acknowledged."""
    command = [sys.executable, "-m", busy.__name__, str(disk.mount), synchronous, str(MOST)]
    acked = 0
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        for line in process.stdout:
            acked = int(line.split()[1])
            if acked == acknowledgement:
                disk.cut()
        process.kill()
    disk.detach()
    disk.attach()
    return acked


def survivors(folder: Path) -> World | None:
    """Return the content of the store; None if the store refuses to open, with a `StoreError`."""
    try:
        _committer, store = open_committer(folder / STORE, roomy())
    except StoreError:
        return None
    try:
        return read_world(store)
    finally:
        store.forsake()


@pytest.mark.parametrize("number", range(20))
def test_a_power_cut_loses_nothing(disk, worlds, number):
    acked = cut_at(disk, random.Random(number).randrange(1, 200), "FULL")

    assert acked > 0
    assert survivors(disk.mount) in worlds[acked : acked + 2]


@pytest.mark.parametrize("number", range(2))
def test_a_power_cut_without_syncs_is_seen_to_lose(disk, worlds, number):
    acked = cut_at(disk, random.Random(number).randrange(50, 200), "OFF")

    assert survivors(disk.mount) not in worlds[acked : acked + 2]


CALLS = "pwrite64,fdatasync,fsync,ftruncate,rename,unlink,write"


def test_a_kill_at_calls_of_the_system_loses_nothing(tmp_path, worlds):
    wrong: list[int] = []
    kills, call, acked = -1, 1, 0
    while acked < 6:
        kills += 1
        folder = tmp_path / str(call)
        folder.mkdir()
        acked = _killed_at(call, folder)
        if survivors(folder) not in worlds[acked : acked + 2]:
            wrong.append(call)
        call += 1 if call < 20 else 11  # all of making a store, some of the rest
    print(f"kills: {kills}")  # noqa: T201 a figure, for -rP

    assert wrong == []


def _killed_at(call: int, folder: Path) -> int:
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "--trace", CALLS]
    inject = ["--inject", f"{CALLS}:signal=KILL:when={call}"]
    command = [*strace, *inject, sys.executable, "-m", busy.__name__, str(folder), "FULL", "6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in {0, -9, 137}, done.stderr
    return len(done.stdout.splitlines())
