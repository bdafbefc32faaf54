"""The content of one queue in memory: dicts, and sorted lists as indexes."""

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import attrs

from gateway.store.engine.journal import Journal, put_entry
from gateway.store.engine.records import Row, SessionRecord, State, Total, within

_EVER: Final = 2**63  # beyond each number and date of a row


def _put(entries: list[Any], entry: Any) -> None:
    """
    Add an entry to a sorted list, unless it is there already: an undo may find half of a change.
    """
    place = bisect.bisect_left(entries, entry)
    if entries[place : place + 1] != [entry]:
        entries.insert(place, entry)


def _drop(entries: list[Any], entry: Any) -> None:
    place = bisect.bisect_left(entries, entry)
    if entries[place : place + 1] == [entry]:
        del entries[place]


@attrs.define(eq=False)
class _SequenceIndex:
    """Sequence numbers by a key, in order."""

    _entries: list[tuple[int, int]] = attrs.field(factory=list)

    def add(self, key: int, sequence: int) -> None:
        _put(self._entries, (key, sequence))

    def discard(self, key: int, sequence: int) -> None:
        _drop(self._entries, (key, sequence))

    def between(self, after: int, upto: int, limit: int) -> list[int]:
        """The sequence numbers whose key is above `after` and not above `upto`."""
        start = bisect.bisect_right(self._entries, (after, math.inf))
        end = bisect.bisect_right(self._entries, (upto, math.inf))
        return [sequence for _, sequence in self._entries[start : min(end, start + limit)]]

    def first(self, after: int) -> int | None:
        start = bisect.bisect_right(self._entries, (after, math.inf))
        return self._entries[start][0] if start < len(self._entries) else None


@attrs.define(eq=False)
class MemoryRows:
    """`Rows` in a dict and sorted lists."""

    _journal: Journal = attrs.field(factory=Journal)
    _rows: dict[int, Row] = attrs.field(factory=dict)
    _order: dict[State, _SequenceIndex] = attrs.field(
        factory=lambda: {state: _SequenceIndex() for state in State}
    )
    _numbers: dict[State, _SequenceIndex] = attrs.field(
        factory=lambda: {state: _SequenceIndex() for state in State}
    )
    _due: _SequenceIndex = attrs.field(factory=_SequenceIndex)
    _hidden: _SequenceIndex = attrs.field(factory=_SequenceIndex)
    _expiry: _SequenceIndex = attrs.field(factory=_SequenceIndex)
    _sessions: dict[str, list[int]] = attrs.field(factory=dict)  # of ACTIVE rows

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._journal.record(self._drop, row)
            self._put(row)

    def get(self, sequence: int) -> Row | None:
        return self._rows.get(sequence)

    def first_from(self, state: State, number: int) -> int | None:
        found = self._numbers[state].between(number - 1, _EVER, 1)
        return found[0] if found else None

    def after(self, state: State, sequence: int, limit: int) -> Sequence[Row]:
        return self._existing(self._order[state].between(sequence, _EVER, limit))

    def page(self, state: State, sequence: int, limit: int, most_bytes: int) -> Sequence[Row]:
        rows = self.after(state, sequence, limit)
        return rows[: within([row.size for row in rows], most_bytes)]

    def due(self, date: int, limit: int, *, hidden: bool) -> Sequence[Row]:
        index = self._hidden if hidden else self._due
        return self._existing(index.between(-1, date, limit))

    def expired(self, since: int, wall: int, limit: int) -> Sequence[Row]:
        return self._existing(self._expiry.between(since, wall, limit))

    def in_session(self, session: str, sequence: int, limit: int) -> Sequence[Row]:
        numbers = self._sessions.get(session, [])
        start = bisect.bisect_right(numbers, sequence)
        return self._existing(numbers[start : start + limit])

    def next_due(self, *, hidden: bool) -> int | None:
        return (self._hidden if hidden else self._due).first(-1)

    def next_expiry(self, since: int) -> int | None:
        return self._expiry.first(since)

    def count_delivery(self, row: Row, deliveries: int, *, durable: bool) -> None:
        self._change(attrs.evolve(self._rows[row.sequence], deliveries=deliveries))

    def replace(self, old: Row, new: Row) -> None:
        content = self._rows[old.sequence].content
        self.remove(old.sequence)
        self.add([attrs.evolve(new, content=content)])

    def rewrite(self, sequence: int, content: Any, size: int) -> None:
        self._change(attrs.evolve(self._rows[sequence], content=content, size=size))

    def remove(self, sequence: int) -> None:
        row = self._rows[sequence]
        self._journal.record(self._put, row)
        self._drop(row)

    def quarantine(self, sequence: int) -> None:
        self.remove(sequence)

    def totals(self) -> Mapping[State, Total]:
        rows = {state: self.after(state, -1, len(self._rows)) for state in State}
        return {
            state: Total(len(some), sum(row.size for row in some)) for state, some in rows.items()
        }

    def _change(self, row: Row) -> None:
        """Replace a row by another with the same dates, in the same place."""
        self._journal.record(self._rows.__setitem__, row.sequence, self._rows[row.sequence])
        self._rows[row.sequence] = row

    def _put(self, row: Row) -> None:
        self._rows[row.sequence] = row
        for index, key in self._places(row):
            index.add(key, row.sequence)
        if row.state is State.ACTIVE and row.session is not None:
            _put(self._sessions.setdefault(row.session, []), row.sequence)

    def _drop(self, row: Row) -> None:
        self._rows.pop(row.sequence, None)
        for index, key in self._places(row):
            index.discard(key, row.sequence)
        if row.state is State.ACTIVE and row.session is not None:
            numbers = self._sessions.get(row.session, [])
            _drop(numbers, row.sequence)
            if not numbers:
                self._sessions.pop(row.session, None)

    def _places(self, row: Row) -> Iterator[tuple[_SequenceIndex, int]]:
        yield self._order[row.state], row.sequence
        yield self._numbers[row.state], row.number
        if row.due is not None:
            yield self._hidden if row.is_hidden else self._due, row.due
        elif row.expires is not None and row.state is State.ACTIVE:
            yield self._expiry, row.expires

    def _existing(self, sequences: Iterable[int]) -> list[Row]:
        return [self._rows[sequence] for sequence in sequences]


