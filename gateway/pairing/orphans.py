"""Notices a backlog that nobody moves back."""

from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events import BacklogOrphaned
from gateway.pairing.rotation import Rotation
from gateway.pairing.standings import Standings
from gateway.ports import Broker

AFTER: Final = 300.0  # seconds since the primary came back
ASK_LIMIT: Final = 30.0


@attrs.define(eq=False, kw_only=True)
class OrphanWatch:
    """
    Five minutes after the last entity came back, looks whether its backlog is still there.

    Where the secondary doesn't tell its depth there is nothing to see, and nothing is said.
    """

    secondary: Broker
    rotation: Rotation
    standings: Standings

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        seen = self.standings.changes.version
        while True:
            seen = await self.standings.changes.wait(seen)
            if self.standings.failed_over():
                continue
            with trio.move_on_after(AFTER) as quiet:
                seen = await self.standings.changes.wait(seen)
            if quiet.cancelled_caught:
                pending = await self._pending()
                if pending:
                    self.standings.observer.report(BacklogOrphaned(pending=pending, seconds=AFTER))

    async def _pending(self) -> int:
        total = 0
        with trio.move_on_after(ASK_LIMIT):
            for queue in self.rotation.queues:
                total += await self._depth(queue)
        return total

    async def _depth(self, queue: EntityPath) -> int:
        try:
            info = await self.secondary.inspect(queue)
        except BrokerError:
            return 0
        return info.active or 0
