"""
Creates and opens the database of a store, with the settings under which SQLite keeps its promises.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw

from gateway.durable import sync_folder
from gateway.store.embedded.checksums import sealing, teach
from gateway.store.embedded.files import StoreDamaged, has_log, private_file
from gateway.store.embedded.tables import MIGRATIONS, TABLES, VERSION

APPLICATION_ID: Final = 0x50474154  # "PGAT"
WAL_CAP: Final = 16 * 1024 * 1024  # bytes: four times `upkeep._CHECKPOINT_PAGES`

# The number of sequence numbers that a store skips when it continues after a loss, or from a copy:
# a number that a client still remembers then names no message, rather than another one.
EPOCH: Final = 2**32

# The pragma's name, the value to set, the value to read back.
Pragma = tuple[str, str | int, str | int]

# In this order; each is read back.
PRAGMAS: Final[tuple[Pragma, ...]] = (
    # Before WAL: no second process, no shared memory file.
    ("locking_mode", "exclusive", "exclusive"),
    ("journal_mode", "wal", "wal"),
    ("synchronous", "FULL", 2),
    # The writer thread runs checkpoints when it has time.
    ("wal_autocheckpoint", 0, 0),
    ("journal_size_limit", WAL_CAP, WAL_CAP),
    # A read error must be an error, not a signal that ends the process.
    ("mmap_size", 0, 0),
    ("cache_size", -32768, -32768),
    ("temp_store", "MEMORY", 2),
    ("foreign_keys", "ON", 1),
    ("trusted_schema", "OFF", 0),
    ("cell_size_check", "ON", 1),
    ("secure_delete", "FAST", 2),
)

# The settings for connections that only read.
_READING: Final = frozenset({"locking_mode", "mmap_size", "temp_store", "trusted_schema"})


def create(path: Path, store_id: int) -> None:
    """Create an empty store. After a crash at any moment the file is complete, or missing."""
    with drafted(path) as draft:
        connection = fill(draft, store_id)
        connection.close()


def fill(draft: Path, store_id: int) -> apsw.Connection:
    """
    Create the tables in an empty file. They are durable only once the draft has its final name.
    """
    connection = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        teach(connection)
        connection.execute(f"BEGIN; {TABLES}")
        connection.execute(
            "INSERT INTO store (id, store_id, commits, next_sequence, identity)"
            " VALUES (1, ?1, 0, 1, ?1)",
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
    Yield an empty file to fill, which is synced and renamed to `path` afterwards.

    After an error the file is deleted; after a crash, the next call starts again.
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
    sync_folder(path.parent)  # SQLite ignores errors of its own sync of the folder


def connect(
    path: Path, vfs: str | None = None, *, pragmas: Sequence[Pragma] = PRAGMAS
) -> apsw.Connection:
    """
    Open a store with the settings `pragmas`; a store of an earlier version is migrated.

    Raises:
        StoreDamaged: the file isn't a store of this program or has an unknown version, or SQLite
            refuses a setting.
        apsw.Error: it can't be read.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        _set(connection, *pragmas[0])
        _check_identity(connection, path)
        # Otherwise SQLite makes a new plan for each new value of a parameter: ten times slower.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for name, value, expected in pragmas:
            _set(connection, name, value, expected)
        teach(connection)
        migrate(connection)
    except apsw.NotADBError as error:
        forsake(connection)
        raise StoreDamaged(f"{path}: not a store") from error
    except BaseException:
        forsake(connection)
        raise
    return connection


def flaws(connection: apsw.Connection, check: str) -> list[str]:
    """The findings of `PRAGMA integrity_check(...)`, one a line."""
    lines: list[str] = []
    try:
        for (text,) in connection.execute(f"PRAGMA {check}"):
            lines += str(text).splitlines()
    except apsw.CorruptError as error:
        lines.append(str(error))
    return [line for line in lines if line != "ok" and not line.startswith("*** in database")]


def forsake(connection: apsw.Connection) -> None:
    """Close without writing: the content of the log stays in the log only."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(force=True)


@contextlib.contextmanager
def reading(path: Path, vfs: str | None = None) -> Iterator[apsw.Connection]:
    """
    Read a store together with its log; neither is changed.

    Raises:
        StoreDamaged: the file isn't a store of this program, or is of a later version.
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
    """
    Read the database file alone. A crash during a checkpoint may have left it half old, half new.
    """
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
        raise StoreDamaged(f"{path}: not a store of Pairgate")
    version = connection.pragma("user_version")
    if version != VERSION and version not in MIGRATIONS:
        raise StoreDamaged(f"{path}: its tables have version {version}, at most {VERSION} expected")


def migrate(connection: apsw.Connection) -> None:
    """
    Migrate a store of an earlier version to this one.

    The migration is one transaction: after a crash the store has the old version or the new one.
    """
    version = connection.pragma("user_version")
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(MIGRATIONS[version])
    connection.execute(f"PRAGMA user_version = {VERSION}; COMMIT")


def _set(connection: apsw.Connection, name: str, value: str | int, expected: str | int) -> None:
    connection.execute(f"PRAGMA {name} = {value}")
    if (actual := connection.pragma(name)) != expected:
        raise StoreDamaged(f"SQLite refused PRAGMA {name} = {expected!r}: it is {actual!r}")
