"""
Collects the rows that a transaction adds and removes, and writes them in bulk: a statement per row
costs more than the row itself.

Rows are read in advance: receivers come in groups, and each SELECT costs time.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import apsw
import attrs

from gateway.domain.bounded import Bounded
from gateway.store.engine.records import Row, State

_MOST_ROWS: Final = 64  # as many as a receive of a busy listener asks for
_MOST_BYTES: Final = 64 * 1024  # of one queue: as many messages of 1 KiB
_MOST_QUEUES: Final = 256  # 16 MiB of messages, half of SQLite's own cache, and 5 MiB of objects

Place = tuple[int, State]  # a queue and a state


@attrs.define(eq=False)
class _NextRows:
    """The rows of a place that follow its last delivered row."""

    place: Place
    after: int  # the sequence of the last delivered row
    end: int  # that of the last row of `rows`, also when it was delivered
    rows: list[Row]  # the next row is the last of the list
    more: int  # rows to read when these are delivered


@attrs.define(eq=False)
class ReadAhead:
    """
    For each queue the rows of one state that follow the last delivered row.

    They are valid until one of them changes, a row is inserted before the last of them, or a
    transaction is undone, so code that changes or inserts rows calls `change` or `drop`. A SELECT
    reads twice as many rows as the one before it if it continues there, and else as many as are
    requested: rows that are read in vain cost time, too.
    """

    # By queue; those that were read last are kept.
    _queues: Bounded[int, _NextRows] = attrs.field(
        factory=lambda: Bounded(_MOST_QUEUES, renews=True)
    )

    def pop(self, place: Place, after: int, limit: int) -> Sequence[Row]:
        """The rows after that sequence number, `limit` at most; none if they must be read."""
        ahead = self._following(place, after)
        if ahead is None or len(ahead.rows) < limit:
            return ()
        taken = ahead.rows[: -limit - 1 : -1]
        del ahead.rows[-limit:]
        ahead.after = taken[-1].sequence
        return taken

    def size(self, place: Place, after: int, limit: int) -> int:
        """The number of rows to select for a request of `limit` rows."""
        ahead = self._following(place, after)
        return limit if ahead is None else max(limit, ahead.more)

    def keep(self, place: Place, found: Iterator[Row], limit: int) -> Sequence[Row]:
        """
        Return the requested rows, and keep the others that fit. `found` reads each row when it is
        asked for it, and of those that don't fit it is asked for one at most.
        """
        rows = [*islice(found, limit)]
        asked = rows[:]
        if asked:
            size = sum([row.size for row in rows])
            if size < _MOST_BYTES:
                for row in found:
                    rows.append(row)
                    size += row.size
                    if size >= _MOST_BYTES:
                        break
            kept = rows[limit:-1] if size > _MOST_BYTES else rows[limit:]
            most = min(_MOST_ROWS, _MOST_BYTES * len(rows) // max(size, 1))
            after, end = asked[-1].sequence, (kept or asked)[-1].sequence
            kept.reverse()
            queue, _ = place
            self._queues[queue] = _NextRows(place, after, end, kept, min(2 * len(rows), most))
        return asked

    def change(self, queue: int, sequence: int) -> None:
        """Note that a row of the queue is inserted, changed or removed."""
        ahead = self._queues.get(queue)
        if ahead is not None and ahead.after < sequence <= ahead.end:
            del self._queues[queue]

    def drop(self) -> None:
        """Discard all rows, so that the next ones are read from the store."""
        self._queues.clear()

    def _following(self, place: Place, after: int) -> _NextRows | None:
        ahead = self._queues.get(place[0])
        if ahead is None or ahead.after != after or ahead.place != place:
            return None
        return ahead


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
    again. Code that changes a row in another way flushes before, and notes the change in `ahead`.
    """

    _connection: apsw.Connection
    ahead: ReadAhead = attrs.field(factory=ReadAhead)
    _added: list[tuple[Any, ...]] = attrs.field(factory=list)
    _removed: list[tuple[int]] = attrs.field(factory=list)
    _highest_removed: int = -1

    def add(self, queue: int, sequence: int, values: tuple[Any, ...]) -> None:
        """Insert a row of the queue at the next `flush`; `values` are in the order of `_INSERT`."""
        self.ahead.change(queue, sequence)
        self._added.append(values)

    def remove(self, queue: int, sequence: int) -> None:
        """Delete a row of the queue at the next `flush`."""
        self.ahead.change(queue, sequence)
        self._removed.append((sequence,))
        self._highest_removed = max(self._highest_removed, sequence)

    def show(self, after: int = -1) -> None:
        """Write the changes that a query for rows above `after` must see."""
        if self._added or self._highest_removed > after:
            self.flush()

    def flush(self) -> None:
        """Write all changes."""
        added, removed = self._added, self._removed
        self._clear()
        self._write(_INSERT, added)
        self._write(_DELETE, removed)

    def forget(self) -> None:
        """Discard all changes, and what was read, since the transaction is undone."""
        self.ahead.drop()
        self._clear()

    def _clear(self) -> None:
        self._added, self._removed, self._highest_removed = [], [], -1

    def _write(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        if values:
            self._connection.executemany(statement, values)
