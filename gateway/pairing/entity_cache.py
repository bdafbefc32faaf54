"""The gateway's memory of the primary's entities, to check sends in an outage as usual."""

from collections.abc import Iterable
from typing import Final

import attrs
import trio

from gateway.capabilities import Topology
from gateway.changes import Changes
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.offering import offered
from gateway.ports import Broker

MAX_KNOWN: Final = 10_000
INSPECTION_LIMIT: Final = 10.0  # seconds
ASK_AGAIN: Final = 3600.0  # seconds: limits change, and entities are recreated
ASK_AGAIN_SOON: Final = 60.0  # seconds, after a failed question


@attrs.frozen(kw_only=True)
class KnownEntity:
    """An entity that the primary accepted a message for, or described."""

    entity: EntityPath
    requires_session: bool | None = None
    max_message_size: int | None = None  # bytes, encoded


@attrs.define(eq=False)
class _CachedEntity:
    known: KnownEntity
    ask_at: float = 0.0


@attrs.define(eq=False, kw_only=True)
class EntityCache:
    """
    Remembers entities, and asks the primary about each that is used, every `ASK_AGAIN` seconds.

    Beyond `most` entities, the one that was unused for the longest time is forgotten.
    """

    primary: Broker
    most: int = MAX_KNOWN
    _rows: Bounded[str, _CachedEntity] = attrs.field(init=False)  # the longest unused first
    _to_inspect: Bounded[str, EntityPath] = attrs.field(init=False)
    _work: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)

    def __attrs_post_init__(self) -> None:
        self._rows, self._to_inspect = Bounded(self.most), Bounded(self.most)

    def of(self, entity: EntityPath) -> KnownEntity | None:
        row = self._rows.get(entity.key)
        return None if row is None else row.known

    def all(self) -> list[KnownEntity]:
        return [row.known for row in self._rows.values()]

    def record_accepted(self, entity: EntityPath) -> None:
        """Record that the primary accepted a message for the entity; inspect it if that is due."""
        if entity.key not in self._rows:
            self.store(KnownEntity(entity=entity))
        self._rows.move_to_end(entity.key)
        row, now = self._rows[entity.key], trio.current_time()
        if row.ask_at <= now:
            row.ask_at = now + ASK_AGAIN_SOON
            self._to_inspect[entity.key] = entity
            self._work.unpark_all()

    def store(self, known: KnownEntity) -> None:
        """Remember an entity, or what has changed about it."""
        row = self._rows.setdefault(known.entity.key, _CachedEntity(known))
        if row.known is known or row.known != known:
            row.known = known
            self.changes.notify()

    def remove(self, entity: EntityPath) -> None:
        """Forget an entity that the primary reports as missing."""
        if self._rows.pop(entity.key, None) is not None:
            self.changes.notify()

    def restore(self, known: Iterable[KnownEntity]) -> None:
        for one in known:
            self.store(one)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask the primary about the entities that are due, one after the other."""
        task_status.started()
        while True:
            await trio.lowlevel.checkpoint()
            while not self._to_inspect:
                await self._work.park()
            _, entity = self._to_inspect.popitem(last=False)
            with trio.move_on_after(INSPECTION_LIMIT):
                await self._inspect(entity)

    async def _inspect(self, entity: EntityPath) -> None:
        try:
            known = await self._ask(entity)
        except EntityNotFound:
            self.remove(entity)
        except BrokerError:
            return  # keep what is known: without the right to ask, only that the entity exists
        else:
            self.store(known)
            self._rows[entity.key].ask_at = trio.current_time() + ASK_AGAIN

    async def _ask(self, entity: EntityPath) -> KnownEntity:
        """Ask the primary about a queue, or else a topic."""
        try:
            info = await self.primary.inspect(entity)
        except EntityNotFound:
            topology = offered(self.primary, Topology)
            if topology is None:
                raise
            topic = await topology.inspect_topic(entity)
            return KnownEntity(
                entity=entity,
                requires_session=False,
                max_message_size=topic.max_message_size,
            )
        return KnownEntity(
            entity=entity,
            requires_session=info.requires_session,
            max_message_size=info.max_message_size,
        )
