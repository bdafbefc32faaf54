"""
Opens a store: by one process only, only in a place where it can keep its promises, and only
undamaged. A store that differs from its state at the last close is refused and stays unchanged, for
an operator to check.

The place is checked, too: whether a store can keep its promises on its file system.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import attrs

from gateway.domain.clocks.clock_note import ClockNote, read_note
from gateway.durable import make_private_folder
from gateway.store.embedded import schema
from gateway.store.embedded.checksums import fitting
from gateway.store.embedded.files import (
    Disk,
    HighWaterMark,
    Mark,
    StoreDamaged,
    StoreError,
    StoreLock,
    has_log,
    log_path,
    lost,
    mark_path,
    read_ahead,
    read_mark,
)

# File systems where another machine decides about locks and syncs: SQLite advises against them.
_REMOTE: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "lustre",
        "fuse.glusterfs",
        "fuse.sshfs",
    }
)
_DOUBTFUL: Final = {
    "tmpfs": "in memory: it ends with the machine",
    "ramfs": "in memory: it ends with the machine",
    "overlay": "in a container's own layer: it ends with the container; mount a volume",
    "9p": "shared by a host, whose syncs may promise less than a disk's",
    "virtiofs": "shared by a host, whose syncs may promise less than a disk's",
}
_FASTEST_DISK: Final = 20e-6  # seconds per sync; in memory a sync takes 1 µs


def place_doubts(path: Path, lock: StoreLock, disk: Disk) -> Iterator[str]:
    """
    Yield the doubts about the folder and the file system of a locked store.

    Raises:
        StoreError: the store is on a network file system.
    """
    kind = disk.file_system(path.parent)
    if kind in _REMOTE:
        raise StoreError(
            f"{path}: on a network file system ({kind}) neither locks nor syncs are reliable;"
            " put the store on a disk of this machine"
        )
    found = path.parent.stat()
    if found.st_mode & stat.S_IWOTH:
        yield (
            f"{path.parent}: every user of this machine can change this folder (mode"
            f" {stat.S_IMODE(found.st_mode):04o}), and with it the store; run chmod o-w on it"
        )
    elif found.st_uid not in {0, os.geteuid()}:
        yield f"{path.parent} belongs to another user ({found.st_uid}), who can change the store"
    if kind in _DOUBTFUL:
        yield f"{path} is on {kind}, {_DOUBTFUL[kind]}"
    elif (seconds := disk.sync_seconds(lock.file)) < _FASTEST_DISK:
        yield (
            f"{path}: a sync takes {seconds * 1e6:.0f} µs, which no disk can do:"
            " a power cut may lose acknowledged messages"
        )


# A quick check reads everything: half a second to four seconds per GiB, depending on the disk.
CHECKED: Final = 1024**3  # bytes of a store that is checked at each opening
CHECKED_IF_UNCLEAN: Final = 8 * 1024**3  # the same, after a crash
_CHECK: Final = "`pairgate store check`"
SALVAGE: Final = f"{_CHECK} says what else is, and makes a new store with `--salvage`"
_ACCEPT: Final = "`pairgate store check --accept-loss` lets it start all the same"


@attrs.frozen(kw_only=True)
class OpenStore:
    """An open store, owned by this process until the lock is released."""

    connection: apsw.Connection
    lock: StoreLock
    mark: HighWaterMark
    commits: int
    next_sequence: int
    survivors: int  # messages with lower numbers were in the store at an unclean end
    doubts: tuple[str, ...]  # for the operator
    identity: int  # shared by all copies of the store
    clock: ClockNote


def open_store(
    path: Path,
    new_id: Callable[[], int],
    disk: Disk,
    *,
    checked: int = CHECKED,
    checked_if_unclean: int = CHECKED_IF_UNCLEAN,
) -> OpenStore:
    """
    Open the store, or create it if it doesn't exist; `new_id` returns a store id of 63 bits. Pages
    are checked if the store is of at most `checked` bytes; after an unclean end, of at most
    `checked_if_unclean` bytes.

    Raises:
        StoreInUse, StoreDamaged, StoreError: it can't be used; the text says why.
    """
    with errors_in_words(path):
        make_private_folder(path.parent)
        lock = StoreLock.acquire(path)
        try:
            return _open(
                path, new_id, disk, lock, most_clean=checked, most_unclean=checked_if_unclean
            )
        except BaseException:
            lock.release()
            raise


@contextmanager
def errors_in_words(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into a `StoreError` that names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error
    except apsw.CorruptError as error:
        raise StoreDamaged(f"{path}: {error}; {_CHECK} says how much") from error
    except apsw.Error as error:
        raise StoreError(f"{path}: {error}") from error


def store_row(connection: apsw.Connection) -> tuple[Mark, int]:
    """The store's id and number of commits, and its next sequence number."""
    store_id, commits, sequence = connection.execute(
        "SELECT store_id, commits, next_sequence FROM store"
    ).get
    return Mark(store_id=store_id, commits=commits), sequence


