"""Versioned values in a SQLite file, which several processes of a machine may share."""

import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import apsw
import attrs
import trio

from gateway.domain.errors import PreconditionFailed, StorageFull, Unavailable
from gateway.listening.stores.in_thread import InThread
from gateway.ports import ABSENT, ANY

T = TypeVar("T")

_CLOSE_LIMIT: Final = 5.0  # seconds: for a last commit on a busy disk
_PATIENCE: Final = 10_000  # milliseconds for another process to have written
_TABLES: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS pairgate_value (
    key TEXT PRIMARY KEY, etag INTEGER NOT NULL, value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pairgate_etag (last INTEGER NOT NULL) STRICT;
INSERT INTO pairgate_etag SELECT 0 WHERE NOT EXISTS (SELECT * FROM pairgate_etag);
"""
_READ: Final = "SELECT value, etag FROM pairgate_value WHERE key = ?"
_KEYS: Final = "SELECT key FROM pairgate_value WHERE substr(key, 1, length(?1)) = ?1 ORDER BY key"
_NEXT: Final = "UPDATE pairgate_etag SET last = last + 1 RETURNING last"
_WRITE: Final = "INSERT OR REPLACE INTO pairgate_value (key, etag, value) VALUES (?, ?, ?)"
_REMOVE: Final = "DELETE FROM pairgate_value WHERE key = ?"


@attrs.define(eq=False)
class SqliteValues(InThread):
    """
    Implements `Versioned` of `bytes` or None, within its `async with` block. The file is made if it
    is missing; its tables may stand beside others in one database.

    A write is durable when it returns. A cancellation waits for the write under way. No ETag is
    given twice, also not for a key that was removed and written again.

    Raises:
        Unavailable: the file can't be read or written.
        StorageFull: the disk is full.
    """

    path: Path
    _database: apsw.Connection = attrs.field(init=False)

    async def __aenter__(self) -> Self:
        self._database = await self._do(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.move_on_after(_CLOSE_LIMIT, shield=True):
            await self._do(self._database.close)

    def _in_words(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except apsw.FullError as error:
            raise StorageFull(f"{self.path}: {error}") from error
        except (apsw.Error, OSError) as error:
            raise Unavailable(f"{self.path}: {error}") from error

    def _open(self) -> apsw.Connection:
        database = apsw.Connection(str(self.path))
        database.set_busy_timeout(_PATIENCE)
        try:
            # SQLite doesn't wait for others that change the journal mode of a new file.
            with (self.path.with_name(f"{self.path.name}-opening")).open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                database.execute(_TABLES).fetchall()
        except BaseException:
            database.close()
            raise
        return database

    def _read(self, key: str) -> tuple[bytes | None, str]:
        row = self._database.execute(_READ, (key,)).fetchone()
        return (None, ABSENT) if row is None else (bytes(row[0]), str(row[1]))

    def _write(self, key: str, value: bytes | None, if_match: str) -> str:
        with _writing(self._database):
            etag = self._read(key)[1]
            if if_match not in (ANY, etag):
                raise PreconditionFailed(f"{key}: ETag {if_match!r} expected, it has {etag!r}")
            if value is None:
                self._database.execute(_REMOVE, (key,))
                return ABSENT
            [(new,)] = self._database.execute(_NEXT).fetchall()
            self._database.execute(_WRITE, (key, new, value))
        return str(new)

    def _keys(self, prefix: str) -> Sequence[str]:
        return [key for (key,) in self._database.execute(_KEYS, (prefix,))]


@attrs.frozen
class _writing:  # noqa: N801 used as a function
    """A transaction that has the right to write from its start, and is taken back on an error."""

    database: apsw.Connection

    def __enter__(self) -> None:
        self.database.execute("BEGIN IMMEDIATE")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.database.execute("COMMIT")
        finally:
            if self.database.in_transaction:  # a full disk has ended it already
                self.database.execute("ROLLBACK")
