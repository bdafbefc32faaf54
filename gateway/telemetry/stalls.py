"""Knows the slowest send of each of the last troubles, which a sum of sends can't tell."""

from collections import deque
from typing import Final

import attrs

from gateway.domain.events.gateway import EntityStateChanged, Event
from gateway.domain.failover import State
from gateway.domain.health.send_counters import SendCounters

# Troubles that are told: entities of one outage may be back, and leave again.
MOST: Final = 5


@attrs.define(eq=False)
class StallWatch:
    """
    A trouble begins with the first entity in doubt or away from the primary. Pinned entities are
    no trouble of others: beside them the first of those that no operator has pinned begins one. As
    many entities are remembered as states of entities are.
    """

    _sends: SendCounters
    troubles: int = attrs.field(default=0, init=False)  # since the start
    _pinned: set[str] = attrs.field(factory=set, init=False)
    _left: set[str] = attrs.field(factory=set, init=False)  # the other ones
    # Batches that had ended when each of the last troubles began.
    _batches: deque[int] = attrs.field(factory=lambda: deque(maxlen=MOST), init=False)

    @property
    def stalls(self) -> tuple[float, ...]:
        """Seconds of the slowest send since each of the last troubles began, the latest last."""
        return tuple(round(self._sends.slowest_since(each), 3) for each in self._batches)

    def record(self, event: Event) -> None:
        if isinstance(event, EntityStateChanged):
            self.record_state(event.entity.key, State(event.after))

    def record_state(self, entity: str, state: State) -> None:
        """Note the state of the entity with that key."""
        had_left = bool(self._left)
        had_any = had_left or bool(self._pinned)
        self._pinned.discard(entity)
        self._left.discard(entity)
        if state is State.PRIMARY:
            return
        is_pinned = state is State.PINNED
        (self._pinned if is_pinned else self._left).add(entity)
        if not (had_any if is_pinned else had_left):
            self.troubles += 1
            self._batches.append(self._sends.batches)
