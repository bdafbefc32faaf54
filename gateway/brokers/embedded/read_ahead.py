"""Rows that are read before anybody asks: receivers come in crowds, and each SELECT costs."""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.stored import Row, State

_MOST_ROWS: Final = 64
_MOST_BYTES: Final = 128 * 1024  # if the rows are as large as the last ones

Place = tuple[int, State]  # a queue, and where in it


@attrs.define(eq=False)
class ReadAhead:
    """
    The rows of one place of a store that come right after the last one handed out.

    They are what the store has until one of them changes or the transaction ends: who changes
    rows says so. It reads as many as were asked for the time before, since what is read in vain
    costs as well.
    """

    _place: Place | None = None
    _after: int = -1
    _rows: list[Row] = attrs.field(factory=list)  # the next one last
    _asked: int = 0  # since the last drop
    _expected: int = 1
    _most: int = _MOST_ROWS

    def take(self, place: Place, after: int, limit: int) -> Sequence[Row]:
        """The rows after that number, as many as asked for; none: they have to be read."""
        if after != self._after or len(self._rows) < limit or place != self._place:
            return ()
        self._asked += limit
        taken = [self._rows.pop() for _ in range(limit)]
        self._after = taken[-1].sequence
        return taken

    def size(self, limit: int) -> int:
        """How many rows to read for somebody who asks for so many."""
        expected = self._asked // 4 if self._asked else self._expected
        return max(limit, min(expected, self._most))

    def keep(self, place: Place, rows: Sequence[Row], limit: int) -> Sequence[Row]:
        """Return what was asked for of the rows read, and keep the others."""
        size = sum([row.size for row in rows])
        self._most = min(_MOST_ROWS, _MOST_BYTES * len(rows) // max(size, 1))
        self._asked += limit
        asked = rows[:limit]
        self._rows = [*reversed(rows[limit:])]
        if asked:
            self._place, self._after = place, asked[-1].sequence
        return asked

    def change(self, sequence: int) -> None:
        """A row will be another, or gone."""
        if sequence > self._after:
            self.drop()

    def drop(self) -> None:
        """Have what comes next read anew."""
        if self._asked:
            self._expected, self._asked = self._asked, 0
        self._rows = []
