"""How much waits on the backlog, asked of the secondary no more often than it is worth."""

from collections.abc import Sequence
from datetime import datetime
from math import inf
from typing import Final

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.domain import backlog
from gateway.domain.entity import EntityInfo
from gateway.domain.errors import BrokerError, NotAuthorized, NotSupported
from gateway.pairing.rotation import Rotation
from gateway.ports import Broker, WallClock

PAGE: Final = 100
MOST_QUEUES: Final = 1000
# Each question is billed: seconds between two while there is a backlog, or may be, and else.
SOON: Final = 10.0
LATER: Final = 60.0


@attrs.frozen(kw_only=True)
class Reading:
    """What the secondary told at that date. None: it didn't, or can't."""

    at: datetime | None = None
    pending: int | None = None  # messages
    oldest_age: float | None = None  # seconds


@attrs.define(eq=False, kw_only=True)
class BacklogDepth:
    """The messages in all backlog queues of one label, whoever diverted them."""

    secondary: Broker
    rotation: Rotation
    label: str
    clock: WallClock
    _last: Reading = attrs.field(factory=Reading, init=False)
    _asked: float = attrs.field(default=-inf, init=False)  # trio.current_time()
    _asking: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def read(self, seconds: float, *, troubled: bool) -> Reading:
        """
        The last reading, or a new one if it is time for that and the secondary tells it within so
        many seconds. Several who ask together have one answer.

        `troubled`: messages are diverted now, perhaps.
        """
        with trio.move_on_after(seconds):
            async with self._asking:
                pause = SOON if troubled or self._last.pending else LATER
                if trio.current_time() >= self._asked + pause:
                    self._asked = trio.current_time()
                    self._last = await self._ask() or self._last
        return self._last

    async def _ask(self) -> Reading | None:
        try:
            infos = await self._listed()
        except (NotAuthorized, NotSupported):
            infos = await self._inspected()
        except BrokerError:
            return None
        depths = [info.active for info in infos]
        pending = None if None in depths or not infos else sum(depth or 0 for depth in depths)
        return Reading(at=self.clock(), pending=pending, oldest_age=await self._age(infos))

    async def _listed(self) -> Sequence[EntityInfo]:
        found: list[EntityInfo] = []
        while len(found) < MOST_QUEUES:
            page = await self.secondary.list_queues(
                backlog.queue_prefix(self.label), skip=len(found), top=PAGE
            )
            found += page
            if len(page) < PAGE:
                break
        return found

    async def _inspected(self) -> Sequence[EntityInfo]:
        """Without the right to list: those queues that this gateway uses."""
        await trio.lowlevel.checkpoint()
        found = []
        for queue in self.rotation.queues:
            try:
                found.append(await self.secondary.inspect(queue))
            except BrokerError:
                return ()
        return found

    async def _age(self, infos: Sequence[EntityInfo]) -> float | None:
        """Of the oldest message, where the secondary can show it."""
        await trio.lowlevel.checkpoint()
        if not isinstance(self.secondary, Peeks):
            return None
        dates: list[datetime] = []
        for info in infos:
            if info.active:
                try:
                    shown = await self.secondary.peek(info.path, limit=1)
                except BrokerError:
                    return None
                dates += [each.enqueued for each in shown if each.enqueued is not None]
        return max(0.0, (self.clock() - min(dates)).total_seconds()) if dates else None
