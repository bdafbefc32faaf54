"""
A folder as a store of bodies; several machines may share it.

    pairgate-claims      marks the folder as the store, not an empty mount point
    clock-BOOT           by the id of a machine's boot: the date of that boot, in microseconds since
                         1970, by the wall clock before it was set forward
    00/ ... ff/          one folder for each prefix: the first two characters of the names
    ab/abcd....1790000000        a body
    ab/.abcd...          a body being written; after a crash it is deleted within an hour
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from errno import ENOENT
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from gateway.domain.clocks.clock_note import BUILT, LARGE, Boot
from gateway.domain.clocks.times import to_date
from gateway.domain.errors import StorageFull, Unavailable, starting_thread
from gateway.durable import FULL, make_private_folder, replace_file, sync_folder
from gateway.extensions.claims.claim import PREFIXES, ClaimCorrupt, ClaimMissing, Entry, is_name
from gateway.store.embedded.files import this_boot

T = TypeVar("T")
MARK: Final = "pairgate-claims"
CLOCK: Final = "clock-"
STALE: Final = 3600.0  # seconds after which no process is still writing the file
_THREADS: Final = 8  # tasks that may wait for the disk at the same time


@attrs.define(eq=False)
class FolderStore:
    """
    Implements `ClaimStore`. Dates are those of the file system.

    A thread that waits for a dead mount is abandoned by its caller; the number of threads is small.
    """

    path: Path
    _boot: Callable[[], Boot | None] = this_boot
    _limiter: trio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def prepare(self) -> None:
        """
        Return when the folder exists with its marker and its folders, and the clock is noted.

        Raises:
            Unavailable: the folder can't be created.
        """
        await self._do(self._prepare)
        await self.date()  # notes the clock

    async def put(self, name: str, data: bytes) -> None:
        await self._do(lambda: self._put(name, data))

    async def get(self, name: str, limit: int) -> bytes:
        return await self._do(lambda: self._get(name, limit))

    async def remove(self, name: str) -> None:
        await self._do(lambda: self._place(name).unlink(missing_ok=True))

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._do(lambda: self._list(prefix))

    async def date(self) -> datetime:
        """
        As `ClaimStore.date`. A clock that is set forward by more than a day isn't believed before
        the machine's next boot, unless it showed a date before this program was built.
        """
        return to_date(await self._do(self._date))

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            with starting_thread():
                return await trio.to_thread.run_sync(
                    work, limiter=self._limiter, abandon_on_cancel=True
                )
        except OSError as error:
            kind = StorageFull if error.errno in FULL else Unavailable
            where = error.filename or self.path
            raise kind(f"claim store: {where}: {error.strerror}") from error

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

    def _date(self) -> int:
        if not self._is_there():
            raise FileNotFoundError(ENOENT, "the store isn't there", str(self.path))
        wall, boot = round(_now_in(self.path) * 1e6), self._boot()
        if boot is None:
            return wall
        note = self.path / f"{CLOCK}{boot.id}"
        began = _began(note)
        if began is None or wall - boot.elapsed < began or began + boot.elapsed < BUILT:
            began = wall - boot.elapsed
            replace_file(note, str(began).encode())
        told = began + boot.elapsed
        return told if wall - told > LARGE * 1e6 else wall

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
    if written + STALE < _now_in(path.parent):
        path.unlink(missing_ok=True)


def _now_in(folder: Path) -> float:
    """The time by the clock of the folder's file system, in seconds since 1970."""
    descriptor, probe = tempfile.mkstemp(prefix=".", dir=folder)
    os.close(descriptor)
    now = Path(probe).stat().st_mtime
    Path(probe).unlink()
    return now


def _began(note: Path) -> int | None:
    """The date in the note of a boot; None: there is none, or it can't be read."""
    try:
        return int(note.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
