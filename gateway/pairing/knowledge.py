"""What is known of the primary's entities, so that a send in an outage is checked as in health."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import attrs
import trio

from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.pairing.changes import Changes
from gateway.ports import Broker

MAX_KNOWN: Final = 10_000
INSPECTION_LIMIT: Final = 10.0  # seconds
ASK_AGAIN: Final = 3600.0  # seconds: limits may change, and an entity may be made anew
ASK_AGAIN_SOON: Final = 60.0  # seconds, where the primary didn't tell


@attrs.frozen(kw_only=True)
class KnownEntity:
    """An entity that the primary took a message for, or told about."""

    entity: EntityPath
    requires_session: bool | None = None
    max_message_size: int | None = None  # bytes, encoded


@attrs.define(eq=False)
class _Row:
    known: KnownEntity
    ask_at: float = 0.0


@attrs.define(eq=False, kw_only=True)
class Knowledge:
    """
    Remembers entities. Asks the primary about each that is used, now and then.

    The longest unused is forgotten.
    """

    primary: Broker
    _rows: OrderedDict[str, _Row] = attrs.field(factory=OrderedDict, init=False)
    _to_inspect: OrderedDict[str, EntityPath] = attrs.field(factory=OrderedDict, init=False)
    _work: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)

    def of(self, entity: EntityPath) -> KnownEntity | None:
        row = self._rows.get(entity.key)
        return None if row is None else row.known

    def all(self) -> list[KnownEntity]:
        return [row.known for row in self._rows.values()]

    def saw(self, entity: EntityPath) -> None:
        """The primary accepted a message for it."""
        if entity.key not in self._rows:
            self.learn(KnownEntity(entity=entity))
        self._rows.move_to_end(entity.key)
        row, now = self._rows[entity.key], trio.current_time()
        if row.ask_at <= now:
            row.ask_at = now + ASK_AGAIN_SOON
            self._to_inspect[entity.key] = entity
            self._work.unpark_all()

    def learn(self, known: KnownEntity) -> None:
        row = self._rows.setdefault(known.entity.key, _Row(known))
        if row.known is known or row.known != known:
            row.known = known
            self.changes.note()
        if len(self._rows) > MAX_KNOWN:
            self._rows.popitem(last=False)

    def gone(self, entity: EntityPath) -> None:
        """The primary says that there is no such entity."""
        if self._rows.pop(entity.key, None) is not None:
            self.changes.note()

    def restore(self, known: Iterable[KnownEntity]) -> None:
        for one in known:
            self.learn(one)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask the primary about entities that were seen, one after the other."""
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
            self.gone(entity)
        except BrokerError:
            return  # what was known stays so; without the right to ask it is only "it exists"
        else:
            self.learn(known)
            self._rows[entity.key].ask_at = trio.current_time() + ASK_AGAIN

    async def _ask(self, entity: EntityPath) -> KnownEntity:
        """What the primary tells of a queue, or else of a topic."""
        try:
            info = await self.primary.inspect(entity)
        except EntityNotFound:
            if not isinstance(self.primary, Topology):
                raise
            topic = await self.primary.inspect_topic(entity)
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
