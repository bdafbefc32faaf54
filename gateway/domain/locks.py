"""Who holds which message, and until when. In memory only: a restart gives every message back."""

import heapq
from collections.abc import Iterator
from typing import Final

import attrs

from gateway.domain.stored import Row

_STALE: Final = 64  # outdated deadlines that may pile up beside as many as there are locks


@attrs.define(eq=False)
class Lock:
    """
    One delivery that isn't settled yet.

    `row` counts this delivery and has no content: many locks must not hold many bodies.
    `until` is on the monotonic clock.
    """

    token: str
    row: Row
    until: float


@attrs.define(eq=False)
class Locks:
    """The locks of one queue: by token, and by when they run out."""

    _held: dict[str, Lock] = attrs.field(factory=dict)
    _deadlines: list[tuple[float, str]] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self._held)

    def add(self, token: str, row: Row, until: float) -> None:
        self._held[token] = Lock(token, row, until)
        heapq.heappush(self._deadlines, (until, token))

    def find(self, token: str | None, monotonic: float) -> Lock | None:
        """The lock, unless it isn't known or has run out."""
        lock = self._held.get(token or "")
        return lock if lock is not None and lock.until > monotonic else None

    def extend(self, lock: Lock, until: float) -> None:
        lock.until = until
        heapq.heappush(self._deadlines, (until, lock.token))
        self._forget_outdated()

    def drop(self, token: str) -> Lock | None:
        lock = self._held.pop(token, None)
        self._forget_outdated()
        return lock

    def run_out(self, monotonic: float) -> Iterator[Lock]:
        """Drop and yield the locks that are over."""
        while (first := self.next_end()) is not None and first <= monotonic:
            yield self._held.pop(heapq.heappop(self._deadlines)[1])

    def next_end(self) -> float | None:
        """When the first lock runs out."""
        while self._deadlines:
            until, token = self._deadlines[0]
            lock = self._held.get(token)
            if lock is not None and lock.until == until:
                return until
            heapq.heappop(self._deadlines)
        return None

    def clear(self) -> None:
        self._held.clear()
        self._deadlines.clear()

    def _forget_outdated(self) -> None:
        if len(self._deadlines) > 2 * len(self._held) + _STALE:
            self._deadlines = [(lock.until, token) for token, lock in self._held.items()]
            heapq.heapify(self._deadlines)
