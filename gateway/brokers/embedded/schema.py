"""The tables of a store, and the settings under which SQLite keeps its promises."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from gateway.brokers.embedded.checksums import sealing, teach
from gateway.brokers.embedded.files import (
    StoreDamaged,
    has_log,
    private_file,
    sync_directory,
)
from gateway.brokers.embedded.tables import MIGRATIONS, TABLES, VERSION

APPLICATION_ID: Final = 0x50474154  # "PGAT"
WAL_CAP: Final = 16 * 1024 * 1024  # bytes

# A store that goes on after a loss, or from a copy, gives out sequence numbers from here up: a
# number that a client still remembers finds nothing, and never another message.
EPOCH: Final = 2**32

# In this order; each is read back. Why each one: reference/reliability.md, 5.1.
PRAGMAS: Final[tuple[tuple[str, str | int, str | int], ...]] = (
    # Before WAL: no second process, no shared memory file.
    ("locking_mode", "exclusive", "exclusive"),
    ("journal_mode", "wal", "wal"),
    ("synchronous", "FULL", 2),
    # The writer thread checkpoints when it has time.
    ("wal_autocheckpoint", 0, 0),
    ("journal_size_limit", WAL_CAP, WAL_CAP),
    # A read error is to be an error, not a signal that ends the process.
    ("mmap_size", 0, 0),
    ("cache_size", -32768, -32768),
    ("temp_store", "MEMORY", 2),
    ("foreign_keys", "ON", 1),
    ("trusted_schema", "OFF", 0),
    ("cell_size_check", "ON", 1),
    ("secure_delete", "FAST", 2),
)

# For those who only look.
_READING: Final = frozenset({"locking_mode", "mmap_size", "temp_store", "trusted_schema"})


def create(path: Path, store_id: int) -> None:
    """Make an empty store: after a crash at any moment it's there as a whole, or not at all."""
    with drafted(path) as draft:
        connection = fill(draft, store_id)
        connection.close()


def fill(draft: Path, store_id: int) -> apsw.Connection:
    """Make the tables in an empty file, which is safe only once it's no draft any more."""
    connection = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        teach(connection)
        connection.execute(f"BEGIN; {TABLES}")
        connection.execute(
            "INSERT INTO store (id, store_id, commits, next_sequence) VALUES (1, ?, 0, 1)",
            (store_id,),
        )
        connection.execute(f"{sealing('store')}; COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """
    An empty file to be filled, which afterwards is synced and has that path.

    After an error it's gone, and after a crash it's begun anew.
    """
    draft = path.with_name(f"{path.name}.new")
    leftovers = [draft, *(Path(f"{draft}{ending}") for ending in ("-journal", "-wal"))]
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    file = private_file(draft)
    try:
        yield draft
        os.fsync(file)
        draft.rename(path)
    except BaseException:
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    sync_directory(path.parent)


def connect(path: Path, vfs: str | None = None) -> apsw.Connection:
    """
    Open a store under the settings above; one of an earlier version is brought to this one.

    Raises:
        StoreDamaged: it is no store of ours, of another version, or SQLite won't promise enough.
        apsw.Error: it can't be read.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        _set(connection, *PRAGMAS[0])
        _check_identity(connection, path)
        # Else SQLite makes a new plan whenever a parameter has another value: ten times slower.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for name, value, expected in PRAGMAS:
            _set(connection, name, value, expected)
        teach(connection)
        _migrate(connection)
    except apsw.NotADBError as error:
        forsake(connection)
        raise StoreDamaged(f"{path}: not a store") from error
    except BaseException:
        forsake(connection)
        raise
    return connection


def flaws(connection: apsw.Connection, check: str) -> list[str]:
    """What an `integrity_check(...)` finds, a line each."""
    lines: list[str] = []
    try:
        for (text,) in connection.execute(f"PRAGMA {check}"):
            lines += str(text).splitlines()
    except apsw.CorruptError as error:
        lines.append(str(error))
    return [line for line in lines if line != "ok" and not line.startswith("*** in database")]


def forsake(connection: apsw.Connection) -> None:
    """Close, and write nothing more: what is in the log stays there, and only there."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(force=True)


@contextlib.contextmanager
def reading(path: Path, vfs: str | None = None) -> Iterator[apsw.Connection]:
    """
    A store as it is, with what its log holds, and neither of them is changed.

    Raises:
        StoreDamaged: it is no store of ours, or of a later version.
        apsw.Error: it can't be read.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        if has_log(path):
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for name, value, expected in PRAGMAS:
            if name in _READING:
                _set(connection, name, value, expected)
        _check_identity(connection, path)
        teach(connection)
        yield connection
    except apsw.NotADBError as error:
        raise StoreDamaged(f"{path}: not a store") from error
    finally:
        connection.close(force=True)


@contextlib.contextmanager
def reading_without_log(path: Path, vfs: str | None = None) -> Iterator[apsw.Connection]:
    """The database file alone, which a crash in a checkpoint may have left half old, half new."""
    connection = apsw.Connection(
        f"{path.absolute().as_uri()}?immutable=1",
        flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        vfs=vfs,
    )
    try:
        yield connection
    finally:
        connection.close(force=True)


def _check_identity(connection: apsw.Connection, path: Path) -> None:
    if connection.pragma("application_id") != APPLICATION_ID:
        raise StoreDamaged(f"{path}: not a store of this gateway")
    version = connection.pragma("user_version")
    if version != VERSION and version not in MIGRATIONS:
        raise StoreDamaged(f"{path}: version {version} of the tables, {VERSION} expected")


def _migrate(connection: apsw.Connection) -> None:
    """All in one transaction: after a crash the store has the one version or the other."""
    version = connection.pragma("user_version")
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(MIGRATIONS[version])
    connection.execute(f"PRAGMA user_version = {VERSION}; COMMIT")


def _set(connection: apsw.Connection, name: str, value: str | int, expected: str | int) -> None:
    connection.execute(f"PRAGMA {name} = {value}")
    if (actual := connection.pragma(name)) != expected:
        raise StoreDamaged(f"PRAGMA {name} is {actual!r}, not {expected!r}")
