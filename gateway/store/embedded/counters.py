"""
The sequence numbers of the entities of a store, which are stored with what they number, and the
delivery counts of messages, in a table of their own so that they can be written when it costs
least.

An entity has a row in `counter`. A commit that numbers messages of many entities would change a
page for each, so it adds one row to `drawn`, with the next numbers of all of them. In rounds, each
commit also writes some of the rows in `counter`, in the order in which they share pages.
"""

import json
from itertools import islice
from typing import Final

import apsw
import attrs

from gateway.store.embedded.checksums import fitting, row_checksum
from gateway.store.engine.journal import Journal, put_entry
from gateway.store.engine.records import State

_BEGIN: Final = (
    "INSERT INTO counter (queue, active, dead, transfer, checksum) VALUES (?, ?, ?, ?, ?)"
)
_PUT: Final = (
    "UPDATE counter SET active = ?2, dead = ?3, transfer = ?4, checksum = ?5 WHERE queue = ?1"
)
_GET: Final = "SELECT active, dead, transfer FROM counter WHERE queue = ?"
_DRAW: Final = "INSERT INTO drawn (id, counters, checksum) VALUES (?, ?, ?)"
_FORGET: Final = "DELETE FROM drawn WHERE id <= ?"
_COLUMNS: Final = {State.ACTIVE: "active", State.DEAD: "dead", State.TRANSFER: "transfer"}
_ROUND: Final = 256  # commits until the next round: of many sends each, so that rows share pages

_DRAWN: Final = (
    "SELECT value ->> 0 AS queue, value ->> 1 AS active, value ->> 2 AS dead,"
    " value ->> 3 AS transfer FROM drawn, json_each(counters)"
)
_LATEST: Final = "SELECT queue, max(active) AS active, max(dead) AS dead, max(transfer) AS transfer"
UNSAVED: Final = f"{_LATEST} FROM ({_DRAWN}) GROUP BY queue"
"""The next numbers of the entities whose rows in `counter` are older, or as old."""

CATCH_UP: Final = f"""
UPDATE counter SET active = new.active, dead = new.dead, transfer = new.transfer
    FROM ({UNSAVED}) AS new WHERE new.queue = counter.queue;
DELETE FROM drawn;
"""
"""Moves all next numbers into `counter`; the caller sets its checksums."""

_SKIP: Final = "UPDATE counter SET active = active + ?1, dead = dead + ?1, transfer = transfer + ?1"

LOST: Final = (
    "SELECT name FROM queue LEFT JOIN counter ON counter.queue = queue.id"
    f" WHERE key IS NOT NULL AND counter.checksum IS NOT {fitting('counter')}"
)
"""Finds the names of entities whose counter is damaged or missing."""

LOST_DRAWS: Final = f"SELECT id FROM drawn WHERE checksum <> {fitting('drawn')}"
"""Finds the damaged rows of `drawn`."""

TWICE: Final = f"""
SELECT name, max(coalesce(number, sequence)) AS highest,
       CASE WHEN state IN ({State.DEAD:d}, {State.DEAD_DEFERRED:d}) THEN dead
            WHEN state IN ({State.TRANSFER:d}, {State.TRANSFER_DEFERRED:d}) THEN transfer
            ELSE active END AS next
FROM message JOIN queue ON queue.id = message.queue JOIN (
    {_LATEST} FROM (SELECT queue, active, dead, transfer FROM counter UNION ALL {_DRAWN})
    GROUP BY queue
) USING (queue)
GROUP BY message.queue, state HAVING highest >= next
"""
"""Finds the highest number of a queue or sub-queue whose next number isn't above it."""


@attrs.define(eq=False)
class SqliteNumbers:
    """`Numbers` of one entity. What it draws is durable with the commit that `Counters` saves."""

    _counters: "Counters"
    _queue: int
    active: int = 1  # the next one
    dead: int = 1
    transfer: int = 1

    def next(self, state: State, count: int = 1) -> int:
        column = _COLUMNS[state]
        number: int = getattr(self, column)
        self._counters.journal.record(setattr, self, column, number)
        setattr(self, column, number + count)
        self._counters.record(self._queue, self)
        return number

    @property
    def row(self) -> tuple[int, ...]:
        """The values of its row in `counter`, without the checksum."""
        return self._queue, self.active, self.dead, self.transfer


@attrs.define(eq=False)
class Counters:
    """The next numbers of all entities. Runs inside the caller's transaction."""

    _connection: apsw.Connection
    journal: Journal
    _changed: dict[int, SqliteNumbers] = attrs.field(factory=dict)  # since the last commit
    _drawn: dict[int, SqliteNumbers] = attrs.field(factory=dict)  # since the last round began
    _late: dict[int, SqliteNumbers] = attrs.field(factory=dict)  # left of the round; last first
    _at_once: int = 0  # rows that a commit of this round writes
    _last: int = 0  # row of `drawn`
    _covered: int = 0  # the last row of `drawn` that isn't needed after the round

    def load(self) -> None:
        """Read what only `drawn` has."""
        for queue, *numbers in self._connection.execute(UNSAVED):
            self._drawn[queue] = SqliteNumbers(self, queue, *numbers)
        self._last = self._connection.execute("SELECT coalesce(max(id), 0) FROM drawn").get

    def begin(self, queue: int) -> SqliteNumbers:
        """The numbers of an entity that was just stored under this id."""
        first = SqliteNumbers(self, queue)
        self._connection.execute(_BEGIN, _sealed(first))
        return first

    def of(self, queue: int) -> SqliteNumbers:
        """The numbers of a stored entity."""
        unsaved = self._drawn.get(queue) or self._late.get(queue)
        if unsaved is not None:
            return unsaved
        found = self._connection.execute(_GET, (queue,)).fetchone()
        assert found is not None, "each entity has a counter: see `LOST`"
        return SqliteNumbers(self, queue, *found)

    def record(self, queue: int, numbers: SqliteNumbers) -> None:
        """Note that these next numbers must be saved."""
        if queue not in self._changed:
            self.journal.record(put_entry, self._changed, queue, None)
            self._changed[queue] = numbers

    def save(self) -> None:
        """Write what has changed since the last commit, and a part of the round."""
        if not self._changed:
            return
        drawn = [numbers.row for numbers in self._changed.values()]
        row = (self._last + 1, json.dumps(drawn, separators=(",", ":")))
        self._connection.execute(_DRAW, (*row, row_checksum(*row)))
        part = islice(reversed(self._late.values()), self._at_once)
        self._connection.executemany(_PUT, map(_sealed, part))
        if 0 < len(self._late) <= self._at_once:
            self._connection.execute(_FORGET, (self._covered,))

    def saved(self) -> None:
        """Note that what `save` wrote is committed."""
        if not self._changed:
            return
        self._last += 1
        self._drawn.update(self._changed)
        self._changed.clear()
        for _ in range(min(self._at_once, len(self._late))):
            self._late.popitem()
        if not self._late and self._last - self._covered >= _ROUND:
            self._begin_round()

    def _begin_round(self) -> None:
        self._late = dict(sorted(self._drawn.items(), reverse=True))
        self._drawn = {}
        self._covered = self._last
        self._at_once = 1 + 2 * len(self._late) // _ROUND


def skip(connection: apsw.Connection, numbers: int) -> None:
    """Skip so many numbers of each entity. The caller sets the checksums."""
    connection.execute(CATCH_UP)
    connection.execute(_SKIP, (numbers,))


def _sealed(numbers: SqliteNumbers) -> tuple[int, ...]:
    values = numbers.row
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
