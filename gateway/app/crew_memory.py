"""What a crew remembers: how quickly its processes work, and how they have crashed."""

from collections import deque
from functools import partial
from math import inf
from typing import Final

import attrs

from gateway.wire.listener_report import Report

# A minute of work, with the usual interval. The time of a handler is counted when it ends: one that
# took a minute would be a dozen busy ones in a single interval of 5 s, and is one in a minute.
WORKING_LOOKS: Final = 12
STEADY_SECONDS: Final = 30.0  # who lives so long is no crash after the start


@attrs.define(eq=False)
class Pace:
    """How quickly messages come, and handlers end, between one look and the next."""

    _done: deque[Report] = attrs.field(factory=partial(deque, maxlen=WORKING_LOOKS), init=False)
    _seen: tuple[float, int | None, Report] | None = attrs.field(default=None, init=False)

    def arrivals(self, now: float, depth: int | None, total: Report) -> float:
        """
        Messages a second since the last look, of which `total` tells how many were handled, and
        the depth how many more wait.
        """
        arrivals = 0.0
        if self._seen is not None and now > self._seen[0]:
            then, depth_then, before = self._seen
            calls = total.calls - before.calls
            if calls > 0:
                self._done.append(Report(calls=calls, seconds=total.seconds - before.seconds))
            grown = 0 if depth is None or depth_then is None else depth - depth_then
            arrivals = max(0.0, (calls + grown) / (now - then))
        self._seen = now, depth, total
        return arrivals

    @property
    def handling(self) -> float | None:
        """Seconds of a handler, a mean over the last looks that saw some end; None: none did."""
        done = sum(self._done, Report())
        return done.seconds / done.calls if done.calls else None

    def forget(self) -> None:
        """A look was lost: the next one is the first of a row."""
        self._seen = None


@attrs.define(eq=False)
class Crashes:
    """Processes that ended by themselves soon after their start, one after the other."""

    row: int = attrs.field(default=0, init=False)
    not_before: float = attrs.field(default=-inf, init=False)  # the next process is started
    _at: float = attrs.field(default=-inf, init=False)  # the last one

    def count_failed_start(self, now: float) -> None:
        """It couldn't even be started."""
        self.row, self._at = self.row + 1, now

    def count_end(self, began: float, now: float) -> None:
        """
        One that was started then has ended. Of several that were there at the last crash all ends
        together are one.
        """
        if not self.row or began > self._at:
            is_steady = now - began >= STEADY_SECONDS
            self.row, self._at = 1 if is_steady else self.row + 1, now

    def may_start(self, begins: list[float], now: float) -> bool:
        """
        Whether it is time for one more, beside those that were started then: after two crashes
        there is one at a time, as a trial.
        """
        trials = [began for began in begins if began > self._at]
        if any(now - began >= STEADY_SECONDS for began in trials):
            self.row = 0
        return now >= self.not_before and (self.row < 2 or not trials)
