"""Durations and sizes, counted by ranges: the values of histograms; and rates per second."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs

# Seconds, for the metrics of OpenTelemetry ("Semantic conventions for messaging client metrics").
LATENCIES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# Seconds, for operations that take about a millisecond.
SHORT_LATENCIES: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
BATCHES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@attrs.frozen
class Distribution:
    """The values up to a moment. `counts[i]` values are at most `bounds[i]`, the last are above."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float  # the sum of the values

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)


@attrs.define(eq=False)
class Histogram:
    """Counts values by the ranges that end at `bounds`, ascending."""

    bounds: tuple[float, ...]
    _counts: list[int] = attrs.field(init=False)
    _total: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def record(self, value: float) -> None:
        """Count a value. Takes a few tenths of a microsecond, since each send calls this method."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._total += value

    def read(self) -> Distribution:
        """The values until now."""
        return Distribution(self.bounds, tuple(self._counts), self._total)


def added(distributions: Iterable[Distribution]) -> Distribution | None:
    """
    All values together; None: there are no distributions. Those with other bounds than the first,
    as another version may have, aren't added.
    """
    found = list(distributions)
    if not found:
        return None
    bounds = found[0].bounds
    same = [each for each in found if each.bounds == bounds]
    counts = (sum(column) for column in zip(*(each.counts for each in same), strict=True))
    return Distribution(bounds, tuple(counts), sum(each.total for each in same))


WINDOW: Final = 10.0  # seconds


@attrs.define(eq=False)
class Rate:
    """Keeps one sum per second, so that its memory is bounded."""

    window: float = WINDOW
    _seconds: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)

    def record(self, count: int, now: float) -> None:
        """Count `count` more at `now`, in seconds of a monotonic clock."""
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))
        self._forget(now)

    def read(self, now: float) -> float:
        """The average number per second over the window."""
        self._forget(now)
        return sum(count for _, count in self._seconds) / self.window

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - self.window:
            self._seconds.popleft()
