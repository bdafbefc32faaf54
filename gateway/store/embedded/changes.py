"""
Collects the rows that a transaction adds and removes, and writes them in bulk: a statement per row
costs more than the row itself.
"""

from collections.abc import Sequence
from typing import Any, Final

import apsw
import attrs

from gateway.store.embedded.read_ahead import ReadAhead

_INSERT: Final = """
INSERT INTO message (sequence, number, queue, state, enqueued, due, expires, original, size, reason,
                     description, session, source, checksum, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELETE: Final = "DELETE FROM message WHERE sequence = ?"


@attrs.define(eq=False)
class Changes:
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
