"""Handing out messages of one queue, and who has which."""

import math
from collections.abc import Callable, Iterator, Sequence

import attrs

from gateway.domain.contents import SWEEP, Contents
from gateway.domain.errors import LockLost, MessageNotFound
from gateway.domain.locks import Lock, Locks
from gateway.domain.message import ReceiveMode
from gateway.domain.queue_values import Taken
from gateway.domain.sessions import HeldSession
from gateway.domain.stored import MICROSECOND, Now, Row, State, without_content


@attrs.define(eq=False)
class Handout:
    """Rows that are handed out stay locked until `end`, or until their time is over."""

    _contents: Contents
    _new_token: Callable[[], str]
    _locks: Locks[Row] = attrs.field(factory=Locks)

    def clear(self) -> None:
        """Forget who has what."""
        self._locks.clear()

    def take(
        self,
        next_rows: Callable[[int], Sequence[Row]],
        limit: int,
        mode: ReceiveMode,
        now: Now,
        session: HeldSession | None = None,
    ) -> list[Taken]:
        """Hand out what `next_rows` gives; with a session it's locked as long as that is."""
        self._contents.entity.touch(now)
        fit = self._contents.fit
        taken: list[Taken] = []
        looked_at = 0
        while len(taken) < limit and looked_at < limit + SWEEP:
            rows = next_rows(limit - len(taken))
            looked_at += len(rows)
            if not rows:
                break
            taken += [self._hand_out(row, mode, now, session) for row in rows if fit(row, now)]
        return taken

    def _hand_out(
        self, row: Row, mode: ReceiveMode, now: Now, session: HeldSession | None
    ) -> Taken:
        deliveries = row.deliveries + 1
        if mode is ReceiveMode.RECEIVE_AND_DELETE:
            self._contents.holdings.remove(row)
            return Taken(row, deliveries)
        properties = self._contents.entity.properties
        last_but_one = properties.max_delivery_count - 1
        # A consumer that takes the process down with it must not get the message for ever.
        durable = row.state is State.ACTIVE and deliveries >= last_but_one
        self._contents.storage.rows.count_delivery(row, deliveries, durable=durable)
        duration = properties.lock_duration
        token = self._new_token()
        until = now.monotonic + duration.total_seconds()
        if session is not None:
            session.tokens.add(token)
            until = math.inf  # for as long as the session
        self._locks.add(token, without_content(row, deliveries), until)
        self._contents.holdings.locked.add(row.sequence)
        return Taken(row, deliveries, token, now.wall + duration // MICROSECOND)

    def take_deferred(
        self,
        sequences: Sequence[int],
        mode: ReceiveMode,
        now: Now,
        session: HeldSession | None = None,
    ) -> list[Taken]:
        """
        Hand out deferred messages, all or none; with a session they are locked as long as it is.

        Raises:
            MessageNotFound: one isn't there, has expired, or somebody has it.
        """
        path, find = self._contents.entity.path, self._contents.find
        rows = [find(sequence, State.DEFERRED) for sequence in dict.fromkeys(sequences)]
        for row in rows:
            strange = session is not None and row.session != session.id
            locked = row.sequence in self._contents.holdings.locked
            if strange or locked or not self._contents.fit(row, now):
                raise MessageNotFound(f"{path}: there is no deferred message {row.sequence}")
        return [self._hand_out(row, mode, now, session) for row in rows]

    def find(self, token: str | None, now: Now) -> Lock[Row]:
        """
        Raises:
            LockLost: it isn't known (any more).
        """
        lock = self._locks.find(token, now.monotonic)
        if lock is None:
            path = self._contents.entity.path
            raise LockLost(f"{path}: the lock ran out, or was never given")
        return lock

    def find_if_held(self, token: str, now: Now) -> Lock[Row] | None:
        return self._locks.find(token, now.monotonic)

    def renew(self, token: str | None, now: Now) -> int:
        """Extend a lock by the lock duration; return until when (wall) it holds."""
        duration = self._contents.entity.properties.lock_duration
        self._locks.extend(self.find(token, now), now.monotonic + duration.total_seconds())
        return now.wall + duration // MICROSECOND

    def end(self, lock: Lock[Row]) -> None:
        self._locks.drop(lock.token)
        self._contents.holdings.locked.discard(lock.held.sequence)

    def next_end(self) -> float | None:
        """When (monotonic) the first lock runs out."""
        return self._locks.next_end()

    def run_out(self, now: Now) -> Iterator[Row]:
        """End the locks that are over; what they held is to be given back."""
        for lock in self._locks.run_out(now.monotonic):
            yield lock.held
            self._contents.holdings.locked.discard(lock.held.sequence)
