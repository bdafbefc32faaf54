"""Notices a backlog that nobody moves back."""

import math
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

    It looks again, five minutes later, for as long as it is. Where the secondary doesn't tell its
    depth there is nothing to see, and nothing is said.
    """

    secondary: Broker
    rotation: Rotation
    standings: Standings

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        look_at = math.inf
        diverted = False  # since the last look that found nothing
        seen = self.standings.changes.version
        while True:
            if self.standings.troubled():
                diverted, look_at = True, math.inf
            elif diverted and look_at == math.inf:
                look_at = trio.current_time() + AFTER
            with trio.move_on_at(look_at) as quiet:
                seen = await self.standings.changes.wait(seen)
            if quiet.cancelled_caught:
                look_at = math.inf
                diverted = await self._still_there()

    async def _still_there(self) -> bool:
        pending = await self._pending()
        if pending:
            self.standings.observer.report(BacklogOrphaned(pending=pending, seconds=AFTER))
        return pending > 0

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
