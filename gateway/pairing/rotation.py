"""Which backlog queues to try, in which order. One that fails rests, for all senders."""

import random
from collections.abc import Sequence

import attrs
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.events import BacklogQueueFailed
from gateway.ports import Observer


@attrs.define(eq=False, kw_only=True)
class Rotation:
    """The usable backlog queues of the secondary."""

    queues: Sequence[EntityPath]
    cooldown: float  # seconds
    rng: random.Random
    observer: Observer
    _resting: dict[str, float] = attrs.field(factory=dict, init=False)  # until when

    def candidates(self) -> list[EntityPath]:
        """
        All queues, each once, in random order: those at rest last.

        They are kept as a last resort, so that a secondary that had a bad second isn't refused
        for the whole cool-down when nothing else is left.
        """
        return sorted(backlog.queues_to_try(self.queues, self.rng), key=self._rests)

    @property
    def usable(self) -> int:
        """How many don't rest."""
        return sum(not self._rests(queue) for queue in self.queues)

    def failed(self, queue: EntityPath, reason: str) -> None:
        """Leave that queue out for the cool-down."""
        if not self._rests(queue):
            self.observer.report(
                BacklogQueueFailed(queue=queue, seconds=self.cooldown, reason=reason)
            )
        self._resting[queue.key] = trio.current_time() + self.cooldown

    def worked(self, queue: EntityPath) -> None:
        self._resting.pop(queue.key, None)

    def _rests(self, queue: EntityPath) -> bool:
        until = self._resting.get(queue.key)
        return until is not None and trio.current_time() < until
