"""Who holds what, and until when. In memory only: a restart gives everything back."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

from gateway.domain.deadlines import Deadlines

T = TypeVar("T")


@attrs.define(eq=False)
class Lock(Generic[T]):
    """What is held, by whoever knows the token."""

    token: str
    held: T


@attrs.define(eq=False)
class Locks(Generic[T]):
    """The locks of one queue, by token and by when (on the monotonic clock) they run out."""

    _locks: dict[str, Lock[T]] = attrs.field(factory=dict)
    _deadlines: Deadlines = attrs.field(factory=Deadlines)

    def add(self, token: str, held: T, until: float) -> Lock[T]:
        self._locks[token] = lock = Lock(token, held)
        self._deadlines.set(token, until)
        return lock

    def find(self, token: str | None, monotonic: float) -> Lock[T] | None:
        """The lock, unless it isn't known or has run out."""
        lock = None if token is None else self._locks.get(token)
        until = None if lock is None else self._deadlines.get(lock.token)
        return lock if until is not None and until > monotonic else None

    def extend(self, lock: Lock[T], until: float) -> None:
        self._deadlines.set(lock.token, until)

    def drop(self, token: str) -> None:
        self._locks.pop(token, None)
        self._deadlines.drop(token)

    def run_out(self, monotonic: float) -> Iterator[Lock[T]]:
        """Drop and yield the locks that are over."""
        for token in self._deadlines.run_out(monotonic):
            yield self._locks.pop(token)

    def next_end(self) -> float | None:
        """When the first lock runs out."""
        return self._deadlines.first()

    def clear(self) -> None:
        self._locks.clear()
        self._deadlines.clear()
