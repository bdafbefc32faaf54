"""What is known of the primary's entities, so that a send in an outage is checked as in health."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.pairing.changes import Changes
from gateway.ports import Broker

MAX_KNOWN: Final = 10_000
INSPECTION_LIMIT: Final = 10.0  # seconds


@attrs.frozen(kw_only=True)
class KnownEntity:
    """An entity that the primary took a message for, or told about."""

    entity: EntityPath
    requires_session: bool | None = None
    max_message_size: int | None = None  # bytes, encoded


@attrs.define(eq=False, kw_only=True)
class Knowledge:
    """Remembers entities; asks the primary once about each. The longest unused is forgotten."""

    primary: Broker
    _known: OrderedDict[str, KnownEntity] = attrs.field(factory=OrderedDict, init=False)
    _to_inspect: OrderedDict[str, EntityPath] = attrs.field(factory=OrderedDict, init=False)
    _work: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)

    def of(self, entity: EntityPath) -> KnownEntity | None:
        return self._known.get(entity.key)

    def all(self) -> list[KnownEntity]:
        return list(self._known.values())

    def saw(self, entity: EntityPath) -> None:
        """The primary accepted a message for it."""
        if entity.key in self._known:
            self._known.move_to_end(entity.key)
            return
        self.learn(KnownEntity(entity=entity))
        self._to_inspect[entity.key] = entity
        self._work.unpark_all()

    def learn(self, known: KnownEntity) -> None:
        self._known[known.entity.key] = known
        self.changes.note()
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def gone(self, entity: EntityPath) -> None:
        """The primary says that there is no such entity."""
        if self._known.pop(entity.key, None) is not None:
            self.changes.note()

    def restore(self, known: Iterable[KnownEntity]) -> None:
        for one in known:
            self.learn(one)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask the primary about each entity that was seen for the first time."""
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
            info = await self.primary.inspect(entity)
        except EntityNotFound:
            self.gone(entity)
        except BrokerError:
            # Without the right to ask, or without an answer, only "it exists" is known;
            # the primary itself checks what it is sent.
            return
        else:
            self.learn(
                KnownEntity(
                    entity=entity,
                    requires_session=info.requires_session,
                    max_message_size=info.max_message_size,
                )
            )
