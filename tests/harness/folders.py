"""Folders in memory: the servers and stores of most tests wait for a disk more than they work."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol, TypeVar

import pytest

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 4 * 1024**3  # bytes; the nodes of all processes of tests take less than one GiB


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A new folder in memory, where a sync costs nothing; where there is no room, `otherwise`."""
    if not MEMORY.is_dir() or _room_at(MEMORY) < ROOM:  # a container's has 64 MiB
        yield otherwise
        return
    with TemporaryDirectory(dir=MEMORY, prefix="pairgate-", ignore_cleanup_errors=True) as name:
        yield Path(name)


class Ends(Protocol):
    """Servers in a folder, which `end` stops."""

    def end(self) -> None: ...


E = TypeVar("E", bound=Ends)


def kept_in(factory: pytest.TempPathFactory, name: str, begin: Callable[[Path], E]) -> Iterator[E]:
    """A fixture of servers in a new folder in memory, which end with it."""
    with in_memory(factory.mktemp(name)) as folder:
        servers = begin(folder)
        yield servers
        servers.end()


def _room_at(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
