"""
Measures how late the event loop runs tasks that are due, which shows how busy or blocked the
process is, and counts its tasks.
"""

from typing import Final

import attrs
import trio

from gateway.domain.health.distribution import SHORT_LATENCIES, Distribution, Histogram

EVERY: Final = 0.25  # seconds


@attrs.define(eq=False)
class LoopLag:
    """Sleeps again and again, and counts by how many seconds each sleep was too long."""

    # Tasks that live; None: `run` never ran.
    tasks: int | None = attrs.field(default=None, init=False)
    _seconds: Histogram = attrs.field(factory=lambda: Histogram(SHORT_LATENCIES), init=False)
    _runs: bool = attrs.field(default=False, init=False)

    def read(self) -> Distribution | None:
        """The seconds until now; None: `run` never ran."""
        return self._seconds.read() if self._runs else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure until cancelled."""
        self._runs = True
        self.tasks = trio.lowlevel.current_statistics().tasks_living
        task_status.started()
        while True:
            due = trio.current_time() + EVERY
            await trio.sleep_until(due)
            self._seconds.record(trio.current_time() - due)
            self.tasks = trio.lowlevel.current_statistics().tasks_living
