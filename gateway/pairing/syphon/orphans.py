"""Reports a backlog that no syphon moves."""

import random
from typing import Final

import attrs
import trio

from gateway.domain.events.gateway import BacklogOrphaned
from gateway.pairing.depth import BacklogDepth, Reading
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.pauses import Pauses

ASK_LIMIT: Final = 30.0
SPREAD: Final = 0.2  # of `after`: gateways that get their primary back together don't ask together
SELDOM: Final = 3600.0  # seconds between readings of an empty backlog: each is billed


@attrs.define(eq=False, kw_only=True)
class OrphanWatch:
    """
    Reports messages that wait on the backlog for `after` seconds while no entity is troubled and
    the depth doesn't fall: no syphon runs, or none that works.

    The watch reads the depth at the start of the process, when the last entity has returned,
    `after` seconds later while messages wait or may wait, and once an hour. The first reading is
    late by up to `SPREAD` of `after`. It reports nothing if the secondary can't report its depth,
    or while an operator pauses the syphon.
    """

    depth: BacklogDepth
    states: EntityStates
    after: float  # seconds
    rng: random.Random
    pauses: Pauses = attrs.field(factory=Pauses)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        seen = self.states.changes.version
        while True:
            if self.states.is_any_troubled:
                seen = await self.states.changes.wait(seen)
                continue
            if await self._troubled_within(self.rng.uniform(0.0, SPREAD * self.after)):
                continue
            reading = await self._poll_depth(None)
            is_current = reading is not None and not reading.lag
            while not self.states.is_any_troubled:
                if await self._troubled_within(self._pause(reading, is_current=is_current)):
                    break
                reading, is_current = await self._poll_depth(reading), True
            seen = self.states.changes.version

    def _pause(self, reading: Reading | None, *, is_current: bool) -> float:
        """
        Seconds until the next reading, longer by the lag of the counts. Without `is_current` the
        reading may be older than the last diverted messages.
        """
        if reading is not None and reading.pending == 0 and is_current:
            return max(self.after, SELDOM)
        return self.after + (0.0 if reading is None else reading.lag)

    async def _troubled_within(self, seconds: float) -> bool:
        """Return True as soon as an entity is troubled; False after `seconds`."""
        with trio.move_on_after(seconds):
            seen = self.states.changes.version
            while not self.states.is_any_troubled:
                seen = await self.states.changes.wait(seen)
            return True
        return False

    async def _poll_depth(self, before: Reading | None) -> Reading | None:
        """Read the depth, and report if it didn't fall since `before`, `after` seconds ago."""
        reading = await self.depth.ask(ASK_LIMIT)
        was = 0 if before is None else before.pending or 0
        pending = 0 if reading is None else reading.pending or 0
        if 0 < was <= pending and not self.pauses.overrides:
            self.states.observer.report(BacklogOrphaned(pending=pending, seconds=self.after))
        return reading
