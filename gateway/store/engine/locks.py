"""
Deadlines by key, and the locks that end at one, by token. In memory only: a restart ends all locks.
"""

import heapq
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import attrs

from gateway.store.engine.journal import Journal

_STALE: Final = 64  # outdated heap entries that may remain beyond the number of deadlines


@attrs.define(eq=False)
class Deadlines:
    """Maps each key to its deadline (monotonic, seconds), and finds the earliest without a scan."""

    _moments: dict[str, float] = attrs.field(factory=dict)
    _heap: list[tuple[float, str]] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self._moments)

    def get(self, key: str) -> float | None:
        return self._moments.get(key)

    def set(self, key: str, moment: float) -> None:
        """Set the deadline of a key; an earlier deadline of the same key is replaced."""
        self._moments[key] = moment
        heapq.heappush(self._heap, (moment, key))
        self._forget_outdated()

    def drop(self, key: str) -> None:
        self._moments.pop(key, None)
        self._forget_outdated()

    def first(self) -> float | None:
        """The earliest deadline (monotonic), or None if there are none."""
        while self._heap:
            moment, key = self._heap[0]
            if self._moments.get(key) == moment:
                return moment
            heapq.heappop(self._heap)
        return None

    def over(self, monotonic: float) -> tuple[str, float] | None:
        """The key with the earliest deadline, and that deadline, if the deadline has passed."""
        first = self.first()
        if first is None or first > monotonic:
            return None
        return self._heap[0][1], first

    def clear(self) -> None:
        self._moments.clear()
        self._heap.clear()

    def _forget_outdated(self) -> None:
        if len(self._heap) > 2 * len(self._moments) + _STALE:
            self._heap = [(moment, key) for key, moment in self._moments.items()]
            heapq.heapify(self._heap)


T = TypeVar("T")


@attrs.define(eq=False)
class Lock(Generic[T]):
    """A lock on `held`, which the holder of `token` may settle."""

    token: str
    held: T


@attrs.define(eq=False)
class Locks(Generic[T]):
    """The locks of one queue, by token and by their end (monotonic)."""

    _journal: Journal = attrs.field(factory=Journal)
    _locks: dict[str, Lock[T]] = attrs.field(factory=dict)
    _deadlines: Deadlines = attrs.field(factory=Deadlines)

    def __len__(self) -> int:
        return len(self._locks)

    def add(self, token: str, held: T, until: float) -> Lock[T]:
        self._journal.record(self.drop, token)
        self._locks[token] = lock = Lock(token, held)
        self._deadlines.set(token, until)
        return lock

    def find(self, token: str | None, monotonic: float) -> Lock[T] | None:
        """The lock of a token, unless the token is unknown or its lock has expired."""
        lock = None if token is None else self._locks.get(token)
        until = None if lock is None else self._deadlines.get(lock.token)
        return lock if until is not None and until > monotonic else None

    def ends_at(self, lock: Lock[T]) -> float:
        """The monotonic time at which the lock expires."""
        until = self._deadlines.get(lock.token)
        assert until is not None, "the lock was found"
        return until

    def extend(self, lock: Lock[T], until: float) -> None:
        self._journal.record(self._deadlines.set, lock.token, self._deadlines.get(lock.token))
        self._deadlines.set(lock.token, until)

    def drop(self, token: str) -> None:
        lock = self._locks.get(token)
        if lock is not None:
            self._journal.record(self._put_back, lock, self._deadlines.get(token))
            del self._locks[token]
        self._deadlines.drop(token)

    def run_out(self, monotonic: float) -> Iterator[Lock[T]]:
        """Drop and yield the locks that have expired."""
        while (over := self._deadlines.over(monotonic)) is not None:
            lock = self._locks[over[0]]
            self.drop(lock.token)
            yield lock

    def _put_back(self, lock: Lock[T], until: float) -> None:
        self._locks[lock.token] = lock
        self._deadlines.set(lock.token, until)

    def next_end(self) -> float | None:
        """The monotonic time at which the first lock expires; None: there is no lock."""
        return self._deadlines.first()

    def clear(self) -> None:
        self._locks.clear()
        self._deadlines.clear()
