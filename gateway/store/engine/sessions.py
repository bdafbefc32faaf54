"""
The sessions of one queue: finds the next session to lock, and keeps the locks by token.

A session's stored `first` is corrected when the session is released. Until then it may be the
number of a message that has been removed, but never of a message after the oldest.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    InvalidRequest,
    QuotaExceeded,
    SessionLockLost,
    SessionNotAvailable,
    StateDamaged,
)
from gateway.domain.texts import check_session_id
from gateway.store.engine.journal import Journal, remove_from_heap
from gateway.store.engine.locks import Lock, Locks
from gateway.store.engine.records import MAX_SEQUENCE, Row, SessionRecord, State, Storage

MAX_SESSION_STATE: Final = 256 * 1024  # bytes: as Service Bus's standard tier
_LOOK: Final = 200  # the most sessions that a search corrects


@attrs.define(eq=False)
class HeldSession:
    """
    A locked session. Its messages stay locked as long as the session.

    Its rows that aren't locked are in `returned` or come after `cursor`.
    """

    id: str
    tokens: set[str] = attrs.field(factory=set)  # of its locked messages
    cursor: int = 0
    returned: list[int] = attrs.field(factory=list)  # a heap


@attrs.define(eq=False)
class Sessions:
    """
    Finds the next session as `Lane` finds the next message: a free session with messages is in
    `_returned`, or its `first` comes after `_cursor`.
    """

    _path: EntityPath
    _storage: Storage
    _new_token: Callable[[], str]
    _journal: Journal = attrs.field(factory=Journal)
    _locks: Locks[HeldSession] = attrs.field(init=False)
    _held: dict[str, HeldSession] = attrs.field(factory=dict)
    _cursor: int = 0
    _returned: list[tuple[int, str]] = attrs.field(factory=list)  # a heap
    _returned_ids: set[str] = attrs.field(factory=set)
    _fresh: int = 0
    _woken: set[str] = attrs.field(factory=set)
    _damaged: list[str] = attrs.field(factory=list)
    _state_bytes: int | None = None  # counted when a state is set for the first time

    def __attrs_post_init__(self) -> None:
        self._locks = Locks(self._journal)

    def reload(self) -> None:
        """Forget all locks, and read the sessions again from the storage."""
        self._locks.clear()
        self._held.clear()
        self._returned.clear()
        self._returned_ids.clear()
        self._damaged.clear()
        self._cursor = 0
        self._fresh = 1
        self._state_bytes = None

    # --- messages

    def make_available(self, row: Row) -> None:
        """Note that a message became available in its session."""
        session = row.session or ""
        record = self._find_record(session) or SessionRecord(id=session)
        if record.first is None:
            self._storage.sessions.put(attrs.evolve(record, first=row.sequence))
        if session in self._held:
            self._woken.add(session)
        else:
            self._fresh += 1

    def next_rows(self, held: HeldSession, limit: int) -> Sequence[Row]:
        self._journal.keep(held)
        rows: list[Row] = []
        while held.returned and len(rows) < limit:
            sequence = heapq.heappop(held.returned)
            self._journal.record(heapq.heappush, held.returned, sequence)
            row = self._storage.rows.get(sequence)
            if row is not None and row.state is State.ACTIVE:
                rows.append(row)
        if rows:
            return rows
        found = self._storage.rows.in_session(held.id, held.cursor, limit)
        held.cursor = found[-1].sequence if found else held.cursor
        return found

    def give_back(self, row: Row) -> None:
        """
        Make a message available again whose lock ended. Does nothing if its session was released,
        since the release has counted it.
        """
        held = self._held.get(row.session or "")
        if held is not None:
            self._journal.record(remove_from_heap, held.returned, row.sequence)
            heapq.heappush(held.returned, row.sequence)
            self._woken.add(held.id)

    def forget_token(self, held: HeldSession, token: str) -> None:
        """Forget the token of a message that isn't locked any more."""
        if token in held.tokens:
            self._journal.record(held.tokens.add, token)
            held.tokens.discard(token)

    # --- locks

    def accept(self, session: str | None, until: float) -> Lock[HeldSession] | None:
        """
        Lock the named session, or else the session that has waited the longest; None if there is
        none.

        Raises:
            SessionNotAvailable: the named session is locked by another receiver.
            InvalidRequest: the name isn't a valid session id.
        """
        check_session_id(session or "")
        if session is None:
            session = self._next()
            if session is None:
                return None
        elif session in self._held:
            raise SessionNotAvailable(
                f"{self._path}: session {session!r} is locked by another receiver"
            )
        self._journal.record(self._held.pop, session)
        held = self._held[session] = HeldSession(session)
        return self._locks.add(self._new_token(), held, until)

    def is_held(self, session: str) -> bool:
        return session in self._held

    def find(self, token: str, now: Now) -> Lock[HeldSession]:
        """
        Return the lock with this token.

        Raises:
            SessionLockLost: the lock expired.
        """
        lock = self.find_if_held(token, now)
        if lock is None:
            raise SessionLockLost(
                f"{self._path}: the session's lock expired; accept the session again"
            )
        return lock

    def find_if_held(self, token: str, now: Now) -> Lock[HeldSession] | None:
        return self._locks.find(token, now.monotonic)

    def ends_at(self, lock: Lock[HeldSession]) -> float:
        return self._locks.ends_at(lock)

    def extend(self, lock: Lock[HeldSession], until: float) -> None:
        self._locks.extend(lock, until)

    def run_out(self, now: Now) -> Iterator[Lock[HeldSession]]:
        """Drop and yield the locks that have expired; the caller calls `release` for each."""
        return self._locks.run_out(now.monotonic)

    def next_end(self) -> float | None:
        return self._locks.next_end()

    def release(self, lock: Lock[HeldSession]) -> None:
        """Make the session available to others. Its messages must be unlocked already."""
        session = lock.held.id
        self._locks.drop(lock.token)
        self._journal.record(self._held.__setitem__, session, self._held[session])
        del self._held[session]
        # A receiver that still waits in the session learns that its lock is lost.
        self._woken.add(session)
        first = self._refresh(session)
        if first is not None:
            self._fresh += 1
            self._offer(session, first)

    def _next(self) -> str | None:
        for _ in range(_LOOK):
            candidate = self._candidate()
            if candidate is None:
                return None
            first, session = candidate
            if session in self._held:
                continue
            found = self._refresh(session)
            if found == first:
                return session
            # The session's oldest message has expired, which changes its place.
            if found is not None:
                self._offer(session, found)
        self._fresh += 1  # so that the next search continues
        return None

    def _candidate(self) -> tuple[int, str] | None:
        if self._returned:
            first, session = heapq.heappop(self._returned)
            self._returned_ids.discard(session)
            self._journal.record(self._put_back, session, first)
            return first, session
        record = self._storage.sessions.next(self._cursor)
        if record is None or record.first is None:
            return None
        self._journal.keep(self)
        self._cursor = record.first
        return record.first, record.id

    def _offer(self, session: str, first: int) -> None:
        if first <= self._cursor and session not in self._returned_ids:
            self._journal.record(self._remove, session, first)
            self._put_back(session, first)

    def _put_back(self, session: str, first: int) -> None:
        heapq.heappush(self._returned, (first, session))
        self._returned_ids.add(session)

    def _remove(self, session: str, first: int) -> None:
        remove_from_heap(self._returned, (first, session))
        self._returned_ids.discard(session)

    def _refresh(self, session: str) -> int | None:
        """Store which message of the session is the oldest now."""
        first = self._first(session)
        record = self._find_record(session)
        if record is None or record.first == first:
            return first
        if first is None and record.state is None and not record.damaged:
            self._storage.sessions.remove(session)
        else:
            self._storage.sessions.put(attrs.evolve(record, first=first))
        return first

    def _first(self, session: str) -> int | None:
        found = self._storage.rows.in_session(session, 0, 1)
        return found[0].sequence if found else None

    def _find_record(self, session: str) -> SessionRecord | None:
        """
        Return the stored session. When damage is first found, it is noted for the report, and the
        session's order is corrected.
        """
        record = self._storage.sessions.get(session)
        if record is not None and record.damaged and not record.reported:
            self._damaged.append(session)
            record = attrs.evolve(record, first=self._first(session))
            self._storage.sessions.put(record)
        return record

    # --- state

    def state(self, session: str) -> bytes | None:
        """
        Return the state of a session.

        Raises:
            StateDamaged: the stored state is damaged.
        """
        record = self._find_record(session)
        if record is not None and record.damaged:
            raise StateDamaged(
                f"{self._path}: the stored state of session {session!r} is damaged; set it again"
            )
        return None if record is None else record.state

    def set_state(self, session: str, state: bytes | None, quota: int, now: Now) -> None:
        """
        Store the state of a session; None removes it. `quota` are the bytes of the states of all
        sessions, since a client may name as many sessions as it likes.

        Raises:
            InvalidRequest: the state is larger than `MAX_SESSION_STATE`.
            QuotaExceeded: the states would take more than `quota`.
        """
        if state is not None and len(state) > MAX_SESSION_STATE:
            raise InvalidRequest(
                f"session state: at most {MAX_SESSION_STATE} bytes expected, got {len(state)}"
            )
        record = self._find_record(session) or SessionRecord(id=session)
        new = SessionRecord(id=session, first=record.first, state=state, updated=now.wall)
        self._count(new.size - record.size, quota)
        if state is None and record.first is None:
            self._storage.sessions.remove(session)
        else:
            self._storage.sessions.put(new)

    def _count(self, added: int, quota: int) -> None:
        self._journal.keep(self)
        if self._state_bytes is None:
            self._state_bytes = self._storage.sessions.state_bytes()
        if added > 0 and self._state_bytes + added > quota:
            raise QuotaExceeded(
                f"{self._path}: the states of its sessions take {self._state_bytes}"
                f" of {quota} bytes"
            )
        self._state_bytes += added

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        skip, top = (min(max(number, 0), MAX_SEQUENCE) for number in (skip, top))
        return self._storage.sessions.page(updated_since, skip, top)

    # --- telling

    def drain_fresh(self) -> int:
        """The number of sessions that became available since the last call."""
        fresh, self._fresh = self._fresh, 0
        return fresh

    def drain_woken(self) -> frozenset[str]:
        """
        The locked sessions in which messages became available, or whose lock ended, since the last
        call.
        """
        woken, self._woken = frozenset(self._woken), set()
        return woken

    def drain_damaged(self) -> Sequence[str]:
        """The sessions whose state was found damaged since the last call."""
        damaged, self._damaged = self._damaged, []
        return damaged
