"""
The local spool: its figures, and its opening.

A new store needs room on its disk. A gateway serves without, as the spool is only its last way; the
store is made as soon as there is room.
"""

from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.assembly.late_setup import Setup
from gateway.app.namespaces import enter, enter_later, failing_as
from gateway.app.runtime import Runtime
from gateway.capabilities import Peeks
from gateway.config.options import Namespace
from gateway.domain import backlog
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, EntityExists, QuotaExceeded, starting_thread
from gateway.domain.events.gateway import Diverted, Doubtful, Event, Syphoned
from gateway.domain.health.distribution import Rate
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import SpoolStatus
from gateway.offering import offered
from gateway.pairing.syphon.dead_letters import count_dead_letters
from gateway.ports import Broker, Observer, Service, WallClock
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.embedded.files import StoreError, free_bytes
from gateway.store.embedded.store import LOW_WATER

MIB: Final = 1024 * 1024


def room_on_disk(folder: Path) -> int:
    """
    The bytes that a store in that folder, which may not exist yet, may still take. Raises OSError.
    """
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    return max(0, free_bytes(nearest) - LOW_WATER)


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
            self._in.record(event.messages, trio.current_time())
        self.observer.report(event)

    def record_moved(self, messages: int) -> None:
        self._out.record(messages, trio.current_time())

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
        now = trio.current_time()
        info: EntityInfo | None = None
        age: float | None = None
        free: int | None = None
        dead = DeadLetters()
        with trio.move_on_after(seconds), suppress(BrokerError):
            on_disk = await self._room_on_disk()
            try:
                info = await self.spool.inspect(self.queue)
            except BrokerError:  # its store isn't open: there was no room for a new one
                free = on_disk
                raise
            free = _room_of(info, on_disk)
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
        peeks = offered(self.spool, Peeks)
        if peeks is None:
            return None
        peeked = await peeks.peek(self.queue, limit=1)
        if not peeked or peeked[0].enqueued is None:
            return None
        return max(0.0, (self.clock() - peeked[0].enqueued).total_seconds())

    async def _room_on_disk(self) -> int | None:
        try:
            with starting_thread():
                return await trio.to_thread.run_sync(
                    room_on_disk, self.folder, abandon_on_cancel=True
                )
        except OSError:
            return None


def _room_of(info: EntityInfo, on_disk: int | None) -> int | None:
    """The smaller of the room left in the spool's queue and the room on the disk."""
    if on_disk is None or info.size is None or not info.properties.max_size_in_megabytes:
        return on_disk
    left = info.properties.max_size_in_megabytes * MIB - info.size
    return max(0, min(on_disk, left))


@attrs.frozen(eq=False)
class SyphonOfSpool:
    """The observer of the syphon that empties the spool."""

    _gauge: SpoolGauge

    def report(self, event: Event) -> None:
        if isinstance(event, Syphoned):
            self._gauge.record_moved(event.messages)
        self._gauge.observer.report(event)


def has_room(file: Path) -> bool:
    """True if the store exists, or can be made now. Raises OSError."""
    return file.exists() or room_on_disk(file.parent) > 0


@attrs.define(eq=False, kw_only=True)
class SpoolSetup(Setup):
    """Opens the spool's store, and creates its queue. Each reason why not is reported once."""

    spool: EmbeddedBroker
    file: Path
    queue: EntityPath
    observer: Observer
    _told: str = attrs.field(default="", init=False)

    async def attempt(self) -> bool:
        """Open the store and create its queue; return False if that isn't possible now."""
        try:
            if not self.spool.is_open:
                if not has_room(self.file):
                    self._report("its disk has no room for a new store")
                    return False
                await self.spool.open()
            with suppress(EntityExists):
                await self.spool.create_queue(self.queue, backlog.QUEUE_PROPERTIES)
        except (StoreError, OSError, QuotaExceeded) as error:
            self._report(str(error))
            return False
        return True

    def _report(self, why: str) -> None:
        if why != self._told:
            self._told = why
            text = f"the spool {self.file} takes nothing: {why}; it is tried again and again"
            self.observer.report(Doubtful(text=text))


async def enter_spool(
    stack: AsyncExitStack,
    namespace: Namespace,
    queue: EntityPath,
    runtime: Runtime,
    late: list[Service],
) -> EmbeddedBroker:
    """
    Open the spool; without room for a new store, it is opened by a service that is added to `late`,
    and raises Unavailable until then.

    Raises:
        Failure: the store is in use, or damaged, or its place can't be read.
    """
    file = Path(namespace.url.partition(":")[2])
    with failing_as(namespace):
        has_place = has_room(file)
    if has_place:
        spool = await enter(stack, namespace, runtime)
    else:
        spool = enter_later(stack, namespace, runtime)
    assert isinstance(spool, EmbeddedBroker), "its URL says so"
    setup = SpoolSetup(
        spool=spool,
        file=file,
        queue=queue,
        observer=runtime.observer,
        rng=runtime.rng("setup of the spool"),
    )
    if not await setup.attempt():
        late.append(setup)
    return spool
