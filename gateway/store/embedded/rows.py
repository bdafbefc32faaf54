"""The messages of one queue in SQLite. Each query uses an index."""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import apsw
import attrs

from gateway.store.embedded.changes import StoreChanges
from gateway.store.embedded.counters import DeliveryCounts
from gateway.store.embedded.tables import HIDDEN, SCHEDULED
from gateway.store.engine.records import MAX_SEQUENCE, Row, State, Total, Totals, within

Taken = TypeVar("Taken")

TEXTS: Final = "reason, description, session, source"
_RAW_TEXTS: Final = ", ".join(f"CAST({column} AS BLOB)" for column in TEXTS.split(", "))
_SELECT: Final = f"""
SELECT sequence, state, enqueued, size, content, due, expires, times, original, number, {TEXTS},
       checksum
FROM message LEFT JOIN delivered USING (sequence)
"""
_GET: Final = f"{_SELECT} WHERE queue = ? AND sequence = ?"
_NUMBER: Final = "coalesce(number, sequence)"  # as in the index
_FIRST_FROM: Final = (
    f"SELECT sequence FROM message WHERE queue = ? AND state = ? AND {_NUMBER} >= ?"
    f" ORDER BY {_NUMBER} LIMIT 1"
)
_AFTER: Final = (
    f"{_SELECT} WHERE queue = ? AND state = ? AND sequence > ? ORDER BY sequence LIMIT ?"
)
_SIZES: Final = _AFTER.replace(_SELECT, "SELECT size FROM message")
_DUE: Final = (
    f"{_SELECT} WHERE queue = ? AND due <= ? AND {SCHEDULED} ORDER BY due, sequence LIMIT ?"
)
_DUE_HIDDEN: Final = _DUE.replace(SCHEDULED, HIDDEN)
_NEXT_DUE: Final = f"SELECT min(due) FROM message WHERE queue = ? AND {SCHEDULED}"
_NEXT_HIDDEN: Final = _NEXT_DUE.replace(SCHEDULED, HIDDEN)
_EXPIRED: Final = (
    f"{_SELECT} WHERE queue = ? AND state = 0 AND expires > ? AND expires <= ?"
    " ORDER BY expires, sequence LIMIT ?"
)
# Of two indexes that it considers equal, SQLite would use the one with all messages of the queue.
_IN_SESSION: Final = (
    f"{_SELECT} WHERE queue = ? AND state = 0 AND session = ? AND sequence > ?"
    " ORDER BY sequence LIMIT ?"
).replace("FROM message", "FROM message INDEXED BY message_session")
_NEXT_EXPIRY: Final = (
    "SELECT min(expires) FROM message WHERE queue = ? AND state = 0 AND expires > ?"
)
_ALL_TOTALS: Final = "SELECT queue, state, count(*), sum(size) FROM message GROUP BY queue, state"
_TOTALS: Final = "SELECT state, count(*), sum(size) FROM message WHERE queue = ? GROUP BY state"

_REPLACE: Final = """
UPDATE message SET sequence = ?, number = ?, state = ?, enqueued = ?, due = ?, expires = ?,
       original = ?, reason = ?, description = ?, checksum = ?
WHERE sequence = ?
"""
_REWRITE: Final = (
    "UPDATE message SET number = ?, size = ?, checksum = ?, content = ? WHERE sequence = ?"
)
_QUARANTINE: Final = (
    "INSERT INTO quarantine SELECT sequence, queue, checksum, content FROM message"
    " WHERE sequence = ?"
)

_NUMBERS: Final = struct.Struct(">8q")
_UNNUMBERED: Final = struct.Struct(">7q")  # without the last, as in version 5
_NEVER: Final = -1  # no date of a row is negative
# Calling `State` takes half as long as the rest of a row. It is called for numbers that aren't
# states, to raise its ValueError.
_STATES: Final = {state.value: state for state in State}
_NO_TEXTS: Final = (None, None, None, None)


NO_TOTALS: Final[Totals] = MappingProxyType({})


def all_totals(connection: apsw.Connection) -> Mapping[int, Totals]:
    """
    Count the messages of each queue that has any, by its number. Nothing may be waiting to be
    written.
    """
    totals: dict[int, dict[State, Total]] = {}
    for queue, state, messages, size in connection.execute(_ALL_TOTALS):
        totals.setdefault(queue, {})[State(state)] = Total(messages, size)
    return totals


