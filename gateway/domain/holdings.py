"""The rows of one queue with what must be known of them at once: counts, bytes, order, dates."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway.domain.stored import Now, Row, Rows, State


@attrs.define(eq=False)
class Account:
    """Bytes that count against one quota: a topic and its subscriptions have one together."""

    bytes: int = 0


@attrs.define(eq=False)
class Lane:
    """
    The order in which messages of one state are handed out.

    Every row that isn't locked either stands in `returned` or comes after `cursor`, so that
    taking the next one never looks at those that are locked.
    """

    cursor: int = 0
    returned: list[int] = attrs.field(factory=list)  # a heap
    fresh: int = 0  # became available since somebody asked
    messages: int = 0
    _known: set[int] = attrs.field(factory=set)  # what stands in `returned`

    def push(self, sequence: int) -> None:
        """Have it handed out again; what stands there already isn't handed out twice."""
        if sequence not in self._known:
            self._known.add(sequence)
            heapq.heappush(self.returned, sequence)

    def pop(self) -> int:
        sequence = heapq.heappop(self.returned)
        self._known.discard(sequence)
        return sequence


@attrs.define(eq=False)
class Holdings:
    """Every change of a row goes through here, so that counts and rows can't disagree."""

    rows: Rows
    account: Account
    locked: set[int] = attrs.field(factory=set)  # sequence numbers
    bytes: int = 0
    next_due: int | None = None  # none is due before it
    next_expiry: int | None = None
    _swept: int = -1  # whatever is available and expires up to then is gone
    _lanes: Mapping[State, Lane] = attrs.field(factory=dict)
    quarantined: list[int] = attrs.field(factory=list)  # since somebody asked

    def __attrs_post_init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Forget what is in memory, and begin with what is stored."""
        totals = self.rows.totals()
        self._lanes = {state: Lane() for state in State}
        for state, total in totals.items():
            lane = self._lanes[state]
            lane.messages = lane.fresh = total.messages
        self._hold(sum(total.bytes for total in totals.values()) - self.bytes)
        self.locked.clear()
        self._swept = -1
        self.next_due = self.rows.next_due()
        self.next_expiry = self.rows.next_expiry(self._swept)

    def forsake(self) -> None:
        """Give back the room that all of it takes."""
        self._hold(-self.bytes)

    # --- changes

    def add(self, rows: Sequence[Row]) -> None:
        self.rows.add(rows)
        for row in rows:
            self._note_dates(row)
            self._count(row.state, 1)
            self._hold(row.size)

    def replace(self, old: Row, new: Row) -> None:
        self.rows.replace(old, new)
        self._count(old.state, -1)
        self._count(new.state, 1)
        self._note_dates(new)

    def rewrite(self, row: Row, content: Any, size: int) -> Row:
        """Give a row other content; return it, without that, as locked ones are."""
        self.rows.rewrite(row.sequence, content, size)
        self._hold(size - row.size)
        return attrs.evolve(row, size=size, content=None)

    def remove(self, row: Row) -> None:
        self.rows.remove(row.sequence)
        self._count(row.state, -1)
        self._hold(-row.size)

    def quarantine(self, row: Row) -> None:
        self.rows.quarantine(row.sequence)
        self.quarantined.append(row.sequence)
        self._count(row.state, -1)
        self._hold(-row.size)

    # --- order

    def next(self, state: State, limit: int) -> Sequence[Row]:
        """The next rows to hand out; who doesn't, gives them back."""
        lane = self._lanes[state]
        returned: list[Row] = []
        while lane.returned and len(returned) < limit:
            row = self.rows.get(lane.pop())
            # Otherwise it has expired since, or somebody has hidden it.
            if row is not None and row.state is state:
                returned.append(row)
        if returned:
            return returned
        rows = self.rows.after(state, lane.cursor, limit)
        lane.cursor = rows[-1].sequence if rows else lane.cursor
        return rows

    def give_back(self, row: Row) -> None:
        lane = self._lanes[row.state]
        lane.push(row.sequence)
        lane.fresh += 1

    def show(self, old: Row, new: Row) -> None:
        """Replace what isn't available by what is, under the same number."""
        self.replace(old, new)
        lane = self._lanes[new.state]
        if new.sequence <= lane.cursor:
            lane.push(new.sequence)

    # --- dates

    def expired(self, now: Now, limit: int) -> list[Row]:
        """Some rows that have expired and aren't locked, which are judged when they come back."""
        limit += len(self.locked)
        rows = self.rows.expired(self._swept, now.wall, limit)
        # More than one may expire at the same moment: begin again with the last one's.
        last = rows[-1].expires if len(rows) == limit else None
        self._swept = now.wall if last is None else last - 1
        return [row for row in rows if row.sequence not in self.locked]

    def look_for_due(self) -> None:
        self.next_due = self.rows.next_due()

    def look_for_expiry(self) -> None:
        self.next_expiry = self.rows.next_expiry(self._swept)

    def _note_dates(self, row: Row) -> None:
        if row.due is not None:
            self.next_due = min(row.due, self.next_due or row.due)
        elif row.expires is not None and row.state is State.ACTIVE:
            self.next_expiry = min(row.expires, self.next_expiry or row.expires)
            self._swept = min(self._swept, row.expires - 1)  # the clock may have been set back

    # --- telling

    def count(self, state: State) -> int:
        return self._lanes[state].messages

    def drain_fresh(self) -> tuple[int, int, int]:
        """How many active, dead and transfer messages became available since the last call."""
        lanes = self._lanes
        active, dead, transfer = lanes[State.ACTIVE], lanes[State.DEAD], lanes[State.TRANSFER]
        fresh = active.fresh, dead.fresh, transfer.fresh
        active.fresh = dead.fresh = transfer.fresh = 0
        return fresh

    def _count(self, state: State, change: int) -> None:
        lane = self._lanes[state]
        lane.messages += change
        lane.fresh += max(change, 0)

    def _hold(self, change: int) -> None:
        self.bytes += change
        self.account.bytes += change
