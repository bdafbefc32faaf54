"""The index of one queue's messages: counts, bytes, delivery order and dates."""

import heapq
from collections.abc import Sequence
from typing import Any

import attrs

from gateway.domain.clocks.times import Now
from gateway.store.engine.journal import Journal, remove_from_heap
from gateway.store.engine.records import Row, Rows, State, Totals


@attrs.define(eq=False)
class QuotaUsage:
    """The quota that a topic shares with its subscriptions, and the bytes that count against it."""

    quota: int  # bytes
    bytes: int = 0


@attrs.define(eq=False)
class Lane:
    """
    The order in which messages of one state are delivered.

    Every row that isn't locked is either in `returned` or comes after `cursor`, so the next row is
    found without looking at locked ones.
    """

    cursor: int = 0
    returned: list[int] | None = None  # a heap; made when the first message is delivered again
    fresh: int = 0  # messages that became available since the last `drain_fresh`
    messages: int = 0
    _known: set[int] | None = None  # the entries of `returned`, as a set

    def push(self, sequence: int, journal: Journal) -> None:
        """
        Have the message delivered again. A message that is already in `returned` isn't added twice.
        """
        if self.returned is None or self._known is None:
            self.returned, self._known = [], set()
        if sequence not in self._known:
            journal.record(self._remove, sequence)
            self._known.add(sequence)
            heapq.heappush(self.returned, sequence)

    def pop(self, journal: Journal) -> int | None:
        """Remove and return the first of `returned`; None: there is none."""
        if not self.returned or self._known is None:
            return None
        journal.record(self.push, self.returned[0], journal)
        sequence = heapq.heappop(self.returned)
        self._known.discard(sequence)
        return sequence

    def recount(self, messages: int, fresh: int) -> None:
        self.messages, self.fresh = messages, fresh

    def _remove(self, sequence: int) -> None:
        assert self.returned is not None, "the message is there"
        assert self._known is not None, "as above"
        self._known.discard(sequence)
        remove_from_heap(self.returned, sequence)


