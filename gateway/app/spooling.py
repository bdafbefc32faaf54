"""Figures of the local spool: its depth, its traffic, and its free space."""

from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.brokers.embedded.files import free_bytes
from gateway.brokers.embedded.store import LOW_WATER
from gateway.capabilities import Peeks
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import Diverted, Event, Syphoned
from gateway.domain.health.rate import Rate
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import SpoolStatus
from gateway.offering import offered
from gateway.pairing.syphon.dead_letters import count_dead_letters
from gateway.ports import Broker, Observer, WallClock

MIB: Final = 1024 * 1024


@attrs.define(eq=False, kw_only=True)
class SpoolGauge:
    """An observer of the sends, which measures the spool together with the spool's own figures."""

    spool: Broker
    queue: EntityPath
    folder: Path
    clock: WallClock
    observer: Observer  # the observer that gets each event, too
    _in: Rate = attrs.field(factory=Rate, init=False)
    _out: Rate = attrs.field(factory=Rate, init=False)

    def report(self, event: Event) -> None:
        if isinstance(event, Diverted) and event.accepted_by is AcceptedBy.SPOOL:
            self._in.note(event.messages, trio.current_time())
        self.observer.report(event)

    def note_moved(self, messages: int) -> None:
        self._out.note(messages, trio.current_time())

    def rates(self) -> SpoolStatus:
        """The rates through this process alone, without a request to the spool."""
        now = trio.current_time()
        return SpoolStatus(
            pending=None,
            oldest_age=None,
            rate_in=self._in.read(now),
            rate_out=self._out.read(now),
            free_bytes=None,
        )

    async def read(self, seconds: float) -> SpoolStatus:
        """
        The present figures; figures that the spool doesn't report within `seconds` are unknown.
        """
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        info: EntityInfo | None = None
        age: float | None = None
        free: int | None = None
        dead = DeadLetters()
        with trio.move_on_after(seconds), suppress(BrokerError):
            info = await self.spool.inspect(self.queue)
            free = await self._free_bytes(info)
            age = await self._age()
            dead = await count_dead_letters(self.spool, [info], self.clock())
        return SpoolStatus(
            pending=None if info is None else info.active,
            oldest_age=age,
            rate_in=self._in.read(now),
            rate_out=self._out.read(now),
            free_bytes=free,
            dead_letters=dead,
        )

    async def _age(self) -> float | None:
        await trio.lowlevel.checkpoint()
        peeks = offered(self.spool, Peeks)
        if peeks is None:
            return None
        peeked = await peeks.peek(self.queue, limit=1)
        if not peeked or peeked[0].enqueued is None:
            return None
        return max(0.0, (self.clock() - peeked[0].enqueued).total_seconds())

    async def _free_bytes(self, info: EntityInfo) -> int | None:
        """
        The free space: the smaller of the room left in the spool's queue and the free space of the
        disk.
        """
        await trio.lowlevel.checkpoint()
        try:
            free = await trio.to_thread.run_sync(free_bytes, self.folder, abandon_on_cancel=True)
        except OSError:
            return None
        left = free - LOW_WATER
        if info.size is not None and info.properties.max_size_in_megabytes:
            left = min(left, info.properties.max_size_in_megabytes * MIB - info.size)
        return max(0, left)


@attrs.frozen(eq=False)
class SyphonOfSpool:
    """The observer of the syphon that empties the spool."""

    _gauge: SpoolGauge

    def report(self, event: Event) -> None:
        if isinstance(event, Syphoned):
            self._gauge.note_moved(event.messages)
        self._gauge.observer.report(event)
