"""
The sessions of one queue: which is held, by whom, and which is next.

What is stored of a session is put right when it's let go; until then its `first` may be the
number of a message that is gone, and never one that comes after the oldest that is there.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    InvalidRequest,
    SessionLockLost,
    SessionNotAvailable,
    StateDamaged,
)
from gateway.domain.locks import Lock, Locks
from gateway.domain.queue_checks import check_session_id
from gateway.domain.stored import Now, Row, SessionRecord, State, Storage

MAX_SESSION_STATE: Final = 256 * 1024  # bytes
_LOOK: Final = 200  # sessions that one search puts right


@attrs.define(eq=False)
class HeldSession:
    """
    A session that somebody holds. Its messages are locked as long as it is.

    Its rows that aren't locked stand in `returned` or come after `cursor`.
    """

    id: str
    tokens: set[str] = attrs.field(factory=set)  # of its locked messages
    cursor: int = 0
    returned: list[int] = attrs.field(factory=list)  # a heap


@attrs.define(eq=False)
class Sessions:
    """
    Finds the next session as `Lane` finds the next message: one that has messages and that nobody
    holds stands in `_returned`, or its `first` comes after `_cursor`.
    """

    _path: EntityPath
    _storage: Storage
    _new_token: Callable[[], str]
    _locks: Locks[HeldSession] = attrs.field(factory=Locks)
    _held: dict[str, HeldSession] = attrs.field(factory=dict)
    _cursor: int = 0
    _returned: list[tuple[int, str]] = attrs.field(factory=list)  # a heap
    _returned_ids: set[str] = attrs.field(factory=set)
    _fresh: int = 0
    _rung: set[str] = attrs.field(factory=set)
    _damaged: list[str] = attrs.field(factory=list)

    def reload(self) -> None:
        """Forget who holds what, and begin with what is stored."""
        self._locks.clear()
        self._held.clear()
        self._returned.clear()
        self._returned_ids.clear()
        self._damaged.clear()
        self._cursor = 0
        self._fresh = 1

    # --- messages

    def note(self, row: Row) -> None:
        """A message has become available in its session."""
        session = row.session or ""
        record = self._find_record(session) or SessionRecord(id=session)
        if record.first is None:
            self._storage.sessions.put(attrs.evolve(record, first=row.sequence))
        if session in self._held:
            self._rung.add(session)
        else:
            self._fresh += 1

    def next_rows(self, held: HeldSession, limit: int) -> Sequence[Row]:
        rows: list[Row] = []
        while held.returned and len(rows) < limit:
            row = self._storage.rows.get(heapq.heappop(held.returned))
            if row is not None and row.state is State.ACTIVE:
                rows.append(row)
        if rows:
            return rows
        found = self._storage.rows.in_session(held.id, held.cursor, limit)
        held.cursor = found[-1].sequence if found else held.cursor
        return found

    def give_back(self, row: Row) -> None:
        """A locked message is available again; if its session was let go, that has said so."""
        held = self._held.get(row.session or "")
        if held is not None:
            heapq.heappush(held.returned, row.sequence)
            self._rung.add(held.id)

    # --- locks

    def accept(self, session: str | None, now: Now, until: float) -> Lock[HeldSession] | None:
        """
        Lock that session, or the one that has waited the longest; None if there is none.

        Raises:
            SessionNotAvailable: somebody holds that one.
            InvalidRequest: it can't be the name of one.
        """
        check_session_id(session or "")
        if session is None:
            session = self._next()
            if session is None:
                return None
        elif session in self._held:
            raise SessionNotAvailable(f"{self._path}: session {session!r} is held by another")
        held = self._held[session] = HeldSession(session)
        return self._locks.add(self._new_token(), held, until)

    def find(self, token: str, now: Now) -> Lock[HeldSession]:
        """
        Raises:
            SessionLockLost: it ran out.
        """
        lock = self.find_if_held(token, now)
        if lock is None:
            raise SessionLockLost(f"{self._path}: the lock of the session ran out")
        return lock

    def find_if_held(self, token: str, now: Now) -> Lock[HeldSession] | None:
        return self._locks.find(token, now.monotonic)

    def extend(self, lock: Lock[HeldSession], until: float) -> None:
        self._locks.extend(lock, until)

    def run_out(self, now: Now) -> Iterator[Lock[HeldSession]]:
        """Drop and yield what is over; `let_go` of each is for the caller."""
        return self._locks.run_out(now.monotonic)

    def next_end(self) -> float | None:
        return self._locks.next_end()

    def let_go(self, lock: Lock[HeldSession]) -> None:
        """Others may have the session. Its messages are unlocked already."""
        session = lock.held.id
        self._locks.drop(lock.token)
        del self._held[session]
        self._rung.add(session)  # who still waits there learns that the lock is lost
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
            if found is not None:  # its oldest message has expired: it has another place now
                self._offer(session, found)
        self._fresh += 1  # look again
        return None

    def _candidate(self) -> tuple[int, str] | None:
        if self._returned:
            first, session = heapq.heappop(self._returned)
            self._returned_ids.discard(session)
            return first, session
        record = self._storage.sessions.next(self._cursor)
        if record is None or record.first is None:
            return None
        self._cursor = record.first
        return record.first, record.id

    def _offer(self, session: str, first: int) -> None:
        if first <= self._cursor and session not in self._returned_ids:
            heapq.heappush(self._returned, (first, session))
            self._returned_ids.add(session)

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
        """What is stored. Once it's found damaged, that is told, and its order is put right."""
        record = self._storage.sessions.get(session)
        if record is not None and record.damaged and not record.reported:
            self._damaged.append(session)
            record = attrs.evolve(record, first=self._first(session))
            self._storage.sessions.put(record)
        return record

    # --- state

    def state(self, session: str) -> bytes | None:
        """
        Raises:
            StateDamaged: it isn't what was set.
        """
        record = self._find_record(session)
        if record is not None and record.damaged:
            raise StateDamaged(f"{self._path}: the state of the session {session!r} is damaged")
        return None if record is None else record.state

    def set_state(self, session: str, state: bytes | None, now: Now) -> None:
        """
        Raises:
            InvalidRequest: it is too large.
        """
        if state is not None and len(state) > MAX_SESSION_STATE:
            raise InvalidRequest(
                f"session state: at most {MAX_SESSION_STATE} bytes expected, got {len(state)}"
            )
        record = self._find_record(session) or SessionRecord(id=session)
        if state is None and record.first is None:
            self._storage.sessions.remove(session)
        else:
            new = SessionRecord(id=session, first=record.first, state=state, updated=now.wall)
            self._storage.sessions.put(new)

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        return self._storage.sessions.page(updated_since, max(skip, 0), max(top, 0))

    # --- telling

    def drain_fresh(self) -> int:
        """How many sessions became available since the last call."""
        fresh, self._fresh = self._fresh, 0
        return fresh

    def drain_rung(self) -> frozenset[str]:
        """In which held sessions something has changed since the last call."""
        rung, self._rung = frozenset(self._rung), set()
        return rung

    def drain_damaged(self) -> Sequence[str]:
        """Sessions whose state was found to be damaged since the last call."""
        damaged, self._damaged = self._damaged, []
        return damaged
