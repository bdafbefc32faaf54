"""Delivers the messages of one queue, and keeps the locks of the delivered ones."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from gateway.domain.clocks.times import MICROSECOND, Now
from gateway.domain.errors import LockLost, MessageNotFound, QuotaExceeded
from gateway.domain.message import ReceiveMode
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.journal import Journal
from gateway.store.engine.locks import Lock, Locks
from gateway.store.engine.queue_content import SWEEP, QueueContent
from gateway.store.engine.records import Row, State, without_content
from gateway.store.engine.sessions import HeldSession

# Bytes of messages after which one step delivers no further ones, and the bytes of those that it
# reads together, if each has the maximum size.
MOST_TAKEN: Final = 32 * 1024 * 1024
_MOST_READ: Final = 64 * 1024 * 1024


@attrs.define(eq=False)
class Dispatch:
    """
    The delivery side of a queue. A delivered row stays locked until `unlock`, or until its lock
    expires.
    """

    _content: QueueContent
    _new_token: Callable[[], str]
    _journal: Journal = attrs.field(factory=Journal)
    _locks: Locks[Row] | None = None  # made at the first delivery

    def clear(self) -> None:
        """Forget all locks."""
        self._locks = None

    def deliver(
        self,
        next_rows: Callable[[int], Sequence[Row]],
        limit: int,
        mode: ReceiveMode,
        now: Now,
        session: HeldSession | None = None,
        until: int | None = None,
    ) -> list[TakenRow]:
        """
        Deliver the rows that `next_rows` returns, at most `limit`, and fewer if they are large.
        With a session, a row stays locked as long as the session: `until` then (wall clock).
        """
        entity, fit = self._content.entity, self._content.fit
        entity.touch(now)
        page = max(1, _MOST_READ // entity.max_message_size)
        taken: list[TakenRow] = []
        looked_at = size = 0
        while len(taken) < limit and looked_at < limit + SWEEP and size < MOST_TAKEN:
            rows = next_rows(min(page, limit - len(taken)))
            looked_at += len(rows)
            size += sum([row.size for row in rows])
            if not rows:
                break
            taken += [
                self._deliver(row, mode, now, session, until) for row in rows if fit(row, now)
            ]
        return taken

    def _deliver(
        self, row: Row, mode: ReceiveMode, now: Now, session: HeldSession | None, until: int | None
    ) -> TakenRow:
        deliveries = row.deliveries + 1
        if mode is ReceiveMode.RECEIVE_AND_DELETE:
            self._content.index.remove(row)
            return TakenRow(row, deliveries, at=now.wall)
        durable = self._is_near_limit(row, deliveries)
        self._content.storage.rows.count_delivery(row, deliveries, durable=durable)
        duration = self._content.entity.properties.lock_duration
        token = self._new_token()
        if until is None:
            until = now.wall + duration // MICROSECOND
        ends = now.monotonic + duration.total_seconds()
        if session is not None:
            self._journal.record(session.tokens.discard, token)
            session.tokens.add(token)
            ends = math.inf  # locked as long as the session
        if self._locks is None:
            self._locks = Locks(self._journal)
        self._locks.add(token, without_content(row, deliveries), ends)
        self._content.index.lock(row)
        return TakenRow(row, deliveries, token, until, now.wall)

    def uncount(self, row: Row) -> None:
        """Store that the last delivery of a locked row doesn't count."""
        durable = self._is_near_limit(row, row.deliveries)
        self._content.storage.rows.count_delivery(row, row.deliveries - 1, durable=durable)

    def _is_near_limit(self, row: Row, deliveries: int) -> bool:
        """
        True for the last deliveries, whose count is stored at once: a message that crashes the
        process of its consumer would otherwise be delivered again and again without reaching its
        limit.
        """
        last_but_one = self._content.entity.properties.max_delivery_count - 1
        return row.state is State.ACTIVE and deliveries >= last_but_one

    def deliver_deferred(
        self,
        numbers: Sequence[int],
        mode: ReceiveMode,
        now: Now,
        session: HeldSession | None = None,
        state: State = State.DEFERRED,
        until: int | None = None,
    ) -> list[TakenRow]:
        """
        Deliver the deferred messages of that state with these sequence numbers, all or none. With a
        session, they stay locked as long as the session: `until` then (wall clock).

        Raises:
            MessageNotFound: a message doesn't exist, has expired, is locked, or belongs to another
                session.
            QuotaExceeded: several messages have too many bytes for one step.
        """
        path, find = self._content.entity.path, self._content.find
        rows, left = list[Row](), _MOST_READ
        for number in dict.fromkeys(numbers):
            rows.append(find(number, state))
            left -= rows[-1].size
            if left < 0 and len(rows) > 1:
                raise QuotaExceeded(
                    f"{path}: the deferred messages have more than {_MOST_READ} bytes together:"
                    " receive fewer at once"
                )
        for row in rows:
            strange = session is not None and row.session != session.id
            locked = self._content.index.is_locked(row)
            if strange or locked or not self._content.fit(row, now):
                raise MessageNotFound(f"{path}: there is no deferred message {row.number}")
        return [self._deliver(row, mode, now, session, until) for row in rows]

    def find(self, token: str | None, now: Now) -> Lock[Row]:
        """
        Return the lock of a token.

        Raises:
            LockLost: the lock expired, or never existed.
        """
        lock = self.find_if_held(token, now)
        if lock is None:
            path = self._content.entity.path
            raise LockLost(
                f"{path}: the message's lock expired or is unknown; the message may be"
                " delivered again"
            )
        return lock

    def find_if_held(self, token: str | None, now: Now) -> Lock[Row] | None:
        return None if self._locks is None else self._locks.find(token, now.monotonic)

    def renew(self, token: str | None, now: Now) -> int:
        """Extend a lock by the queue's lock duration; return its new end (wall clock)."""
        duration = self._content.entity.properties.lock_duration
        lock = self.find(token, now)
        self._made.extend(lock, now.monotonic + duration.total_seconds())
        return now.wall + duration // MICROSECOND

    def unlock(self, lock: Lock[Row]) -> None:
        locks = self._made
        locks.drop(lock.token)
        self._content.index.unlock(lock.held)
        if len(locks) == 0:  # frees the memory, as most queues have no locks
            self._journal.record(self._keep, locks)
            self._locks = None

    def _keep(self, locks: Locks[Row]) -> None:
        self._locks = locks

    def next_end(self) -> float | None:
        """The monotonic time at which the first lock expires; None: there is no lock."""
        return None if self._locks is None else self._locks.next_end()

    def run_out(self, now: Now) -> Iterator[Row]:
        """
        Drop the locks that have expired, and yield their rows, which the caller makes available
        again.
        """
        if self._locks is None:
            return
        for lock in self._locks.run_out(now.monotonic):
            yield lock.held
            self._content.index.unlock(lock.held)

    @property
    def _made(self) -> Locks[Row]:
        """The locks, which exist because the caller has found a lock."""
        assert self._locks is not None, "it has that lock"
        return self._locks
