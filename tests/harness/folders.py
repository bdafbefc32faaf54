"""Folders in memory: the servers and stores of most tests wait for a disk more than they work."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, TypeVar

import attrs
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


@attrs.define(eq=False)
class _Kept:
    servers: Any
    ending: ExitStack
    fixtures: int = 0


_KEPT: Final[dict[Callable[[Path], Any], _Kept]] = {}  # by what begins them


def kept_in(factory: pytest.TempPathFactory, name: str, begin: Callable[[Path], E]) -> Iterator[E]:
    """
    A fixture of servers in a new folder in memory.

    A fixture that several modules import is one for each of them: all that have the same `begin`
    share the servers, which end with the last of the fixtures.
    """
    kept = _KEPT.get(begin)
    if kept is None:
        with ExitStack() as stack:
            servers = begin(stack.enter_context(in_memory(factory.mktemp(name))))
            stack.callback(servers.end)
            kept = _KEPT[begin] = _Kept(servers, stack.pop_all())
    kept.fixtures += 1
    yield kept.servers
    kept.fixtures -= 1
    if not kept.fixtures:
        del _KEPT[begin]
        kept.ending.close()


def _room_at(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
