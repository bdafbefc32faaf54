"""
The file of a ledger: SQLite, for all processes of this machine that name it.

Its methods block, and raise `apsw.Error` or `OSError`. No table is changed but by appending facts
and forgetting the oldest ones.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import apsw
import attrs

from gateway.durable import make_private_folder
from gateway.extensions.ledger.facts import Fact, FactsQuery, LedgerFacts, PairSide, What

_PATIENCE: Final = 5_000  # milliseconds for another process's writing, which takes some
_SHARE: Final = 10  # of the facts that is forgotten at once, so that it is done seldom
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS fact (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, message TEXT NOT NULL, entity TEXT NOT NULL,
    side INTEGER NOT NULL, what INTEGER NOT NULL, queue TEXT NOT NULL, why TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS fact_of_message ON fact (message);
CREATE TABLE IF NOT EXISTS run (
    id TEXT PRIMARY KEY, pid INTEGER NOT NULL, written REAL NOT NULL,
    unwritten INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS memory (id TEXT NOT NULL, since REAL NOT NULL);
"""
_INSERT: Final = (
    "INSERT INTO fact (at, message, entity, side, what, queue, why) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_COLUMNS: Final = "number, at, message, entity, side, what, queue, why"
# The numbers in the file never change.
_SIDES: Final[Mapping[PairSide, int]] = {PairSide.PRIMARY: 0, PairSide.SECONDARY: 1}
_WHATS: Final[Mapping[What, int]] = {
    What.ACCEPTED: 0,
    What.NOT_SENT: 1,
    What.UNKNOWN: 2,
    What.COMPLETED: 3,
    What.DEAD_LETTERED: 4,
}
_SIDE_OF: Final = {number: side for side, number in _SIDES.items()}
_WHAT_OF: Final = {number: what for what, number in _WHATS.items()}


@attrs.define(eq=False)
class LedgerFile:
    """An open file; `run` is the id of this process's run."""

    path: Path
    limit: int  # bytes
    run: str
    _connection: apsw.Connection

    @classmethod
    def open(cls, path: Path, limit: int, run: str, now: datetime) -> "LedgerFile":
        """Open the file for writing. It is created for this user alone."""
        make_private_folder(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = _connected(path, apsw.SQLITE_OPEN_READWRITE)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "normal")
        connection.execute(_SCHEMA)
        found = cls(path, limit, run, connection)
        with connection:
            connection.execute(
                "INSERT INTO memory SELECT ?, ? WHERE NOT EXISTS (SELECT * FROM memory)",
                (run, now.timestamp()),
            )
            connection.execute(
                "INSERT INTO run (id, pid, written) VALUES (?, ?, ?)",
                (run, os.getpid(), now.timestamp()),
            )
        return found

    def append(self, facts: Sequence[Fact], unwritten: int, now: datetime) -> None:
        """Write the facts; `unwritten` counts those that there was no room for before."""
        rows = [
            (
                each.at.timestamp(),
                each.message,
                each.entity,
                _SIDES[each.side],
                _WHATS[each.what],
                each.queue,
                each.why,
            )
            for each in facts
        ]
        with self._connection as connection:
            connection.executemany(_INSERT, rows)
            connection.execute(
                "UPDATE run SET written = ?, unwritten = unwritten + ? WHERE id = ?",
                (now.timestamp(), unwritten, self.run),
            )
            if self._used() > self.limit:
                self._forget()

    def close(self) -> None:
        """Note that this run ended in good order, and close the file."""
        try:
            self._connection.execute("UPDATE run SET ended = 1 WHERE id = ?", (self.run,))
        finally:
            self._connection.close()

    def _used(self) -> int:
        pragma = self._connection.pragma
        used: int = pragma("page_count") - pragma("freelist_count")
        return used * int(pragma("page_size"))

    def _forget(self) -> None:
        """Forget the oldest facts, and the runs that ended before the others."""
        execute = self._connection.execute
        first, last = execute("SELECT min(number), max(number) FROM fact").get
        limit = first + (last - first) // _SHARE
        latest = execute("SELECT max(at) FROM fact WHERE number <= ?", (limit,)).get
        execute("DELETE FROM fact WHERE number <= ?", (limit,))
        execute("UPDATE memory SET since = max(since, ?)", (latest,))
        execute("DELETE FROM run WHERE written < ? AND id <> ?", (latest, self.run))


def read(path: Path, query: FactsQuery) -> LedgerFacts:
    """The facts that the query selects, by a connection of its own."""
    with _reading(path) as connection:
        where, values = _condition(query)
        rows = list(
            connection.execute(
                f"SELECT {_COLUMNS} FROM fact WHERE {where} ORDER BY number LIMIT ?",
                (*values, query.limit + 1),
            )
        )
        page = rows[: query.limit]
        runs = list(connection.execute("SELECT pid, written, unwritten, ended FROM run"))
        ledger, since = connection.execute("SELECT id, since FROM memory").get
        return LedgerFacts(
            process=f"{socket.gethostname()}/{os.getpid()}",
            ledger=ledger,
            facts=tuple(map(_fact_in, page)),
            next=page[-1][0] if len(rows) > len(page) else None,
            since=_date(since),
            unwritten=sum(unwritten for _, _, unwritten, _ in runs),
            gaps=tuple(
                _date(written)
                for pid, written, _, ended in runs
                if not ended and not _is_running(pid)
            ),
        )


def _condition(query: FactsQuery) -> tuple[str, list[object]]:
    found: list[tuple[str, object]] = [("number > ?", query.after)]
    if query.message:
        found.append(("message = ?", query.message))
    if query.since is not None:
        found.append(("at >= ?", query.since.timestamp()))
    if query.until is not None:
        found.append(("at < ?", query.until.timestamp()))
    return " AND ".join(text for text, _ in found), [value for _, value in found]


def _fact_in(row: tuple[int, float, str, str, int, int, str, str]) -> Fact:
    _, at, message, entity, side, what, queue, why = row
    return Fact(
        at=_date(at),
        message=message,
        entity=entity,
        side=_SIDE_OF[side],
        what=_WHAT_OF[what],
        queue=queue,
        why=why,
    )


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _connected(path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(_PATIENCE)
    return connection


@contextmanager
def _reading(path: Path) -> Iterator[apsw.Connection]:
    connection = _connected(path, apsw.SQLITE_OPEN_READONLY)
    try:
        with connection:  # all answers are of one moment
            yield connection
    finally:
        connection.close()
