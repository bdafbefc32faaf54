"""The operations on a queue's sessions, for receivers that hold a session."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from gateway.domain.clocks.times import MICROSECOND, Now
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import SessionLockLost
from gateway.domain.message import ReceiveMode, Settlement
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.dispatch import Dispatch
from gateway.store.engine.locks import Lock
from gateway.store.engine.queue_content import Entity, quota_of
from gateway.store.engine.sessions import HeldSession, Sessions


@attrs.frozen
class AcceptedSession:
    """A locked session: `holder` is the lock's token, `until` its end (wall clock)."""

    session: str
    holder: str
    until: int


class SessionQueue(Protocol):
    """The part of a `Queue` that its sessions need."""

    entity: Entity

    @property
    def properties(self) -> QueueProperties: ...
    def check_active(self) -> None: ...
    def check_keeps(self) -> None: ...
    def sweep(self, now: Now) -> None: ...
    def release(self, tokens: Iterable[str], now: Now, *, delivered: bool = True) -> None: ...
    def settle(self, token: str | None, settlement: Settlement, now: Now) -> None: ...


@attrs.define(eq=False)
class SessionRules:
    """
    The operations on sessions, each of which is one step. Methods that take a `holder` raise
    `SessionLockLost` if its lock is lost.
    """

    _queue: SessionQueue
    _sessions: Sessions
    _dispatch: Dispatch

    def accept(self, session: str | None, now: Now) -> AcceptedSession | None:
        """
        Lock the named session, or else the free session with the oldest message; None if there is
        none.

        Raises:
            SessionNotAvailable: the named session is locked by another receiver.
            EntityDisabled: the queue is disabled, or disabled for receiving.
            InvalidRequest: the queue forwards all its messages.
        """
        self._queue.check_active()
        self._queue.check_keeps()
        self._queue.sweep(now)
        self._queue.entity.touch(now)
        lock = self._sessions.accept(session, now.monotonic + self._seconds())
        if lock is None:
            return None
        return AcceptedSession(lock.held.id, lock.token, self._until(now))

    def renew(self, holder: str, now: Now) -> int:
        """Extend the lock by the lock duration; return its new end (wall clock)."""
        self._sessions.extend(self._sessions.find(holder, now), now.monotonic + self._seconds())
        return self._until(now)

    def ends_at(self, holder: str, now: Now) -> float:
        """The monotonic time at which the lock expires, unless it is renewed."""
        return self._sessions.ends_at(self._sessions.find(holder, now))

    def release(self, holder: str, now: Now) -> None:
        """
        Release a session and its locked messages. Does nothing if the lock is lost.

        The deliveries don't count: in a session only a settlement or the end of the session's lock
        does (Service Bus: message sessions, impact of delivery count).
        """
        self._queue.sweep(now)
        lock = self._sessions.find_if_held(holder, now)
        if lock is not None:
            self._queue.release(lock.held.tokens, now, delivered=False)
            self._sessions.release(lock)

    def receive(self, holder: str, limit: int, mode: ReceiveMode, now: Now) -> list[TakenRow]:
        """As `Queue.receive`, from that session."""
        self._queue.check_active()
        self._queue.check_keeps()
        self._queue.sweep(now)
        lock = self._sessions.find(holder, now)
        held, until = lock.held, self._end_of(lock, now)
        return self._dispatch.deliver(
            lambda more: self._sessions.next_rows(held, more), limit, mode, now, held, until
        )

    def receive_deferred(
        self, holder: str, sequences: Sequence[int], mode: ReceiveMode, now: Now
    ) -> list[TakenRow]:
        """As `Queue.receive_deferred`, from that session."""
        self._queue.check_active()
        self._queue.check_keeps()
        self._queue.sweep(now)
        lock = self._sessions.find(holder, now)
        until = self._end_of(lock, now)
        return self._dispatch.deliver_deferred(sequences, mode, now, lock.held, until=until)

    def settle(self, holder: str, token: str | None, settlement: Settlement, now: Now) -> None:
        """As `Queue.settle`."""
        held = self._sessions.find(holder, now).held
        self._queue.settle(token, settlement, now)
        self._sessions.forget_token(held, token or "")

    def state(self, holder: str, now: Now) -> bytes | None:
        return self._sessions.state(self._sessions.find(holder, now).held.id)

    def peek_state(self, session: str) -> bytes | None:
        """As `Sessions.state`; no receiver needs to hold the session."""
        return self._sessions.state(session)

    def set_state(self, holder: str, state: bytes | None, now: Now) -> None:
        """As `Sessions.set_state`."""
        quota = quota_of(self._queue.properties)
        self._sessions.set_state(self._sessions.find(holder, now).held.id, state, quota, now)

    def check_locked(self, session: str) -> None:
        """
        Check that a receiver holds the session.

        Raises:
            SessionLockLost: no receiver does.
        """
        if not self._sessions.is_held(session):
            raise SessionLockLost(f"{self._queue.entity.path}: nobody holds session {session!r}")

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        """Ids of the sessions with messages, or of those whose state was set after that date."""
        return self._sessions.page(updated_since, skip, top)

    def _end_of(self, lock: Lock[HeldSession], now: Now) -> int:
        """The end of a session's lock (wall clock)."""
        return now.wall + round((self._sessions.ends_at(lock) - now.monotonic) * 1_000_000)

    def _seconds(self) -> float:
        return self._queue.properties.lock_duration.total_seconds()

    def _until(self, now: Now) -> int:
        return now.wall + self._queue.properties.lock_duration // MICROSECOND
