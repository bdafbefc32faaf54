"""
Collects the rows that a transaction adds and removes, and writes them in bulk: a statement per row
costs more than the row itself.

Rows are read in advance: receivers come in groups, and each SELECT costs time.
"""

from collections.abc import Sequence
from typing import Any, Final

import apsw
import attrs

from gateway.store.engine.records import Row, State

_MOST_ROWS: Final = 64  # as many as a receive of a busy listener asks for
_MOST_BYTES: Final = 128 * 1024  # if the rows are as large as the last ones

Place = tuple[int, State]  # a queue and a state


@attrs.define(eq=False)
class ReadAhead:
    """
    The rows of one queue and state that follow the last delivered row.

    They are valid until one of them changes or the transaction ends, so code that changes rows
    calls `change` or `drop`. The number of rows read is that of the rows requested in the last
    transaction; later a quarter of those requested in this one. Rows that are read in vain cost
    time, too.
    """

    _place: Place | None = None
    _after: int = -1
    _rows: list[Row] = attrs.field(factory=list)  # the next row is the last of the list
    _asked: int = 0  # since the last drop
    _expected: int = 1
    _most: int = _MOST_ROWS

    def pop(self, place: Place, after: int, limit: int) -> Sequence[Row]:
        """The rows after that sequence number, `limit` at most; none if they must be read."""
        if after != self._after or len(self._rows) < limit or place != self._place:
            return ()
        self._asked += limit
        taken = [self._rows.pop() for _ in range(limit)]
        self._after = taken[-1].sequence
        return taken

    def size(self, limit: int) -> int:
        """The number of rows to read for a request of `limit` rows."""
        expected = self._asked // 4 if self._asked else self._expected
        return max(limit, min(expected, self._most))

    def keep(self, place: Place, rows: Sequence[Row], limit: int) -> Sequence[Row]:
        """Return the requested rows, and keep the others."""
        size = sum([row.size for row in rows])
        self._most = min(_MOST_ROWS, _MOST_BYTES * len(rows) // max(size, 1))
        self._asked += limit
        asked = rows[:limit]
        self._rows = [*reversed(rows[limit:])]
        if asked:
            self._place, self._after = place, asked[-1].sequence
        return asked

    def change(self, sequence: int) -> None:
        """Note that a row is changed or removed."""
        if sequence > self._after:
            self.drop()

    def drop(self) -> None:
        """Discard the rows, so that the next ones are read from the store."""
        if self._asked:
            self._expected, self._asked = self._asked, 0
        self._rows = []


_INSERT: Final = """
INSERT INTO message (sequence, number, queue, state, enqueued, due, expires, original, size, reason,
                     description, session, source, checksum, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELETE: Final = "DELETE FROM message WHERE sequence = ?"


@attrs.define(eq=False)
class StoreChanges:
    """
    The added and removed rows of all queues of a store. `flush` writes those that aren't written
    yet, the added ones first.

    That order is correct whatever the order of the calls, because a sequence is never used
    again. Code that changes a row in another way flushes before. Such a change, and the end of the
    transaction, discard the rows that were read ahead.
    """

    _connection: apsw.Connection
    ahead: ReadAhead = attrs.field(factory=ReadAhead)
    _added: list[tuple[Any, ...]] = attrs.field(factory=list)
    _removed: list[tuple[int]] = attrs.field(factory=list)
    _highest_removed: int = -1

    def add(self, row: tuple[Any, ...]) -> None:
        """Insert a row at the next `flush`; its values are in the order of the columns."""
        self._added.append(row)

    def remove(self, sequence: int) -> None:
        self.ahead.change(sequence)
        self._removed.append((sequence,))
        self._highest_removed = max(self._highest_removed, sequence)

    def show(self, after: int = -1) -> None:
        """Write the changes that a query for rows above `after` must see."""
        if self._added or self._highest_removed > after:
            self.flush()

    def flush(self) -> None:
        """Write all changes."""
        added, removed = self._added, self._removed
        self.forget()
        self._write(_INSERT, added)
        self._write(_DELETE, removed)

    def forget(self) -> None:
        """Discard all changes, since the transaction is undone."""
        self.ahead.drop()
        self._added, self._removed, self._highest_removed = [], [], -1

    def _write(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        if values:
            self._connection.executemany(statement, values)
