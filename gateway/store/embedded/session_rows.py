"""The sessions of one queue, and the ids that it has seen, in SQLite. Each query uses an index."""

from collections.abc import Sequence
from typing import Any, Final

import apsw
import attrs

from gateway.store.embedded.checksums import row_checksum
from gateway.store.engine.records import STATE_OVERHEAD, SessionRecord

# Names are read as bytes: after a flipped bit they may not be valid text.
_GET: Final = (
    "SELECT CAST(id AS BLOB), first, state, updated, checksum FROM session"
    " WHERE queue = ? AND id = ?"
)
_PUT: Final = (
    "INSERT OR REPLACE INTO session (queue, id, first, state, updated, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_REMOVE: Final = "DELETE FROM session WHERE queue = ? AND id = ?"
_NEXT: Final = """
SELECT CAST(id AS BLOB), first, state, updated, checksum FROM session
WHERE queue = ? AND first > ? AND first IS NOT NULL ORDER BY first LIMIT 1
"""
_WITH_MESSAGES: Final = """
SELECT CAST(id AS BLOB) FROM session INDEXED BY session_name WHERE queue = ? AND first IS NOT NULL
ORDER BY id LIMIT ? OFFSET ?
"""
_UPDATED: Final = """
SELECT CAST(id AS BLOB) FROM session INDEXED BY session_update
WHERE queue = ? AND state IS NOT NULL AND updated > ? ORDER BY updated, id LIMIT ? OFFSET ?
"""
_STATES: Final = (
    "SELECT count(*), coalesce(sum(length(state)), 0) FROM session"
    " WHERE queue = ? AND state IS NOT NULL"
)

_SEEN_UNTIL: Final = "SELECT until, checksum FROM seen WHERE queue = ? AND id = ?"
_SEEN_PUT: Final = "INSERT OR REPLACE INTO seen (queue, id, until, checksum) VALUES (?, ?, ?, ?)"
_SEEN_OVER: Final = (
    "SELECT queue, CAST(id AS BLOB) FROM seen WHERE queue = ? AND until <= ? LIMIT ?"
)
_SEEN_REMOVE: Final = "DELETE FROM seen WHERE queue = ? AND id = CAST(? AS TEXT)"


@attrs.define(eq=False)
class SqliteSessions:
    """`SessionRows`. Runs inside the caller's transaction."""

    _connection: apsw.Connection
    _queue: int

    def get(self, session: str) -> SessionRecord | None:
        return self._one(_GET, session)

    def put(self, record: SessionRecord) -> None:
        values = (self._queue, record.id, record.first, record.state, record.updated)
        checksum = row_checksum(*values)
        # The complement of the checksum marks the row as known to be damaged, whatever else
        # changes.
        self._connection.execute(_PUT, (*values, ~checksum if record.damaged else checksum))

    def remove(self, session: str) -> None:
        self._connection.execute(_REMOVE, (self._queue, session))

    def next(self, after: int) -> SessionRecord | None:
        return self._one(_NEXT, after)

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        if updated_since is None:
            found = self._connection.execute(_WITH_MESSAGES, (self._queue, top, skip))
        else:
            found = self._connection.execute(_UPDATED, (self._queue, updated_since, top, skip))
        return [_name(raw) for (raw,) in found]

    def state_bytes(self) -> int:
        count, size = self._connection.execute(_STATES, (self._queue,)).fetchone() or (0, 0)
        return int(count * STATE_OVERHEAD + size)

    def _one(self, statement: str, value: Any) -> SessionRecord | None:
        found = self._connection.execute(statement, (self._queue, value)).fetchone()
        if found is None:
            return None
        raw, first, state, updated, stored = found
        session = _name(raw)
        checksum = row_checksum(self._queue, session, first, state, updated)
        return SessionRecord(
            id=session,
            first=first,
            state=state,
            updated=updated,
            damaged=stored != checksum,
            reported=stored == ~checksum,
        )


@attrs.define(eq=False)
class SqliteSeenIds:
    """`SeenIds`. Runs inside the caller's transaction."""

    _connection: apsw.Connection
    _queue: int

    def until(self, message_id: str) -> int | None:
        found = self._connection.execute(_SEEN_UNTIL, (self._queue, message_id)).fetchone()
        if found is None:
            return None
        until, checksum = found
        # A damaged id counts as unseen: a message twice is better than no message.
        return until if checksum == row_checksum(self._queue, message_id, until) else None

    def put(self, message_id: str, until: int) -> None:
        values = (self._queue, message_id, until)
        self._connection.execute(_SEEN_PUT, (*values, row_checksum(*values)))

    def forget(self, wall: int, limit: int) -> None:
        over = self._connection.execute(_SEEN_OVER, (self._queue, wall, limit)).fetchall()
        self._connection.executemany(_SEEN_REMOVE, over)


def _name(raw: bytes) -> str:
    """Decode a name. A name that isn't valid text has no messages, and its checksum is wrong."""
    return str(raw, "utf-8", "replace")
