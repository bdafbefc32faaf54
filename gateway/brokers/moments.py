"""Both clocks at once, and a watch on the one that can be set."""

from typing import Final

import attrs
import trio

from gateway.domain.stored import Now, to_micros
from gateway.ports import WallClock

_STEP: Final = 2.0  # seconds; less is drift
_GRACE: Final = 60.0  # seconds that a step forward may be a mistake which is put right again


@attrs.define(eq=False)
class Moments:
    """
    Tells the time to the rules of queues.

    After a step of the wall clock nothing expires or becomes due for a minute: a wrong date for
    a moment must not cost every message that has a time to live.
    """

    _clock: WallClock
    _offset: float | None = None
    _held_until: float = 0.0

    def now(self) -> Now:
        wall = to_micros(self._clock())
        monotonic = trio.current_time()
        offset = wall / 1e6 - monotonic
        if self._offset is not None and abs(offset - self._offset) > _STEP:
            self._held_until = monotonic + _GRACE
        self._offset = offset
        return Now(wall, monotonic, self._held_until)
