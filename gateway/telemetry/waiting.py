"""
The number of messages that wait on the backlog for each entity, as this process counts them.

No namespace reports this number: a backlog queue has the messages of all entities. This process
knows how many messages it has diverted, and how many its syphon has moved. These counts are
complete only if no other process diverts or moves messages, and none was left from before the
start. So each reading of the backlog's depth is compared with their sum: while both agree, the
counts are right, else unknown.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event, Syphoned
from gateway.ports import Observer

MOST: Final = 10_000  # entities that are counted
# Seconds for which a reading of the depth may lack counted messages: namespaces report it late, and
# messages in motion count at one side only.
LAG: Final = 15.0


@attrs.define(eq=False)
class WaitingCounts:
    """Counts of diverted less moved messages, by entity, and whether they agree with the depth."""

    _now: Callable[[], float]  # seconds of any clock
    most: int = MOST
    _counts: Counter[EntityPath] = attrs.field(factory=Counter, init=False)  # without entries of 0
    _sum: int = attrs.field(default=0, init=False)
    _recent: deque[tuple[float, int]] = attrs.field(factory=deque, init=False)
    _is_whole: bool = attrs.field(default=True, init=False)  # no message was left out
    _agrees: bool = attrs.field(default=False, init=False)

    def diverted(self, entity: EntityPath, messages: int) -> None:
        self._note(entity, messages)

    def moved(self, entity: EntityPath, messages: int) -> None:
        self._note(entity, -messages)

    @property
    def total(self) -> int:
        """The sum over all entities: messages."""
        return self._sum

    def compare(self, before: int, pending: int | None) -> None:
        """
        Compare a reading of the depth with the sum. `before` is the `total` when the reading began;
        `pending` is None if the depth isn't known.
        """
        slack = self._in_motion()
        if pending == 0 and slack == 0:
            self._counts.clear()
            self._sum, self._is_whole = 0, True
        low, high = sorted((before, self._sum))
        fits = pending is not None and low - slack <= pending <= high + slack
        self._agrees = fits and self._is_whole

    @property
    def is_known(self) -> bool:
        """True if the counts of all entities are right."""
        return self._agrees and self._is_whole

    def most_waiting(self, number: int) -> Mapping[str, int] | None:
        """
        The messages that wait for each of the `number` entities with the most waiting messages;
        None: unknown.
        """
        if not self.is_known:
            return None
        found = heapq.nlargest(number, self._counts.items(), key=lambda each: each[1])
        return {entity.name: counted for entity, counted in found}

    def of(self, entity: EntityPath) -> int | None:
        """The messages that wait for the entity; None: not known."""
        return self._counts[entity] if self.is_known else None

    def _note(self, entity: EntityPath, messages: int) -> None:
        if entity not in self._counts and len(self._counts) >= self.most:
            self._is_whole = False
        else:
            self._counts[entity] += messages
            # Another process, or an earlier one, has diverted the message.
            if self._counts[entity] < 0:
                self._is_whole = False
            elif not self._counts[entity]:
                del self._counts[entity]
        self._sum += messages
        now = self._now()
        if self._recent and self._recent[-1][0] > now - 1.0:
            since, counted = self._recent.pop()
            self._recent.append((since, counted + abs(messages)))
        else:
            self._recent.append((now, abs(messages)))
        self._forget(now)

    def _in_motion(self) -> int:
        """The messages that were counted in the last `LAG` seconds."""
        self._forget(self._now())
        return sum(counted for _, counted in self._recent)

    def _forget(self, now: float) -> None:
        while self._recent and not now - LAG - 1.0 < self._recent[0][0] <= now:
            self._recent.popleft()


@attrs.frozen
class CountingMoves:
    """The observer of the syphon that empties the backlog; the spool's counts elsewhere."""

    inner: Observer
    waiting: WaitingCounts

    def report(self, event: Event) -> None:
        if isinstance(event, Syphoned):
            self.waiting.moved(event.entity, event.messages)
        self.inner.report(event)
