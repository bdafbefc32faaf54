"""
The amounts that were counted, in a file that all workers write to.

A batch may come more than once. Its id and its amounts are written in one transaction, so that
both are there or neither: this is what makes "at least once" of a queue "exactly once" here.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import attrs

from examples.billing.values import Batch, Slice, Total, add_up

_PATIENCE: Final = 60.0  # seconds for others to have written
_TABLES: Final = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, transactions INTEGER NOT NULL, times INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS totals (
    account INTEGER PRIMARY KEY, cents INTEGER NOT NULL, transactions INTEGER NOT NULL
) STRICT;
"""
_NOTE: Final = """
INSERT INTO batches VALUES (?, ?, 1)
ON CONFLICT (id) DO UPDATE SET times = times + 1 RETURNING times
"""
_ADD: Final = """
INSERT INTO totals VALUES (?, ?, ?)
ON CONFLICT (account) DO UPDATE SET
    cents = cents + excluded.cents, transactions = transactions + excluded.transactions
"""
_OF_SLICE: Final = """
SELECT account, cents, transactions FROM totals WHERE account >= ? AND account < ? ORDER BY account
"""


@attrs.frozen
class Ledger:
    """Every method blocks."""

    path: Path

    def prepare(self) -> None:
        """Return when there is one, be it empty."""
        with closing(self._connect()) as database:
            database.executescript(_TABLES)

    def count(self, batch: Batch) -> int:
        """Return once the batch is counted, durably; how often it has come so far."""
        with self._writing() as database:
            ((times,),) = database.execute(_NOTE, (batch.id, len(batch.transactions)))
            if times == 1:
                totals = add_up(batch.transactions).values()
                database.executemany(_ADD, map(attrs.astuple, totals))
        return int(times)

    def totals(self, wanted: Slice) -> tuple[Total, ...]:
        """Return the totals of the accounts of which anything was counted."""
        with closing(self._connect()) as database:
            rows = database.execute(_OF_SLICE, (wanted.first, wanted.end)).fetchall()
        return tuple(Total(*row) for row in rows)

    def times(self) -> dict[str, int]:
        """Return how often each batch has come."""
        with closing(self._connect()) as database:
            return dict(database.execute("SELECT id, times FROM batches").fetchall())

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            with database:  # commits, or takes it all back
                yield database

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
