"""History of a process pool: the rates of its processes, and their crashes."""

from collections import deque
from functools import partial
from math import inf
from typing import Final

import attrs

from gateway.wire.pairgate.listener_report import Report

# A minute, with the usual interval. A handler's time is counted when it ends: a handler of one
# minute would count as a dozen busy handlers within a single interval of 5 s, and counts as one
# within a minute.
WORKING_LOOKS: Final = 12
STEADY_SECONDS: Final = 30.0  # a process that lived longer didn't crash after its start


@attrs.define(eq=False)
class WorkRates:
    """The rates at which messages arrive and handlers end, between two looks."""

    _done: deque[Report] = attrs.field(factory=partial(deque, maxlen=WORKING_LOOKS), init=False)
    _seen: tuple[float, int | None, Report] | None = attrs.field(default=None, init=False)

    def arrivals(self, now: float, depth: int | None, total: Report) -> float:
        """
        Messages a second since the last look, from the handled messages (`total`) and the growth of
        the depth.
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
        """
        Mean seconds of a handler over the last looks in which a handler ended; None if none did.
        """
        done = sum(self._done, Report())
        return done.seconds / done.calls if done.calls else None

    def forget(self) -> None:
        """Start over, because a look has failed."""
        self._seen = None


@attrs.define(eq=False)
class Crashes:
    """Counts processes that ended by themselves soon after their start, one after the other."""

    row: int = attrs.field(default=0, init=False)
    not_before: float = attrs.field(default=-inf, init=False)  # earliest start of the next process
    _at: float = attrs.field(default=-inf, init=False)  # of the last crash

    def count_failed_start(self, now: float) -> None:
        """Count a process that couldn't be started."""
        self.row, self._at = self.row + 1, now

    def count_end(self, began: float, now: float) -> None:
        """
        Count a process that has ended, and was started at `began`. The ends of all processes that
        were running at the last crash count as one crash.
        """
        if not self.row or began > self._at:
            is_steady = now - began >= STEADY_SECONDS
            self.row, self._at = 1 if is_steady else self.row + 1, now

    def may_start(self, begins: list[float], now: float) -> bool:
        """
        True if another process may be started, besides those started at `begins`: after two crashes
        only one process runs at a time, as a trial.
        """
        trials = [began for began in begins if began > self._at]
        if any(now - began >= STEADY_SECONDS for began in trials):
            self.row = 0
        return now >= self.not_before and (self.row < 2 or not trials)
