"""What may be done with the sessions of a queue, by whoever holds one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from gateway.domain.handout import Handout
from gateway.domain.message import ReceiveMode, Settlement
from gateway.domain.queue_values import Taken
from gateway.domain.sessions import Sessions
from gateway.domain.stored import MICROSECOND, Now

if TYPE_CHECKING:
    from gateway.domain.queue import Queue


@attrs.frozen
class Accepted:
    """A session that was locked: `holder` is the token of the lock, `until` is on the wall."""

    session: str
    holder: str
    until: int


@attrs.define(eq=False)
class SessionRules:
    """Each method is one step. Those that take a `holder` raise `SessionLockLost`."""

    _queue: "Queue"
    _sessions: Sessions
    _handout: Handout

    def accept(self, session: str | None, now: Now) -> Accepted | None:
        """
        Lock that session, or the one whose oldest message is the oldest; None if there is none.

        Raises:
            SessionNotAvailable: somebody holds it.
            EntityDisabled: the queue gives nothing.
        """
        self._queue.check_active()
        self._queue.sweep(now)
        self._queue.entity.touch(now)
        lock = self._sessions.accept(session, now, now.monotonic + self._seconds())
        if lock is None:
            return None
        return Accepted(lock.held.id, lock.token, self._until(now))

    def renew(self, holder: str, now: Now) -> int:
        """Extend the lock by the lock duration; return until when (wall) it holds."""
        self._sessions.extend(self._sessions.find(holder, now), now.monotonic + self._seconds())
        return self._until(now)

    def release(self, holder: str, now: Now) -> None:
        """Let a session go, with what is locked of it; nothing if the lock is lost."""
        self._queue.sweep(now)
        lock = self._sessions.find_if_held(holder, now)
        if lock is not None:
            self._queue.release(lock.held.tokens, now)
            self._sessions.let_go(lock)

    def take(self, holder: str, limit: int, mode: ReceiveMode, now: Now) -> list[Taken]:
        """As `Queue.take`, of that session."""
        self._queue.check_active()
        self._queue.sweep(now)
        held = self._sessions.find(holder, now).held
        return self._handout.take(
            lambda more: self._sessions.next_rows(held, more), limit, mode, now, held
        )

    def take_deferred(
        self, holder: str, sequences: Sequence[int], mode: ReceiveMode, now: Now
    ) -> list[Taken]:
        """As `Queue.take_deferred`, of that session."""
        self._queue.check_active()
        self._queue.sweep(now)
        held = self._sessions.find(holder, now).held
        return self._handout.take_deferred(sequences, mode, now, held)

    def settle(self, holder: str, token: str | None, settlement: Settlement, now: Now) -> None:
        """As `Queue.settle`."""
        held = self._sessions.find(holder, now).held
        self._queue.settle(token, settlement, now)
        held.tokens.discard(token or "")

    def state(self, holder: str, now: Now) -> bytes | None:
        return self._sessions.state(self._sessions.find(holder, now).held.id)

    def set_state(self, holder: str, state: bytes | None, now: Now) -> None:
        """As `Sessions.set_state`."""
        self._sessions.set_state(self._sessions.find(holder, now).held.id, state, now)

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        """Names of the sessions with messages, or of those whose state was set after that date."""
        return self._sessions.page(updated_since, skip, top)

    def _seconds(self) -> float:
        return self._queue.properties.lock_duration.total_seconds()

    def _until(self, now: Now) -> int:
        return now.wall + self._queue.properties.lock_duration // MICROSECOND