@attrs.define(eq=False)
class MessageIndex:
    """
    All changes of a queue's rows go through here, so that counts and rows can't disagree.

    Parts that many queues never need are made at their first use: each object of a queue costs a
    send among many queues the time of a cache miss.
    """

    rows: Rows
    shared: QuotaUsage | None = None  # of a topic and its subscriptions
    journal: Journal = attrs.field(factory=Journal)
    _locked: set[int] | None = None  # sequences
    bytes: int = 0
    next_due: int | None = None  # a date; no scheduled message is due earlier
    next_visible: int | None = None  # an own date, as all below; no hidden message is due earlier
    next_expiry: int | None = None
    _swept: int = -1  # available messages that expired up to this date are already removed
    _active: Lane | None = None
    _lanes: dict[State, Lane] | None = None  # of the other states
    _quarantined: list[int] | None = None  # numbers, since `drain_quarantined`

    _counted: Totals | None = None  # a count of the messages, if the maker has one

    def __attrs_post_init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Forget the state in memory, and read it again from the storage."""
        totals, self._counted = self._counted, None
        if totals is None:
            totals = self.rows.totals()
        self.journal.keep(self)
        self._active = self._lanes = None
        for state, total in totals.items():
            lane = self._lane(state)
            lane.messages = lane.fresh = total.messages
        self._add_bytes(sum(total.bytes for total in totals.values()) - self.bytes)
        self._locked = None
        self._swept = -1
        self.next_due = self.rows.next_due(hidden=False) if totals else None
        self.next_visible = self.rows.next_due(hidden=True) if totals else None
        self.next_expiry = self.rows.next_expiry(self._swept) if totals else None

    def forsake(self) -> None:
        """Take all bytes of this queue out of the shared quota."""
        self._add_bytes(-self.bytes)

    # --- changes

    def add(self, rows: Sequence[Row]) -> None:
        self.rows.add(rows)
        counts: dict[State, int] = {}
        size = 0
        for row in rows:
            self._record_dates(row)
            counts[row.state] = counts.get(row.state, 0) + 1
            size += row.size
        for state, count in counts.items():
            self._count(state, count)
        self._add_bytes(size)

    def replace(self, old: Row, new: Row) -> None:
        self.rows.replace(old, new)
        self._count(old.state, -1)
        self._count(new.state, 1)
        self._record_dates(new)

    def rewrite(self, row: Row, content: Any, size: int) -> Row:
        """Replace a row's content; return the row without content, as locks hold it."""
        self.rows.rewrite(row.sequence, content, size)
        self._add_bytes(size - row.size)
        return attrs.evolve(row, size=size, content=None)

    def remove(self, row: Row) -> None:
        self.rows.remove(row.sequence)
        self._count(row.state, -1)
        self._add_bytes(-row.size)

    def quarantine(self, row: Row) -> None:
        self.rows.quarantine(row.sequence)
        if self._quarantined is None:
            self._quarantined = []
        self.journal.record(self._quarantined.pop)
        self._quarantined.append(row.number)
        self._count(row.state, -1)
        self._add_bytes(-row.size)

    # --- order

    def next(self, state: State, limit: int) -> Sequence[Row]:
        """
        The next rows to deliver. A row that isn't delivered must be given back with `give_back`.
        """
        lane = self._lane(state)
        self.journal.keep(lane)
        returned: list[Row] = []
        while len(returned) < limit and (sequence := lane.pop(self.journal)) is not None:
            row = self.rows.get(sequence)
            # Otherwise the message has expired or was hidden after it was given back.
            if row is not None and row.state is state:
                returned.append(row)
        if returned:
            return returned
        rows = self.rows.after(state, lane.cursor, limit)
        lane.cursor = rows[-1].sequence if rows else lane.cursor
        return rows

    def give_back(self, row: Row) -> None:
        lane = self._lane(row.state)
        self.journal.keep(lane)
        lane.push(row.sequence, self.journal)
        lane.fresh += 1

    def rewind(self, state: State) -> None:
        """Have `next` find again every row of that state, also those that sessions have locked."""
        lane = self._lane(state)
        self.journal.keep(lane)
        lane.cursor = 0

    def show(self, old: Row, new: Row) -> None:
        """Replace a row that isn't available by one that is, in the same place."""
        self.replace(old, new)
        lane = self._lane(new.state)
        if new.sequence <= lane.cursor:
            lane.push(new.sequence, self.journal)

    # --- locks

    def lock(self, row: Row) -> None:
        """Mark the row as locked, so that it doesn't expire meanwhile."""
        if self._locked is None:
            self._locked = set()
        self.journal.record(self._locked.discard, row.sequence)
        self._locked.add(row.sequence)

    def unlock(self, row: Row) -> None:
        if self._locked is not None and row.sequence in self._locked:
            self.journal.record(self._locked.add, row.sequence)
            self._locked.discard(row.sequence)

    def is_locked(self, row: Row) -> bool:
        return self._locked is not None and row.sequence in self._locked

    @property
    def locked(self) -> int:
        """The number of locked rows."""
        return 0 if self._locked is None else len(self._locked)

    # --- dates

    def expired(self, now: Now, limit: int) -> list[Row]:
        """
        Some rows that have expired and aren't locked. A locked row is checked when its lock ends.
        """
        self.journal.keep(self)
        limit += self.locked
        rows = self.rows.expired(self._swept, now.own, limit)
        # Several rows may expire at the same date, so the next search starts again at the last
        # row's.
        last = rows[-1].expires if len(rows) == limit else None
        self._swept = now.own if last is None else last - 1
        return [row for row in rows if not self.is_locked(row)]

    def refresh_due(self) -> None:
        self.journal.keep(self)
        self.next_due = self.rows.next_due(hidden=False)

    def refresh_visible(self) -> None:
        self.journal.keep(self)
        self.next_visible = self.rows.next_due(hidden=True)

    def refresh_expiry(self) -> None:
        self.journal.keep(self)
        self.next_expiry = self.rows.next_expiry(self._swept)

    def _record_dates(self, row: Row) -> None:
        if row.due is not None:
            self.journal.keep(self)
            if row.is_hidden:
                self.next_visible = min(row.due, self.next_visible or row.due)
            else:
                self.next_due = min(row.due, self.next_due or row.due)
        elif row.expires is not None and row.state is State.ACTIVE:
            self.journal.keep(self)
            self.next_expiry = min(row.expires, self.next_expiry or row.expires)
            self._swept = min(self._swept, row.expires - 1)  # the wall clock may have been set back

    # --- telling

    @property
    def used(self) -> int:
        """The bytes that count against the quota."""
        return self.bytes if self.shared is None else self.shared.bytes

    def count(self, state: State) -> int:
        lane = self._known_lane(state)
        return 0 if lane is None else lane.messages

    @property
    def has_quarantined(self) -> bool:
        """True if `drain_quarantined` would return any."""
        return bool(self._quarantined)

    def drain_quarantined(self) -> Sequence[int]:
        """The sequence numbers of the messages that were quarantined since the last call."""
        found, self._quarantined = self._quarantined, None
        return found or ()

    def drain_fresh(self) -> tuple[int, int, int]:
        """
        The numbers of active, dead-lettered and transfer dead-lettered messages that became
        available since the last call.
        """
        return (
            self._drain_fresh(State.ACTIVE),
            self._drain_fresh(State.DEAD),
            self._drain_fresh(State.TRANSFER),
        )

    def _drain_fresh(self, state: State) -> int:
        lane = self._known_lane(state)
        if lane is None:
            return 0
        fresh, lane.fresh = lane.fresh, 0
        return fresh

    def _lane(self, state: State) -> Lane:
        lane = self._known_lane(state)
        if lane is None:
            lane = Lane()
            if state is State.ACTIVE:
                self._active = lane
            else:
                self._lanes = {**(self._lanes or {}), state: lane}
        return lane

    def _known_lane(self, state: State) -> Lane | None:
        """The lane of that state, if there was a message in it."""
        if state is State.ACTIVE:
            return self._active
        return None if self._lanes is None else self._lanes.get(state)

    def _count(self, state: State, change: int) -> None:
        lane = self._lane(state)
        self.journal.record(lane.recount, lane.messages, lane.fresh)
        lane.messages += change
        if change > 0:
            lane.fresh += change

    def _add_bytes(self, change: int) -> None:
        own, used = self.bytes, self.used
        self.journal.record(self._weigh, own, used)
        self._weigh(own + change, used + change)

    def _weigh(self, own: int, used: int) -> None:
        self.bytes = own
        if self.shared is not None:
            self.shared.bytes = used
