"""The figures of queues for scalers of listeners: depth and age, of one queue or of many."""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Final

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus
from gateway.domain.errors import BrokerError, EntityNotFound, NotAuthorized, NotSupported
from gateway.offering import offered
from gateway.ports import Broker, WallClock
from gateway.wire.pairgate.scale import MISSING, EntityFigures

AT_ONCE: Final = 16  # requests to the namespace
PAGE: Final = 100  # as many as Service Bus lists at most
MANY: Final = 10  # queues for which a list is worth its requests
# No listener can receive from entities in these states.
_GIVES_NOTHING: Final = frozenset({EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED})


@attrs.frozen(eq=False, kw_only=True)
class ScaleFigures:
    """Requests the figures from the namespace."""

    broker: Broker
    wall_clock: WallClock
    answer_timeout: float  # seconds

    async def of(self, entity: EntityPath) -> EntityFigures:
        """
        The figures of one entity.

        Raises:
            EntityNotFound: the entity doesn't exist.
            BrokerError: the namespace doesn't answer.
        """
        with answered_within(self.answer_timeout, f"from {entity}"):
            return await self._figures(await self.broker.inspect(entity))

    async def of_all(self, entities: Sequence[EntityPath]) -> Sequence[EntityFigures]:
        """
        The figures of these entities, in their order. An entity that doesn't exist has the status
        `MISSING`, and no message. Many queues are listed, a page at a time, instead of inspected
        each by itself.

        Raises:
            BrokerError: the namespace doesn't answer.
        """
        with answered_within(self.answer_timeout, "about the queues"):
            listed = await self._listed(entities) if len(entities) >= MANY else {}
            found: dict[str, EntityFigures] = {}
            problems: list[BrokerError] = []
            limiter = trio.CapacityLimiter(AT_ONCE)

            async def ask(entity: EntityPath) -> None:
                async with limiter:
                    try:
                        info = listed.get(entity.key) or await self.broker.inspect(entity)
                        found[entity.key] = await self._figures(info)
                    except EntityNotFound:
                        missing = EntityFigures(
                            entity=entity.name, status=MISSING, depth=0, age=0.0
                        )
                        found[entity.key] = missing
                    except BrokerError as error:
                        problems.append(error)

            async with trio.open_nursery() as nursery:
                for entity in entities:
                    nursery.start_soon(ask, entity)
            if problems:
                raise problems[0]
        return [found[entity.key] for entity in entities]

    async def _listed(self, entities: Sequence[EntityPath]) -> Mapping[str, EntityInfo]:
        """Return the queues that a list shows, with half as many requests as queues at most."""
        wanted = {entity.key for entity in entities}
        prefix, found = _common_prefix(wanted), dict[str, EntityInfo]()
        for number in range(max(1, len(entities) // 2)):
            try:
                page = await self.broker.list_queues(prefix, skip=number * PAGE, top=PAGE)
            except (NotAuthorized, NotSupported):
                return found
            found.update((info.path.key, info) for info in page if info.path.key in wanted)
            if len(page) < PAGE or len(found) == len(wanted):
                break
        return found

    async def _figures(self, info: EntityInfo) -> EntityFigures:
        """
        Return the figures of an entity for a scaler. The depth of an entity that can't be received
        from is 0, because more listeners would find no more messages. `depth` is omitted if the
        namespace doesn't report it, so that a scaler keeps its last value.
        """
        mute = info.properties.status in _GIVES_NOTHING
        age = 0.0 if mute or info.active == 0 else await self._age(info)
        return EntityFigures(
            entity=info.path.name,
            status=info.properties.status.value,
            depth=0 if mute else info.active,
            age=age,
        )

    async def _age(self, info: EntityInfo) -> float | None:
        """
        Seconds since the oldest message was enqueued; None if the namespace doesn't report it.
        """
        peeks = offered(self.broker, Peeks)
        if peeks is None:
            return None
        try:
            oldest = await peeks.peek(info.path, limit=1)
        except NotSupported:
            return None
        if not oldest:
            return 0.0
        enqueued = oldest[0].enqueued
        if enqueued is None:
            return None
        return max(0.0, (self.wall_clock() - enqueued).total_seconds())


def _common_prefix(texts: Collection[str]) -> str:
    """The longest text with which all of these begin."""
    first, last = min(texts), max(texts)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(each for each, _ in same)
