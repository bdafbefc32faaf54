"""
The files beside a store: its lock, its high-water mark, the disk they are on, and the machine's
boot, which a store compares with that of its last commit.
"""

import fcntl
import functools
import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from gateway.domain.clocks.clock_note import Boot
from gateway.domain.errors import GatewayError

_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> Boot | None:
    """The machine's boot; None: the system doesn't tell."""
    name = _name()
    return Boot(name, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000) if name else None


def no_boot() -> Boot | None:
    """As for a system that doesn't tell."""
    return None


@functools.cache  # each commit asks, and a process doesn't outlive the boot
def _name() -> str:
    try:
        return _ID.read_text().strip()
    except OSError:
        return ""


_MARK: Final = struct.Struct(">QQ")  # store id, number of the last commit
_MOUNTS: Final = Path("/proc/self/mountinfo")  # see proc(5)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_SYNCS: Final = 5  # a median of five isn't moved by two slow ones
_AHEAD: Final = 1024 * 1024  # large enough for a disk to read in sequence, small in memory


class StoreError(GatewayError):
    """A store can't be opened; the text says why."""


class StoreInUse(StoreError):
    """Another process has the store open (exit code 75)."""


class StoreDamaged(StoreError):
    """The store differs from its last written state: an operator must check it."""


def private_file(path: Path) -> int:
    """
    Open a file that only this user may access; create it if it is missing. Raises OSError, also if
    the path is a symbolic link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def free_bytes(path: Path) -> int:
    """The bytes that an ordinary user may still write on the disk that holds `path`."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the file system that holds `path`, as Linux names it; "" if unknown."""
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
    """Return the duration of a sync of that file, in seconds: the median of a few tries."""
    tries = []
    for _ in range(_SYNCS):
        began = time.perf_counter()
        os.pwrite(file, b"\0", 0)
        os.fdatasync(file)
        tries.append(time.perf_counter() - began)
    return sorted(tries)[_SYNCS // 2]


def read_ahead(path: Path) -> None:
    """
    Read a file from beginning to end, so that the operating system has it in memory afterwards.

    SQLite reads pages in the order of its trees, which took seven times as long. Only for a
    database that this process doesn't have open: closing a file releases all locks of the process
    on it.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while os.read(file, _AHEAD):
            continue
    finally:
        os.close(file)


@attrs.frozen(kw_only=True)
class Disk:
    """The operations on the disk that a store needs besides SQLite's own; tests replace them."""

    free_bytes: Callable[[Path], int] = free_bytes
    file_system: Callable[[Path], str] = file_system
    sync_seconds: Callable[[int], float] = sync_seconds
    boot: Callable[[], Boot | None] = no_boot
    vfs: str | None = None  # the name of an SQLite VFS; None: the default


@attrs.define(eq=False)
class StoreLock:
    """An flock on a file beside the store. It ends with the process, however the process ends."""

    file: int

    @classmethod
    def acquire(cls, store: Path) -> "StoreLock":
        """
        Lock the store.

        Raises:
            StoreInUse: another process has locked it.
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
    """The id of a store, and the number of the last commit that was acknowledged."""

    store_id: int
    commits: int


def mark_path(store: Path) -> Path:
    return store.with_name(f"{store.name}.hwm")


def log_path(store: Path) -> Path:
    return store.with_name(f"{store.name}-wal")


def has_log(store: Path) -> bool:
    """True if the log has commits that aren't in the store: the store wasn't closed in order."""
    log = log_path(store)
    return log.exists() and log.stat().st_size > 0


def read_mark(path: Path) -> Mark | None:
    """
    The mark in the file; None if the file has none, or if a crash cut its first writing short.
    """
    if not path.exists():
        return None
    written = path.read_bytes()
    if len(written) < _MARK.size:
        return None
    store_id, commits = _MARK.unpack_from(written)
    return Mark(store_id=store_id, commits=commits)


def lost(path: Path, mark: Mark | None, found: Mark) -> str:
    """
    The text of the error if the mark in that file and the store contradict each other, else "".
    """
    if mark is None:
        return ""
    if mark.store_id != found.store_id:
        return f"{path} belongs to another store: one of the two files was replaced"
    if found.commits < mark.commits:
        return (
            f"{path} says {mark.commits} commits, the store has {found.commits}:"
            " acknowledged messages are missing"
        )
    return ""


@attrs.define(eq=False)
class HighWaterMark:
    """
    The mark of an open store, in a file of its own.

    It is written after every commit and never synced, so after a power loss it may be behind the
    store, but never ahead. A store that is behind its mark has lost acknowledged commits (bit rot,
    a lying disk, a wrong restore).
    """

    _file: int
    _store_id: int

    @classmethod
    def begin(cls, path: Path, mark: Mark) -> "HighWaterMark":
        """Write the current mark. The caller has compared the old one."""
        opened = cls(private_file(path), mark.store_id)
        opened.set(mark.commits)
        return opened

    def set(self, commits: int) -> None:
        os.pwrite(self._file, _MARK.pack(self._store_id, commits), 0)

    def is_held(self) -> bool:
        """True while a backup, in another process, needs the log as it is."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        os.close(self._file)
