"""
The rules of one queue and its dead-letter sub-queue, for every namespace that we keep ourselves.

They decide; `Rows` stores and finds. Each rule changes the rows first and what is in memory after,
and a rule that refuses (a `BrokerError`) does so before it changes anything.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    EntityDisabled,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    QuotaExceeded,
)
from gateway.domain.locks import Lock, Locks
from gateway.domain.message import Abandon, Complete, DeadLetter, ReceiveMode, Settlement
from gateway.domain.queue_checks import accept, check_reason
from gateway.domain.stored import MICROSECOND, Incoming, Now, Row, Rows, State, to_date

# What Service Bus writes into the properties of a message that it moves on its own.
EXPIRED: Final = DeadLetter(
    reason="TTLExpiredException", description="The message expired and was dead lettered."
)
TOO_MANY_DELIVERIES: Final = "MaxDeliveryCountExceeded"

_SWEEP: Final = 200  # rows that one operation moves on its own; the next one goes on


@attrs.frozen
class Taken:
    """A row as it's handed out, for which time; `token` and `locked_until` (wall) if locked."""

    row: Row
    deliveries: int
    token: str | None = None
    locked_until: int | None = None


@attrs.define(eq=False)
class _Lane:
    """
    The order in which messages of one state are handed out.

    Every row that isn't locked either stands in `returned` or comes after `cursor`, so that
    taking the next one never looks at those that are locked.
    """

    cursor: int = 0
    returned: list[int] = attrs.field(factory=list)  # a heap
    fresh: int = 0  # became available since somebody asked
    messages: int = 0


