"""What ends when: a heap that takes changes of mind."""

import heapq
from collections.abc import Iterator
from typing import Final

import attrs

_STALE: Final = 64  # outdated entries that may pile up beside as many as there are deadlines


@attrs.define(eq=False)
class Deadlines:
    """Moments (monotonic) by key; the earliest is found at once."""

    _moments: dict[str, float] = attrs.field(factory=dict)
    _heap: list[tuple[float, str]] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self._moments)

    def get(self, key: str) -> float | None:
        return self._moments.get(key)

    def set(self, key: str, moment: float) -> None:
        """Also where the key had another moment."""
        self._moments[key] = moment
        heapq.heappush(self._heap, (moment, key))
        self._forget_outdated()

    def drop(self, key: str) -> None:
        self._moments.pop(key, None)
        self._forget_outdated()

    def first(self) -> float | None:
        """When the first one ends."""
        while self._heap:
            moment, key = self._heap[0]
            if self._moments.get(key) == moment:
                return moment
            heapq.heappop(self._heap)
        return None

    def run_out(self, monotonic: float) -> Iterator[str]:
        """Drop and yield the keys that are over, the first one first."""
        while (first := self.first()) is not None and first <= monotonic:
            key = heapq.heappop(self._heap)[1]
            del self._moments[key]
            yield key

    def clear(self) -> None:
        self._moments.clear()
        self._heap.clear()

    def _forget_outdated(self) -> None:
        if len(self._heap) > 2 * len(self._moments) + _STALE:
            self._heap = [(moment, key) for key, moment in self._moments.items()]
            heapq.heapify(self._heap)
