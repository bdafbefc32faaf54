"""
A folder as a store of bodies; several machines may share it.

    pairgate-claims      marks the folder as the store, not an empty mount point
    00/ ... ff/          one folder for each prefix: the first two characters of the names
    ab/abcd....1790000000        a body
    ab/.abcd...          a body being written; after a crash it is deleted within an hour
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from gateway.domain.errors import StorageFull, Unavailable
from gateway.durable import FULL, make_private_folder, replace_file, sync_folder
from gateway.extensions.claims.claim import PREFIXES, ClaimCorrupt, ClaimMissing, Entry, is_name

T = TypeVar("T")
MARK: Final = "pairgate-claims"
STALE: Final = 3600.0  # seconds after which no process is still writing the file
_THREADS: Final = 8  # tasks that may wait for the disk at the same time


@attrs.define(eq=False)
class FolderStore:
    """
    Implements `ClaimStore`. Dates are those of the file system.

    A thread that waits for a dead mount is abandoned by its caller; the number of threads is small.
    """

    path: Path
    _limiter: trio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def prepare(self) -> None:
        """
        Return when the folder exists with its marker and its folders.

        Raises:
            Unavailable: the folder can't be created.
        """
        await self._do(self._prepare)

    async def put(self, name: str, data: bytes) -> None:
        await self._do(lambda: self._put(name, data))

    async def get(self, name: str, limit: int) -> bytes:
        return await self._do(lambda: self._get(name, limit))

    async def remove(self, name: str) -> None:
        await self._do(lambda: self._place(name).unlink(missing_ok=True))

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._do(lambda: self._list(prefix))

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(
                work, limiter=self._limiter, abandon_on_cancel=True
            )
        except OSError as error:
            kind = StorageFull if error.errno in FULL else Unavailable
            where = error.filename or self.path
            raise kind(f"claim store: {where}: {error.strerror}") from error
        except RuntimeError as error:  # no thread can be started
            raise Unavailable(f"claim store: {error}") from error

    def _prepare(self) -> None:
        make_private_folder(self.path)
        if self._is_there():
            return
        for prefix in PREFIXES:
            (self.path / prefix).mkdir(mode=0o700, exist_ok=True)
        replace_file(
            self.path / MARK, b"Bodies of messages: see docs/reference/claims.md of Pairgate.\n"
        )
        sync_folder(self.path.parent)

    def _put(self, name: str, data: bytes) -> None:
        replace_file(self._place(name), data)

    def _get(self, name: str, limit: int) -> bytes:
        try:
            with self._place(name).open("rb") as file:
                data = file.read(limit + 1)
        except FileNotFoundError:
            if not self._is_there():
                raise
            raise ClaimMissing(f"the store has no {name}") from None
        if len(data) > limit:
            raise ClaimCorrupt(f"{name} has more than {limit} bytes")
        return data

    def _list(self, prefix: str) -> Sequence[Entry]:
        found = []
        with os.scandir(self.path / prefix) as files:
            for file in files:
                with suppress(FileNotFoundError):  # another process has deleted the file
                    written = file.stat().st_mtime
                    if is_name(file.name):
                        found.append(Entry(file.name, datetime.fromtimestamp(written, UTC)))
                    elif file.name.startswith("."):
                        _remove_stale(Path(file.path), written)
        return found

    def _place(self, name: str) -> Path:
        if not is_name(name):
            raise ValueError(f"{name!r} isn't a name of a claim store")
        return self.path / name[:2] / name

    def _is_there(self) -> bool:
        return (self.path / MARK).exists()


def _remove_stale(path: Path, written: float) -> None:
    """
    Delete an unfinished file. Its age is measured by the file system's own clock, which may be
    another machine's.
    """
    descriptor, probe = tempfile.mkstemp(prefix=".", dir=path.parent)
    os.close(descriptor)
    now = Path(probe).stat().st_mtime
    Path(probe).unlink()
    if written + STALE < now:
        path.unlink(missing_ok=True)