@attrs.define(eq=False)
class MemoryNumbers:
    """`Numbers` in a dict."""

    _journal: Journal = attrs.field(factory=Journal)
    _last: dict[State, int] = attrs.field(factory=dict)

    def next(self, state: State, count: int = 1) -> int:
        last = self._last.get(state)
        self._journal.record(put_entry, self._last, state, last)
        self._last[state] = (last or 0) + count
        return (last or 0) + 1


@attrs.define(eq=False)
class MemorySessions:
    """`SessionRows` in a dict and sorted lists."""

    _journal: Journal = attrs.field(factory=Journal)
    _records: dict[str, SessionRecord] = attrs.field(factory=dict)
    _order: list[tuple[int, str]] = attrs.field(factory=list)
    _names: list[str] = attrs.field(factory=list)  # of the sessions with messages
    _updates: list[tuple[int, str]] = attrs.field(factory=list)

    def get(self, session: str) -> SessionRecord | None:
        return self._records.get(session)

    def put(self, record: SessionRecord) -> None:
        self.remove(record.id)
        self._journal.record(self._drop, record)
        self._put(record)

    def remove(self, session: str) -> None:
        record = self._records.get(session)
        if record is not None:
            self._journal.record(self._put, record)
            self._drop(record)

    def _put(self, record: SessionRecord) -> None:
        self._records[record.id] = record
        if record.first is not None:
            _put(self._order, (record.first, record.id))
            _put(self._names, record.id)
        if record.state is not None:
            _put(self._updates, (record.updated, record.id))

    def _drop(self, record: SessionRecord) -> None:
        self._records.pop(record.id, None)
        if record.first is not None:
            _drop(self._order, (record.first, record.id))
            _drop(self._names, record.id)
        if record.state is not None:
            _drop(self._updates, (record.updated, record.id))

    def next(self, after: int) -> SessionRecord | None:
        start = bisect.bisect_left(self._order, (after + 1, ""))
        return self._records[self._order[start][1]] if start < len(self._order) else None

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        if updated_since is None:
            return self._names[skip : skip + top]
        start = bisect.bisect_left(self._updates, (updated_since + 1, "")) + skip
        return [session for _, session in self._updates[start : start + top]]

    def state_bytes(self) -> int:
        return sum(record.size for record in self._records.values())


@attrs.define(eq=False)
class MemorySeenIds:
    """`SeenIds` in a dict, which is ordered by expiry as long as the window doesn't change."""

    _journal: Journal = attrs.field(factory=Journal)
    _until: dict[str, int] = attrs.field(factory=dict)

    def until(self, message_id: str) -> int | None:
        return self._until.get(message_id)

    def put(self, message_id: str, until: int) -> None:
        self._journal.record(self._put_back, message_id, self._until.get(message_id))
        self._until.pop(message_id, None)
        self._until[message_id] = until

    def forget(self, wall: int, limit: int) -> None:
        while limit > 0 and self._until and self._until[first := next(iter(self._until))] <= wall:
            self._journal.record(self._put_back, first, self._until[first])
            del self._until[first]
            limit -= 1

    def _put_back(self, message_id: str, until: int | None) -> None:
        put_entry(self._until, message_id, until)
        self._until = dict(sorted(self._until.items(), key=itemgetter(1)))
