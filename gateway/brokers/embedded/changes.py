"""Rows that come and go in one transaction, written in bulk: a call for each costs more than it."""

from collections.abc import Sequence
from typing import Any, Final

import apsw
import attrs

from gateway.brokers.embedded.read_ahead import ReadAhead

_INSERT: Final = """
INSERT INTO message (sequence, queue, state, enqueued, due, expires, original, size, reason,
                     description, session, source, checksum, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELETE: Final = "DELETE FROM message WHERE sequence = ?"


@attrs.define(eq=False)
class Changes:
    """
    Of all queues of a store: `flush` writes what still waits, the new rows first.

    That order is right whatever the order of the calls was: a number is never used again. Who
    changes a row in another way flushes before; that, and the end, ends what was read ahead.
    """

    _connection: apsw.Connection
    ahead: ReadAhead = attrs.field(factory=ReadAhead)
    _added: list[tuple[Any, ...]] = attrs.field(factory=list)
    _removed: list[tuple[int]] = attrs.field(factory=list)
    _highest_removed: int = -1

    def add(self, row: tuple[Any, ...]) -> None:
        """Have a row written: its values in the order of the columns."""
        self._added.append(row)

    def remove(self, sequence: int) -> None:
        self.ahead.change(sequence)
        self._removed.append((sequence,))
        self._highest_removed = max(self._highest_removed, sequence)

    def show(self, after: int = -1) -> None:
        """Write what a question for rows above that number must see."""
        if self._added or self._highest_removed > after:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        added, removed = self._added, self._removed
        self.forget()
        self._write(_INSERT, added)
        self._write(_DELETE, removed)

    def forget(self) -> None:
        """The transaction is undone, and so is what waits."""
        self.ahead.drop()
        self._added, self._removed, self._highest_removed = [], [], -1

    def _write(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        if values:
            self._connection.executemany(statement, values)