def check_log(path: Path, vfs: str | None) -> None:
    """
    Check that the log belongs to the store. SQLite accepts any log and would mix the two; the log
    of another store contains that store's id.

    Raises:
        StoreDamaged: the log belongs to another store.
    """
    if not has_log(path):
        return
    with_log = _id_in(partial(schema.reading, path, vfs))
    alone = _id_in(partial(schema.reading_without_log, path, vfs))
    if alone is not None and with_log is not None and alone != with_log:
        raise StoreDamaged(
            f"{log_path(path)} is the log of another store; move it away: commits that only it"
            " has aren't in this store"
        )


def _id_in(reading: Callable[[], AbstractContextManager[apsw.Connection]]) -> int | None:
    """The store's id; None if damage, or a crash during a checkpoint, has left no readable page."""
    with suppress(apsw.Error, StoreDamaged, TypeError), reading() as connection:
        if not schema.flaws(connection, "integrity_check(store)"):
            return store_row(connection)[0].store_id
    return None


def _open(
    path: Path,
    new_id: Callable[[], int],
    disk: Disk,
    lock: StoreLock,
    *,
    most_clean: int,
    most_unclean: int,
) -> OpenStore:
    doubts = [*place_doubts(path, lock, disk)]
    if not path.exists():
        _refuse_to_begin_anew(path)
        schema.create(path, new_id())
    os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))  # reports errors that SQLite doesn't name
    unclean = has_log(path)
    checked = path.stat().st_size <= (most_unclean if unclean else most_clean)
    if checked:
        read_ahead(path)
    elif unclean:
        doubts.append(f"{path}: large, and not checked after an unclean end; {_CHECK}")
    check_log(path, disk.vfs)
    connection = schema.connect(path, disk.vfs)
    try:
        if checked:
            _check_pages(connection, path)
        _check_row(connection, path)
        found, sequence = store_row(connection)
        survivors: int | None
        survivors, identity, clock = connection.execute(
            "SELECT survivors, identity, clock FROM store"
        ).get
        doubts += _compare(path, found)
        if unclean:
            _move_log(connection)
        mark = HighWaterMark.begin(mark_path(path), found)
    except BaseException:
        schema.forsake(connection)
        raise
    return OpenStore(
        connection=connection,
        lock=lock,
        mark=mark,
        commits=found.commits,
        next_sequence=sequence,
        survivors=sequence if survivors is None else survivors,
        doubts=tuple(doubts),
        identity=identity,
        clock=read_note(clock),
    )


def _refuse_to_begin_anew(path: Path) -> None:
    for left in (mark_path(path), log_path(path)):
        if left.exists():
            raise StoreDamaged(f"{path} is gone, and {left} says that it was there")


def _check_pages(connection: apsw.Connection, path: Path) -> None:
    # The quick check doesn't compare indexes with their tables: a message that is missing from an
    # index only would never be delivered.
    if flaws := schema.flaws(connection, "integrity_check(1)"):
        raise StoreDamaged(f"{path}: damaged: {flaws[0]}; {_CHECK} says how much")


def _check_row(connection: apsw.Connection, path: Path) -> None:
    if not connection.execute(f"SELECT checksum = {fitting('store')} FROM store").get:
        raise StoreDamaged(f"{path}: the row of its table `store` is damaged; {SALVAGE}")


def _move_log(connection: apsw.Connection) -> None:
    """
    Write the found state to the disk, before it is marked and shown to any client.

    The last commit of a killed process may never have been synced. If its sync had failed, the log
    may never reach the disk, whatever a later sync says, and all later commits in the log would be
    unreadable. So its content is written into the store.
    """
    # The sync of the store can wait: SQLite has synced the log first.
    with suppress(apsw.FullError):
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def _compare(path: Path, found: Mark) -> list[str]:
    marks = mark_path(path)
    mark = read_mark(marks)
    if loss := lost(marks, mark, found):
        raise StoreDamaged(f"{loss}; {_ACCEPT}")
    if mark is None and found.commits > 0:
        return [f"{marks} is missing: if commits are missing too, nobody notices"]
    return []
