"""What becomes due in entities that nobody has to ask for anything: when to look at each."""

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.deadlines import Deadlines
from gateway.domain.queue import Queue
from gateway.domain.stored import Now

_FOREVER: Final = timedelta(days=10_675_199)  # TimeSpan.MaxValue of .NET, less its hours


@attrs.define(eq=False)
class Errands:
    """Of one namespace, by key of the entity."""

    _deadlines: Deadlines = attrs.field(factory=Deadlines)

    def add(self, queue: Queue) -> None:
        """Have an entity looked at once, to see what is to be done."""
        if _has_any(queue):
            self._deadlines.set(queue.path.key, -math.inf)

    def note(self, queue: Queue, due: float | None, now: Now) -> None:
        """An entity has changed; `due` is when (monotonic) something becomes due in it."""
        if not _has_any(queue):
            return
        key = queue.path.key
        first = min(idle_end(queue, now), math.inf if due is None else due)
        if first == math.inf:
            self._deadlines.drop(key)
        elif first != self._deadlines.get(key):
            self._deadlines.set(key, first)

    def drop(self, key: str) -> None:
        """Forget an entity."""
        self._deadlines.drop(key)

    def clear(self) -> None:
        self._deadlines.clear()

    def first(self) -> float | None:
        """When (monotonic) the first entity is to be looked at."""
        return self._deadlines.first()

    def run_out(self, now: Now) -> Iterator[str]:
        """Forget and yield the keys of those that are to be looked at."""
        return self._deadlines.run_out(now.monotonic)


def idle_end(queue: Queue, now: Now) -> float:
    """When it has been idle for too long, if nothing happens; what forwards never is."""
    idle = queue.properties.auto_delete_on_idle
    if idle is None or idle >= _FOREVER or queue.properties.forward_to is not None:
        return math.inf
    entity = queue.entity
    if entity.used is None or queue.has_scheduled:
        entity.used = now.monotonic
    return entity.used + idle.total_seconds()


def _has_any(queue: Queue) -> bool:
    return queue.has_errands or queue.properties.auto_delete_on_idle is not None