@attrs.define(eq=False)
class SqliteRows:
    """`Rows` of one queue. Runs inside the caller's transaction."""

    _connection: apsw.Connection
    _queue: int
    _changes: StoreChanges
    _counts: DeliveryCounts

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._changes.add(self._queue, row.sequence, self._values(row))

    def get(self, sequence: int) -> Row | None:
        if not 0 <= sequence <= MAX_SEQUENCE:
            return None  # no message has such a number
        self._changes.flush()
        found = self._select(_GET, sequence)
        return found[0] if found else None

    def first_from(self, state: State, number: int) -> int | None:
        if number > MAX_SEQUENCE:
            return None  # no message has such a number
        self._changes.flush()
        values = (self._queue, state, max(number, 0))
        sequence: int | None = self._connection.execute(_FIRST_FROM, values).get
        return sequence

    def after(self, state: State, sequence: int, limit: int) -> Sequence[Row]:
        if limit < 1:
            return []
        limit = min(limit, MAX_SEQUENCE)
        ahead, place = self._changes.ahead, (self._queue, state)
        if taken := ahead.pop(place, sequence, limit):
            return taken
        self._changes.show(after=sequence)
        size = ahead.size(place, sequence, limit)
        return self._read(
            lambda found: ahead.keep(place, found, limit), _AFTER, state, sequence, size
        )

    def page(self, state: State, sequence: int, limit: int, most_bytes: int) -> Sequence[Row]:
        self._changes.show(after=sequence)
        values = (self._queue, state, sequence, min(limit, MAX_SEQUENCE))
        sizes = [size for (size,) in self._connection.execute(_SIZES, values)]
        return self._select(_AFTER, state, sequence, within(sizes, most_bytes))

    def due(self, date: int, limit: int, *, hidden: bool) -> Sequence[Row]:
        self._changes.flush()
        return self._select(_DUE_HIDDEN if hidden else _DUE, date, limit)

    def expired(self, since: int, wall: int, limit: int) -> Sequence[Row]:
        self._changes.flush()
        return self._select(_EXPIRED, since, wall, limit)

    def in_session(self, session: str, sequence: int, limit: int) -> Sequence[Row]:
        self._changes.show(after=sequence)
        return self._select(_IN_SESSION, session, sequence, min(limit, MAX_SEQUENCE))

    def next_due(self, *, hidden: bool) -> int | None:
        self._changes.flush()
        statement = _NEXT_HIDDEN if hidden else _NEXT_DUE
        date: int | None = self._connection.execute(statement, (self._queue,)).get
        return date

    def next_expiry(self, since: int) -> int | None:
        self._changes.flush()
        date: int | None = self._connection.execute(_NEXT_EXPIRY, (self._queue, since)).get
        return date

    def count_delivery(self, row: Row, deliveries: int, *, durable: bool) -> None:
        self._counts.set(row.sequence, deliveries, durable=durable)

    def replace(self, old: Row, new: Row) -> None:
        self._changes.flush()
        self._changes.ahead.change(self._queue, old.sequence)
        self._changes.ahead.change(self._queue, new.sequence)
        values = (
            new.sequence,
            new.number,
            new.state,
            new.enqueued,
            new.due,
            new.expires,
            new.original,
            new.reason,
            new.description,
            self._checksum_in_place_of(old.sequence, new),
            old.sequence,
        )
        self._connection.execute(_REPLACE, values)
        self._counts.drop(old.sequence, self._connection)
        if new.deliveries:
            # The stored attempts are dropped with the old number, so the new count must be stored,
            # too.
            self._counts.set(new.sequence, new.deliveries, durable=new.deliveries > 1)

    def rewrite(self, sequence: int, content: Any, size: int) -> None:
        stored = self.get(sequence)
        if stored is None:
            return
        self._changes.ahead.change(self._queue, sequence)
        checksum = self._checksum(attrs.evolve(stored, size=size), content)
        checksum = ~checksum if stored.damaged else checksum  # stays wrong, as in `replace`
        values = (stored.number, size, checksum, content, sequence)
        self._connection.execute(_REWRITE, values)

    def remove(self, sequence: int) -> None:
        self._changes.remove(self._queue, sequence)
        self._counts.drop(sequence, self._connection)

    def quarantine(self, sequence: int) -> None:
        self._changes.flush()
        self._connection.execute(_QUARANTINE, (sequence,))
        self.remove(sequence)

    def totals(self) -> Totals:
        self._changes.flush()
        found = self._connection.execute(_TOTALS, (self._queue,))
        return {State(state): Total(messages, size) for state, messages, size in found}

    def _select(self, statement: str, *values: int | str) -> list[Row]:
        return self._read(list, statement, *values)

    def _read(
        self, take: Callable[[Iterator[Row]], Taken], statement: str, *values: int | str
    ) -> Taken:
        """Have `take` read the rows: SQLite loads a content once its row is asked for."""
        values = (self._queue, *values)
        try:
            return take(map(self._row, self._connection.execute(statement, values)))
        except UnicodeDecodeError:
            raw = statement.replace(TEXTS, _RAW_TEXTS)
            return take(map(self._row_of_bytes, self._connection.execute(raw, values)))

    def _row_of_bytes(self, values: tuple[Any, ...]) -> Row:
        """As `_row`, for a row in which flipped bits have left a text that isn't UTF-8."""
        *others, reason, description, session, source, checksum = values
        raw = (reason, description, session, source)
        texts = [None if each is None else str(each, "utf-8", "replace") for each in raw]
        row = self._row((*others, *texts, checksum))
        same = [None if text is None else text.encode() for text in texts] == [*raw]
        return row if same else attrs.evolve(row, damaged=True)

    def _values(self, row: Row) -> tuple[Any, ...]:
        return (
            row.sequence,
            row.number,
            self._queue,
            row.state,
            row.enqueued,
            row.due,
            row.expires,
            row.original,
            row.size,
            row.reason,
            row.description,
            row.session,
            row.source,
            self._checksum(row, row.content),
            row.content,
        )

    def _row(self, values: tuple[Any, ...]) -> Row:
        sequence, state, enqueued, size, content, due, expires, times, *rest = values
        original, number, reason, description, session, source, checksum = rest
        row = Row(
            sequence=sequence,
            number=sequence if number is None else number,
            state=_STATES[state] if state in _STATES else State(state),
            enqueued=enqueued,
            size=size,
            content=content,
            due=due,
            expires=expires,
            deliveries=self._counts.get(sequence, times),
            original=original,
            reason=reason,
            description=description,
            session=session,
            source=source,
        )
        fits = checksum == self._checksum(row, content)
        if not fits and number is None:
            fits = checksum in self._former_checksums(row, content)
        return row if fits else attrs.evolve(row, damaged=True)

    def _checksum_in_place_of(self, sequence: int, new: Row) -> int | None:
        """
        The checksum of the replaced row, which stays wrong if the row is damaged; None: no such
        row.
        """
        stored = self.get(sequence)
        if stored is None:
            return None
        new = attrs.evolve(new, size=stored.size, session=stored.session, source=stored.source)
        checksum = self._checksum(new, stored.content)
        return ~checksum if stored.damaged else checksum

    def _former_checksums(self, row: Row, content: bytes) -> tuple[int, int]:
        """The checksums that a row without a number may have: of version 5, or of version 1."""
        return self._checksum(row, content, numbered=False), zlib.crc32(content, self._queue)

    def _checksum(self, row: Row, content: bytes, *, numbered: bool = True) -> int:
        """
        The checksum of the queue's id and of all stored values of a message, except its delivery
        count.
        """
        about = _NUMBERS.pack(
            row.sequence,
            row.state,
            row.enqueued,
            row.size,
            _NEVER if row.due is None else row.due,
            _NEVER if row.expires is None else row.expires,
            _NEVER if row.original is None else row.original,
            row.number,
        )
        about = about if numbered else about[: _UNNUMBERED.size]
        texts = (row.reason, row.description, row.session, row.source)
        if texts != _NO_TEXTS:
            about += "\0".join("" if text is None else f"={text}" for text in texts).encode()
        return zlib.crc32(content, zlib.crc32(about, self._queue))
