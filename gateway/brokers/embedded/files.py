"""The files around a store: who owns it, how far it has come, and the disk below them."""

import fcntl
import os
import re
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from gateway.domain.errors import GatewayError

_MARK: Final = struct.Struct(">QQ")  # store id, number of the last commit
_MOUNTS: Final = Path("/proc/self/mountinfo")  # see proc(5)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_SYNCS: Final = 5
_AHEAD: Final = 1024 * 1024


class StoreError(GatewayError):
    """A store can't be opened as it is; the text says why."""


class StoreInUse(StoreError):
    """Another process has the store open (exit code 75)."""


class StoreDamaged(StoreError):
    """The store isn't what it was when it was last written: somebody must look."""


def private_directory(path: Path) -> None:
    """Make the folder, for us alone; one that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def private_file(path: Path) -> int:
    """Open a file for us alone, made where missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def sync_directory(path: Path) -> None:
    """SQLite ignores errors when it syncs a folder; we don't."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the disk that holds `path`."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system that holds `path`, as Linux names it; "" where nobody says."""
    place, longest, kind = path.resolve(), -1, ""
    if not mounts.exists():
        return kind
    for line in os.fsdecode(mounts.read_bytes()).splitlines():
        mount, _, source = line.partition(" - ")
        folder = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), mount.split()[4]))
        if len(folder.parts) >= longest and place.is_relative_to(folder):
            longest, kind = len(folder.parts), source.split()[0]
    return kind


def sync_seconds(file: int) -> float:
    """How long that file takes to be on the disk: the median of a few tries."""
    tries = []
    for _ in range(_SYNCS):
        began = time.perf_counter()
        os.pwrite(file, b"\0", 0)
        os.fdatasync(file)
        tries.append(time.perf_counter() - began)
    return statistics.median(tries)


def read_ahead(path: Path) -> None:
    """
    Have the system read a file from its beginning to its end, so that it's in memory afterwards.

    SQLite reads pages in the order of its trees, which took seven times as long. For a database
    that this process hasn't open: to close a file takes away the locks of all who have it open.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while os.read(file, _AHEAD):
            continue
    finally:
        os.close(file)


@attrs.frozen(kw_only=True)
class Disk:
    """What a store needs of the disk beside SQLite's own calls; tests have others."""

    free_bytes: Callable[[Path], int] = free_bytes
    file_system: Callable[[Path], str] = file_system
    sync_seconds: Callable[[int], float] = sync_seconds
    vfs: str | None = None  # the name of a VFS of SQLite, None for its default


@attrs.define(eq=False)
class StoreLock:
    """An flock on a file beside the store: it ends with the process, however that ends."""

    file: int

    @classmethod
    def take(cls, store: Path) -> "StoreLock":
        """
        Raises:
            StoreInUse: somebody else has it.
        """
        path = store.with_name(f"{store.name}.lock")
        file = private_file(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise StoreInUse(f"{store}: another process has this store open") from error
        return cls(file)

    def release(self) -> None:
        os.close(self.file)


@attrs.frozen(kw_only=True)
class Mark:
    """Which store, and the number of the last commit that anybody was told of."""

    store_id: int
    commits: int


def mark_path(store: Path) -> Path:
    return store.with_name(f"{store.name}.hwm")


def log_path(store: Path) -> Path:
    return store.with_name(f"{store.name}-wal")


def has_log(store: Path) -> bool:
    """Whether commits stand in the log alone: nobody closed the store when it was last used."""
    log = log_path(store)
    return log.exists() and log.stat().st_size > 0


def read_mark(path: Path) -> Mark | None:
    """What is marked; None where there is no mark, or a crash has cut its first writing short."""
    if not path.exists():
        return None
    written = path.read_bytes()
    if len(written) < _MARK.size:
        return None
    store_id, commits = _MARK.unpack_from(written)
    return Mark(store_id=store_id, commits=commits)


def lost(path: Path, mark: Mark | None, found: Mark) -> str:
    """What is wrong when the mark in that file says one thing and the store another, else ""."""
    if mark is None:
        return ""
    if mark.store_id != found.store_id:
        return f"{path} belongs to another store: a file was exchanged"
    if found.commits < mark.commits:
        return (
            f"{path} says {mark.commits} commits, the store has {found.commits}:"
            " acknowledged messages are missing"
        )
    return ""


@attrs.define(eq=False)
class HighWaterMark:
    """
    The mark of a store that is open, in a file of its own.

    It's written after every commit and never synced, so that it's behind the store after a power
    loss, but never ahead: a store that is behind its mark has lost what it had acknowledged
    (bit rot, a disk that lies, a wrong restore).
    """

    _file: int
    _store_id: int

    @classmethod
    def begin(cls, path: Path, mark: Mark) -> "HighWaterMark":
        """Write what is true now; whatever was there was looked at before."""
        opened = cls(private_file(path), mark.store_id)
        opened.set(mark.commits)
        return opened

    def set(self, commits: int) -> None:
        os.pwrite(self._file, _MARK.pack(self._store_id, commits), 0)

    def close(self) -> None:
        os.close(self._file)
