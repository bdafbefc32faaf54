"""Reads the wall clock and the monotonic clock together, and notices when the wall clock is set."""

import attrs
import trio

from gateway.domain.clocks.clock_note import ClockWatch
from gateway.domain.clocks.times import Now
from gateway.ports import WallClock


@attrs.define(eq=False)
class Moments:
    """
    The time for the rules of queues, the envelope and the syphon: the dates of both clocks, and
    whether the wall clock is in doubt.
    """

    _clock: WallClock
    _watch: ClockWatch = attrs.field(factory=ClockWatch, init=False)

    @property
    def shift(self) -> int:
        """As that of the last `now`."""
        return self._watch.shift

    def begin(self, shift: int) -> None:
        """Go on with the shift of a namespace that was closed; before the first `now`."""
        self._watch.shift = shift

    def now(self) -> Now:
        return self._watch.moment_at(self._clock(), trio.current_time())
