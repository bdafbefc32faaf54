"""The due work of each entity of a namespace, which is done without a client's request."""

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.entity import QueueProperties
from gateway.store.engine.dormant import DormantQueue
from gateway.store.engine.journal import Journal
from gateway.store.engine.locks import Deadlines
from gateway.store.engine.queue import Queue

_FOREVER: Final = timedelta(days=10_675_199)  # TimeSpan.MaxValue of .NET, less its hours


@attrs.define(eq=False)
class DueWork:
    """The dates of due work in one namespace, by key of the entity."""

    _journal: Journal = attrs.field(factory=Journal)
    _deadlines: Deadlines = attrs.field(factory=Deadlines)

    def add(self, queue: Queue | DormantQueue) -> None:
        """Schedule the entity for `run_out` at once, which finds out what is due."""
        if _has_any(queue):
            self._set(queue.path.key, -math.inf)

    def wait_until_idle(self, dormant: DormantQueue, now: Now) -> None:
        """Begin the time of a dormant queue's `auto_delete_on_idle`."""
        self._journal.keep(dormant)
        dormant.used = now.monotonic
        self._set_or_drop(dormant.path.key, now.monotonic + idle_limit(dormant.properties))

    def schedule(self, queue: Queue, due: float | None, now: Now) -> None:
        """Note that an entity has changed; `due` is when (monotonic) it has work to do."""
        if not _has_any(queue):
            return
        first = min(idle_end(queue, now), math.inf if due is None else due)
        self._set_or_drop(queue.path.key, first)

    def drop(self, key: str) -> None:
        """Forget an entity that was deleted."""
        self._journal.record(self._put_back, key, self._deadlines.get(key))
        self._deadlines.drop(key)

    def clear(self) -> None:
        self._deadlines.clear()

    def first(self) -> float | None:
        """The monotonic time at which the first entity must be looked at."""
        return self._deadlines.first()

    def run_out(self, now: Now) -> Iterator[str]:
        """Drop and yield the keys of the entities that must be looked at now."""
        while (over := self._deadlines.over(now.monotonic)) is not None:
            self.drop(over[0])
            yield over[0]

    def _set_or_drop(self, key: str, moment: float) -> None:
        if moment == math.inf:
            self.drop(key)
        elif moment != self._deadlines.get(key):
            self._set(key, moment)

    def _set(self, key: str, moment: float) -> None:
        self._journal.record(self._put_back, key, self._deadlines.get(key))
        self._deadlines.set(key, moment)

    def _put_back(self, key: str, moment: float | None) -> None:
        if moment is None:
            self._deadlines.drop(key)
        else:
            self._deadlines.set(key, moment)


def idle_end(queue: Queue, now: Now) -> float:
    """
    The monotonic time at which the entity will have been idle for `auto_delete_on_idle`, if nobody
    uses it until then; infinity if it has no such limit. An entity that forwards is never idle.
    """
    limit = idle_limit(queue.properties)
    if limit == math.inf:
        return math.inf
    used = queue.entity.used
    if used is None or queue.has_scheduled:
        used = now.monotonic
        queue.entity.use(used)
    return used + limit


def idle_limit(properties: QueueProperties) -> float:
    """The time for which the entity may be idle, in seconds; infinity: it has no limit."""
    idle = properties.auto_delete_on_idle
    if idle is None or idle >= _FOREVER or properties.forward_to is not None:
        return math.inf
    return idle.total_seconds()


def _has_any(queue: Queue | DormantQueue) -> bool:
    return queue.has_due_work or queue.properties.auto_delete_on_idle is not None
