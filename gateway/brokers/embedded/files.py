"""The files around a store: who owns it, how far it has come, how much room there is."""

import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from gateway.domain.errors import GatewayError

_MARK: Final = struct.Struct(">QQ")  # store id, number of the last commit


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


@attrs.frozen(kw_only=True)
class Disk:
    """What a store needs of the disk beside SQLite's own calls; tests have others."""

    free_bytes: Callable[[Path], int] = free_bytes
    vfs: str | None = None  # the name of a VFS of SQLite, None for its default


@attrs.define(eq=False)
class StoreLock:
    """An flock on a file beside the store: it ends with the process, however that ends."""

    _file: int

    @classmethod
    def take(cls, path: Path) -> "StoreLock":
        """
        Raises:
            StoreInUse: somebody else has it.
        """
        file = private_file(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise StoreInUse(f"{path}: another process has this store open") from error
        return cls(file)

    def release(self) -> None:
        os.close(self._file)


@attrs.define(eq=False)
class HighWaterMark:
    """
    The number of the last commit that anybody was told of, in a file of its own.

    It's written after every commit and never synced, so that it's behind the store after a power
    loss, but never ahead: a store that is behind its mark has lost what it had acknowledged
    (bit rot, a disk that lies, a wrong restore).
    """

    _file: int
    _path: Path
    _store_id: int

    @classmethod
    def open(cls, path: Path, store_id: int, commits: int) -> "HighWaterMark":
        """
        Check the mark against the store's count of commits.

        Raises:
            StoreDamaged: the store is behind, or is another one.
        """
        file = private_file(path)
        mark = cls(file, path, store_id)
        try:
            mark._check(commits)
        except StoreDamaged:
            os.close(file)
            raise
        mark.set(commits)
        return mark

    def set(self, commits: int) -> None:
        os.pwrite(self._file, _MARK.pack(self._store_id, commits), 0)

    def close(self) -> None:
        os.close(self._file)

    def _check(self, commits: int) -> None:
        written = os.pread(self._file, _MARK.size, 0)
        if len(written) < _MARK.size:
            return
        store_id, marked = _MARK.unpack(written)
        if store_id != self._store_id:
            raise StoreDamaged(f"{self._path} belongs to another store: a file was exchanged")
        if commits < marked:
            raise StoreDamaged(
                f"{self._path} says {marked} commits, the store has {commits}: acknowledged"
                " messages are missing; remove the file only if that loss is accepted"
            )
