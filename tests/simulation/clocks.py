"""
The wall clocks of an installation: each process has its own, which may be set and may drift.

The monotonic clock is one for all, and true; only a machine that stands still makes it jump.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from math import inf
from typing import Final

import attrs
import trio

from tests.harness.clocks import START
from tests.harness.determinism import JumpingClock
from tests.simulation.scenario import CLOCKS, ClockStep

# The processes that read each clock, by the names under which they are recorded.
READERS: Final = {
    "gateway": ("gateway", "syphon in gateway"),
    "syphon": ("syphon-0", "syphon-1"),
}


@attrs.define(eq=False)
class ProcessClock:
    """A `WallClock` that is right until it is set."""

    _ahead: float = 0.0
    _drift: float = 0.0
    _set_at: float = 0.0
    _least_ahead: float = 0.0  # when it was set, before or after

    def __call__(self) -> datetime:
        return START + timedelta(seconds=trio.current_time() + self.ahead)

    @property
    def ahead(self) -> float:
        """The seconds by which the clock is ahead of the true time."""
        return self._ahead + self._drift * (trio.current_time() - self._set_at)

    @property
    def least_ahead(self) -> float:
        """The least seconds by which the clock has been ahead of the true time until now."""
        return min(self._least_ahead, self.ahead)

    def set(self, ahead: float, drift: float) -> None:
        """Be so many seconds ahead of the true time, and so many more each second."""
        self._least_ahead = min(self.least_ahead, ahead)
        self._ahead, self._drift, self._set_at = ahead, drift, trio.current_time()


@attrs.define(eq=False)
class Clocks:
    """
    The clocks of all processes.

    `on_set` is called with the process whose clock was set, how far ahead it is, and its drift.
    """

    _on_set: Callable[[str, float, float], None]
    _clocks: dict[str, ProcessClock] = attrs.field(
        factory=lambda: {name: ProcessClock() for name in CLOCKS}
    )

    def of(self, process: str) -> ProcessClock:
        """The clock that a process of that name reads."""
        read = (name for name, readers in READERS.items() if process in readers)
        return self._clocks[next(read, process)]

    async def trouble(self, step: ClockStep) -> None:
        """Set a clock when it's time; return when it's right again, or when it stays wrong."""
        await trio.sleep_until(step.at)
        self._set(step.process, step.ahead, step.drift)
        if step.back < inf:
            await trio.sleep_until(step.back)
            self._set(step.process, 0.0, 0.0)

    def _set(self, name: str, ahead: float, drift: float) -> None:
        self._clocks[name].set(ahead, drift)
        self._on_set(name, ahead, drift)


def stand_still(seconds: float) -> None:
    """The time that passes while the machine is suspended: everybody's."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, JumpingClock)
    clock.jump(seconds)
