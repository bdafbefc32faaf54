"""
Detects steps of a wall clock, by comparison with a monotonic clock.

A wrong date for a moment must not expire every message that has a time to live. After a step the
wall clock is therefore in doubt for a minute, as either date, the one before the step or the one
after it, may be wrong.

A large step corrects a clock that was wrong by days or years, as that of a machine that starts
without a battery; or it is a mistake itself. Lives are durations, so a namespace counts them on a
date of its own, which such a step doesn't move. It has no doubt about that date, and a step back
undoes the first one. A shorter step may be the end of a pause in which messages did age.
"""

import math
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.clocks.times import Now, to_micros

STEP: Final = 2.0  # seconds; less is drift
GRACE: Final = 60.0  # seconds for which a step may be a mistake that is corrected again
# Seconds. Nobody sets a clock so far by hand, and no time zone or summer time explains it. A
# machine that sleeps for longer finds its messages as old as they were.
LARGE: Final = 86_400.0


@attrs.define(eq=False)
class ClockWatch:
    """Watches one wall clock. A step is noticed at the next `look`."""

    _offset: float | None = None  # of the wall clock to the monotonic one, at the last reading
    _before: float = 0.0  # the offset before the steps that are in doubt
    shift: int = 0  # microseconds, the sum of all large steps
    _shift_before: int = 0  # at `_before`
    _untrusted_until: float = -math.inf

    def look(self, date: datetime, monotonic: float) -> Now:
        """The moment by both clocks, which were just read, with the date from before a step."""
        wall = to_micros(date)
        offset = wall / 1e6 - monotonic
        if self._offset is not None and abs(offset - self._offset) > STEP:
            if monotonic >= self._untrusted_until:
                self._before, self._shift_before = self._offset, self.shift
            if abs(offset - self._offset) > LARGE:
                self.shift += round((offset - self._offset) * 1e6)
            self._untrusted_until = monotonic + GRACE
        self._offset = offset
        if monotonic >= self._untrusted_until:
            return Now(wall, monotonic, self._untrusted_until, shift=self.shift)
        before = round((monotonic + self._before) * 1e6)
        return Now(wall, monotonic, self._untrusted_until, before, self.shift, self._shift_before)
