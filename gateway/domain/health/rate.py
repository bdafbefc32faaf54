"""A rate per second over the last seconds."""

from collections import deque
from typing import Final

import attrs

WINDOW: Final = 10.0  # seconds


@attrs.define(eq=False)
class Rate:
    """Keeps one sum per second, so that its memory is bounded."""

    window: float = WINDOW
    _seconds: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)

    def note(self, count: int, now: float) -> None:
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
