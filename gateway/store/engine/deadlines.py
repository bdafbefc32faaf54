"""Deadlines by key, as a heap that allows a deadline to be changed or dropped."""

import heapq
from typing import Final

import attrs

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
