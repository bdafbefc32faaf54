"""
The sequence numbers of the entities of a store, which are stored with what they number, and the
delivery counts of messages, in a table of their own so that they can be written when it costs
least.
"""

from collections.abc import Mapping
from typing import Final

import apsw
import attrs

from gateway.store.embedded.checksums import fitting, row_checksum
from gateway.store.engine.journal import Journal, put_entry
from gateway.store.engine.records import State

_PUT: Final = (
    "INSERT OR REPLACE INTO counter (queue, active, dead, transfer, checksum)"
    " VALUES (?, ?, ?, ?, ?)"
)
_GET: Final = "SELECT active, dead, transfer FROM counter WHERE queue = ?"
_SKIP: Final = "UPDATE counter SET active = active + ?1, dead = dead + ?1, transfer = transfer + ?1"
_COUNTED: Final = (State.ACTIVE, State.DEAD, State.TRANSFER)  # as the columns

LOST: Final = (
    "SELECT name FROM queue LEFT JOIN counter ON counter.queue = queue.id"
    f" WHERE key IS NOT NULL AND counter.checksum IS NOT {fitting('counter')}"
)
"""Finds the names of entities whose counter is damaged or missing."""

TWICE: Final = f"""
SELECT name, max(coalesce(number, sequence)) AS highest,
       CASE WHEN state IN ({State.DEAD:d}, {State.DEAD_DEFERRED:d}) THEN dead
            WHEN state IN ({State.TRANSFER:d}, {State.TRANSFER_DEFERRED:d}) THEN transfer
            ELSE active END AS next
FROM message JOIN counter USING (queue) JOIN queue ON queue.id = message.queue
GROUP BY message.queue, state HAVING highest >= next
"""
"""Finds the highest number of a queue or sub-queue whose next number isn't above it."""


@attrs.define(eq=False)
class SqliteNumbers:
    """`Numbers` of one entity. What it draws is durable with the commit that `Counters` saves."""

    _counters: "Counters"
    _queue: int
    _next: dict[State, int]

    def next(self, state: State, count: int = 1) -> int:
        number = self._next[state]
        self._counters.journal.record(put_entry, self._next, state, number)
        self._next[state] = number + count
        self._counters.record(self._queue, self._next)
        return number


@attrs.define(eq=False)
class Counters:
    """The next numbers of all entities. Runs inside the caller's transaction."""

    _connection: apsw.Connection
    journal: Journal
    _changed: dict[int, Mapping[State, int]] = attrs.field(factory=dict)  # since the last commit

    def begin(self, queue: int) -> SqliteNumbers:
        """The numbers of an entity that was just stored under this id."""
        first = dict.fromkeys(_COUNTED, 1)
        self.record(queue, first)
        return SqliteNumbers(self, queue, first)

    def of(self, queue: int) -> SqliteNumbers:
        """The numbers of a stored entity."""
        found = self._connection.execute(_GET, (queue,)).fetchone()
        assert found is not None, "each entity has a counter: see `lost`"
        return SqliteNumbers(self, queue, dict(zip(_COUNTED, found, strict=True)))

    def record(self, queue: int, numbers: Mapping[State, int]) -> None:
        """Note that these next numbers must be saved."""
        before = self._changed.get(queue)
        if before is not numbers:
            self.journal.record(put_entry, self._changed, queue, before)
            self._changed[queue] = numbers

    def save(self) -> None:
        """Write what has changed since the last commit."""
        if self._changed:
            self._connection.executemany(_PUT, map(_row, self._changed.items()))

    def saved(self) -> None:
        """Note that what `save` wrote is committed."""
        self._changed.clear()


def skip(connection: apsw.Connection, numbers: int) -> None:
    """Skip so many numbers of each entity. The caller sets the checksums."""
    connection.execute(_SKIP, (numbers,))


def _row(changed: tuple[int, Mapping[State, int]]) -> tuple[int, ...]:
    queue, numbers = changed
    values = (queue, *(numbers[state] for state in _COUNTED))
    return (*values, row_checksum(*values))


_DELETE: Final = "DELETE FROM delivered WHERE sequence = ?"
_SAVE: Final = (
    "INSERT INTO delivered VALUES (?, ?)"
    " ON CONFLICT (sequence) DO UPDATE SET times = excluded.times"
)


@attrs.define(eq=False)
class DeliveryCounts:
    """
    The delivery counts that aren't written yet.

    A receive alone needs no commit: its counts are written with a later one, unless `urgent` asks
    for a commit. Otherwise a message that crashes the process at each delivery would be delivered
    for ever. So no message loses more than one of its counted attempts, and a message below
    `survivors`, which was in the store at an unclean end, loses none.
    """

    survivors: int = 0
    _journal: Journal = attrs.field(factory=Journal)
    _pending: dict[int, int] = attrs.field(factory=dict)
    _stored: set[int] = attrs.field(factory=set)  # sequence numbers that are known to have a row
    urgent: bool = False

    def __len__(self) -> int:
        return len(self._pending)

    def set(self, sequence: int, times: int, *, durable: bool = False) -> None:
        again = 0 < self._pending.get(sequence, 0) < times
        self._journal.keep(self)
        self.urgent = self.urgent or durable or again or sequence < self.survivors
        self._journal.record(put_entry, self._pending, sequence, self._pending.get(sequence))
        self._pending[sequence] = times

    def get(self, sequence: int, stored: int | None) -> int:
        """The delivery count, given the count that the table has."""
        if stored is not None:
            self._stored.add(sequence)
        return self._pending.get(sequence, stored or 0)

    def drop(self, sequence: int, connection: apsw.Connection) -> None:
        if sequence in self._pending:
            self._journal.record(self._pending.__setitem__, sequence, self._pending[sequence])
            del self._pending[sequence]
        if sequence in self._stored:
            self._journal.record(self._stored.add, sequence)
            self._stored.discard(sequence)
            connection.execute(_DELETE, (sequence,))

    def save(self, connection: apsw.Connection) -> None:
        connection.executemany(_SAVE, self._pending.items())

    def saved(self) -> None:
        """Note that the counts written by `save` are committed."""
        self._stored.update(self._pending)
        self._pending.clear()
        self.urgent = False
