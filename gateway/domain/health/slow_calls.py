"""
The share of slow sends among an entity's last sends.

No clock: `now` is an argument, in seconds of any monotonic clock.
"""

from collections import deque
from typing import Final

import attrs

LAST: Final = 20  # sends
FEWEST: Final = 5  # sends; with fewer there is no judgement
WITHIN: Final = 30.0  # seconds


@attrs.define(eq=False)
class SlowCalls:
    """
    A window over one entity's accepted sends: the last `LAST` of them, within `WITHIN` seconds.

    The window begins as soon as a send is slow, before its answer: sends that are accepted in the
    meantime show whether the slow send is an exception.
    """

    rate: float  # the share of slow sends that is too much
    began: float
    _calls: deque[tuple[float, bool]] = attrs.field(factory=lambda: deque(maxlen=LAST), init=False)

    def note(self, now: float, *, slow: bool) -> bool:
        """Count an accepted send. True: it was slow, and too many of the last sends were."""
        self._calls.append((now, slow))
        self._drop_old(now)
        count = sum(slow for _, slow in self._calls)
        return slow and len(self._calls) >= FEWEST and count >= self.rate * len(self._calls)

    def is_over(self, now: float) -> bool:
        """True if no send of the window was slow, so that the window needn't be kept."""
        self._drop_old(now)
        return now - self.began > WITHIN and not any(slow for _, slow in self._calls)

    def _drop_old(self, now: float) -> None:
        while self._calls and now - self._calls[0][0] > WITHIN:
            self._calls.popleft()