@attrs.define(eq=False, kw_only=True)
class Queue:
    """One queue. Every method is one step; none waits."""

    path: EntityPath
    properties: QueueProperties
    created: int
    max_message_size: int  # bytes
    _rows: Rows
    _next_sequence: Callable[[], int]  # ever higher, never the same again
    _new_token: Callable[[], str]
    _locks: Locks = attrs.field(factory=Locks)
    _locked: set[int] = attrs.field(factory=set)  # sequence numbers
    _lanes: dict[State, _Lane] = attrs.field(factory=dict)
    _quarantined: list[int] = attrs.field(factory=list)
    _bytes: int = 0
    _swept: int = -1  # whatever is available and expires up to then is gone
    _next_due: int | None = None  # none is due before it
    _next_expiry: int | None = None

    def __attrs_post_init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Forget what is in memory, all locks too, and begin with what is stored."""
        totals = self._rows.totals()
        self._lanes = {state: _Lane() for state in State}
        for state, total in totals.items():
            self._lanes[state].messages = self._lanes[state].fresh = total.messages
        self._bytes = sum(total.bytes for total in totals.values())
        self._locks.clear()
        self._locked.clear()
        self._swept = -1
        self._next_due = self._rows.next_due()
        self._next_expiry = self._rows.next_expiry(self._swept)

    # --- sending

    def check_sendable(self) -> None:
        if self.properties.status in {EntityStatus.DISABLED, EntityStatus.SEND_DISABLED}:
            raise EntityDisabled(f"{self.path} is {self.properties.status.value}")

    def send(self, messages: Sequence[Incoming], now: Now) -> None:
        """Take all messages, in this order, or none."""
        self.check_sendable()
        self.sweep(now)
        for message in messages:
            if message.size > self.max_message_size:
                raise MessageTooLarge(
                    f"{self.path}: a message of {message.size} bytes,"
                    f" at most {self.max_message_size} expected"
                )
        added = sum(message.size for message in messages)
        quota = self.properties.max_size_in_megabytes * 2**20
        if self._bytes + added > quota:
            raise QuotaExceeded(f"{self.path} holds {self._bytes} of {quota} bytes")
        rows = [accept(each, self._next_sequence(), self.properties, now) for each in messages]
        self._rows.add(rows)
        for row in rows:
            self._note_dates(row)
            self._count(row.state, 1)
        self._bytes += added

    def _note_dates(self, row: Row) -> None:
        if row.due is not None:
            self._next_due = min(row.due, self._next_due or row.due)
        elif row.expires is not None:
            self._next_expiry = min(row.expires, self._next_expiry or row.expires)
            self._swept = min(self._swept, row.expires - 1)  # the clock may have been set back

    # --- receiving

    def check_receivable(self) -> None:
        if self.properties.status in {EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED}:
            raise EntityDisabled(f"{self.path} is {self.properties.status.value}")

    def take(self, state: State, limit: int, mode: ReceiveMode, now: Now) -> list[Taken]:
        """Hand out up to `limit` messages, the oldest first; none if there is none."""
        self.check_receivable()
        self.sweep(now)
        taken: list[Taken] = []
        looked_at = 0
        while len(taken) < limit and looked_at < limit + _SWEEP:
            rows = self._next_rows(state, limit - len(taken))
            looked_at += len(rows)
            if not rows:
                break
            taken += [self._hand_out(row, mode, now) for row in rows if self._fit(row, now)]
        return taken

    def _next_rows(self, state: State, limit: int) -> Sequence[Row]:
        lane = self._lanes[state]
        returned: list[Row] = []
        while lane.returned and len(returned) < limit:
            row = self._rows.get(heapq.heappop(lane.returned))
            if row is not None:  # None: it has expired since
                returned.append(row)
        if returned:
            return returned
        rows = self._rows.after(state, lane.cursor, limit)
        lane.cursor = rows[-1].sequence if rows else lane.cursor
        return rows

    def _fit(self, row: Row, now: Now) -> bool:
        """Whether a row may be handed out; one that may not goes where it belongs."""
        if row.damaged:
            self._quarantine(row)
        elif self._is_expired(row, now):
            self._expire(row)
        elif row.state is State.ACTIVE and row.deliveries >= self.properties.max_delivery_count:
            self._bury(row, self._too_many_deliveries(row))
        else:
            return True
        return False

    def _hand_out(self, row: Row, mode: ReceiveMode, now: Now) -> Taken:
        deliveries = row.deliveries + 1
        if mode is ReceiveMode.RECEIVE_AND_DELETE:
            self._remove(row)
            return Taken(row, deliveries)
        last_but_one = self.properties.max_delivery_count - 1
        # A consumer that takes the process down with it must not get the message for ever.
        durable = row.state is State.ACTIVE and deliveries >= last_but_one
        self._rows.count_delivery(row, deliveries, durable=durable)
        duration = self.properties.lock_duration
        token = self._new_token()
        until = now.monotonic + duration.total_seconds()
        self._locks.add(token, attrs.evolve(row, deliveries=deliveries, content=None), until)
        self._locked.add(row.sequence)
        return Taken(row, deliveries, token, now.wall + duration // MICROSECOND)

    # --- settling

    def settle(self, token: str | None, settlement: Settlement, now: Now) -> None:
        self.sweep(now)
        lock = self._find(token, now)
        match settlement:
            case Complete():
                self._remove(lock.row)
            case DeadLetter():
                self._check_dead_letter(lock.row, settlement)
                self._bury(lock.row, settlement)
            case Abandon():
                self._give_back(lock.row, now)
        self._forget(lock)

    def renew(self, token: str | None, now: Now) -> int:
        """Extend a lock by the lock duration; return until when (wall) it holds."""
        lock = self._find(token, now)
        duration = self.properties.lock_duration
        self._locks.extend(lock, now.monotonic + duration.total_seconds())
        return now.wall + duration // MICROSECOND

    def release(self, tokens: Iterable[str], now: Now, *, delivered: bool = True) -> None:
        """
        Give back what is still locked of `tokens`.

        With `delivered=False` nobody has seen the messages, so that it doesn't count.
        """
        for token in tokens:
            lock = self._locks.find(token, now.monotonic)
            if lock is None:
                continue
            row = lock.row
            if not delivered:
                row = attrs.evolve(row, deliveries=row.deliveries - 1)
                self._rows.count_delivery(row, row.deliveries, durable=False)
            self._give_back(row, now)
            self._forget(lock)

    def quarantine(self, token: str, now: Now) -> None:
        """Put a locked message aside: it can't be read."""
        lock = self._find(token, now)
        self._quarantine(lock.row)
        self._forget(lock)

    def _find(self, token: str | None, now: Now) -> Lock:
        lock = self._locks.find(token, now.monotonic)
        if lock is None:
            raise LockLost(f"{self.path}: the lock ran out, or was never given")
        return lock

    def _forget(self, lock: Lock) -> None:
        self._locks.drop(lock.token)
        self._locked.discard(lock.row.sequence)

    def _check_dead_letter(self, row: Row, settlement: DeadLetter) -> None:
        if row.state is State.DEAD:
            raise InvalidRequest(f"{self.path.dead_letter}: a message is dead-lettered once only")
        check_reason(settlement)

    def _give_back(self, row: Row, now: Now) -> None:
        if self._fit(row, now):
            lane = self._lanes[row.state]
            heapq.heappush(lane.returned, row.sequence)
            lane.fresh += 1

    # --- what becomes due

    def sweep(self, now: Now) -> None:
        """Do what time has brought about: locks that ran out, scheduled and expired messages."""
        for lock in self._locks.run_out(now.monotonic):
            self._give_back(lock.row, now)
            self._locked.discard(lock.row.sequence)
        if not now.trusted:
            return
        if self._next_due is not None and self._next_due <= now.wall:
            for row in self._rows.due(now.wall, _SWEEP):
                self._enqueue(row)
            self._next_due = self._rows.next_due()
        if self._next_expiry is not None and self._next_expiry <= now.wall:
            self._sweep_expired(now)

    def next_event(self, now: Now) -> float | None:
        """When (monotonic) `sweep` finds something to do; it may be less than it seems."""
        moments = [
            now.when(wall) for wall in (self._next_due, self._next_expiry) if wall is not None
        ]
        end = self._locks.next_end()
        return min(moments if end is None else [*moments, end], default=None)

    def _enqueue(self, row: Row) -> None:
        """Service Bus too gives a scheduled message its sequence number when it's due."""
        active = attrs.evolve(
            row,
            sequence=self._next_sequence(),
            state=State.ACTIVE,
            due=None,
            original=row.sequence,
        )
        self._rows.replace(row, active)
        self._count(row.state, -1)
        self._count(active.state, 1)
        self._note_dates(active)

    def _sweep_expired(self, now: Now) -> None:
        limit = _SWEEP + len(self._locked)
        rows = self._rows.expired(self._swept, now.wall, limit)
        for row in rows:
            if row.sequence not in self._locked:  # those are judged when they come back
                self._fit(row, now)
        # More than one may expire at the same moment: begin again with the last one's.
        last = rows[-1].expires if len(rows) == limit else None
        self._swept = now.wall if last is None else last - 1
        self._next_expiry = self._rows.next_expiry(self._swept)

    def _is_expired(self, row: Row, now: Now) -> bool:
        live = row.state is not State.ACTIVE or row.expires is None or row.expires > now.wall
        return not live and now.trusted

    def _expire(self, row: Row) -> None:
        if self.properties.dead_lettering_on_expiration:
            self._bury(row, EXPIRED)
        else:
            self._remove(row)

    # --- moves

    def _bury(self, row: Row, why: DeadLetter) -> None:
        dead = attrs.evolve(
            row,
            sequence=self._next_sequence(),
            state=State.DEAD,
            expires=None,
            original=row.original or row.sequence,
            reason=why.reason,
            description=why.description,
        )
        self._rows.replace(row, dead)
        self._count(row.state, -1)
        self._count(dead.state, 1)

    def _too_many_deliveries(self, row: Row) -> DeadLetter:
        return DeadLetter(
            reason=TOO_MANY_DELIVERIES,
            description=f"Message could not be consumed after {row.deliveries} delivery attempts.",
        )

    def _remove(self, row: Row) -> None:
        self._rows.remove(row.sequence)
        self._count(row.state, -1)
        self._bytes -= row.size

    def _quarantine(self, row: Row) -> None:
        self._rows.quarantine(row.sequence)
        self._quarantined.append(row.sequence)
        self._count(row.state, -1)
        self._bytes -= row.size

    def _count(self, state: State, change: int) -> None:
        lane = self._lanes[state]
        lane.messages += change
        lane.fresh += max(change, 0)

    # --- telling

    def drain_fresh(self, state: State) -> int:
        """How many messages became available since the last call: whom to wake."""
        lane = self._lanes[state]
        fresh, lane.fresh = lane.fresh, 0
        return fresh

    def drain_quarantined(self) -> list[int]:
        """The sequence numbers that were put aside since the last call."""
        put_aside, self._quarantined = self._quarantined, []
        return put_aside

    def peek(self, states: Sequence[State], from_sequence: int, limit: int) -> list[Row]:
        """Rows from that sequence number on, in order, locked ones too; damaged ones never."""
        found = (self._rows.after(state, from_sequence - 1, limit) for state in states)
        rows = heapq.merge(*found, key=lambda row: row.sequence)
        return [row for row in rows if not row.damaged][:limit]

    def info(self) -> EntityInfo:
        return EntityInfo(
            path=self.path,
            properties=self.properties,
            max_message_size=self.max_message_size,
            active=self._lanes[State.ACTIVE].messages,
            dead_lettered=self._lanes[State.DEAD].messages,
            scheduled=self._lanes[State.SCHEDULED].messages,
            size=self._bytes,
            created=to_date(self.created),
        )
