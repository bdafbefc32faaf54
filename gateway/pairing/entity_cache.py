"""
The entities that are known: the gateway's memory of the primary's, to check sends in an outage as
usual, and those that an order of an operator may name.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import attrs
import trio

from gateway.capabilities import Topology
from gateway.changes import Changes
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    NotSupported,
)
from gateway.domain.operators.control import EVERYTHING
from gateway.domain.operators.known_targets import refusal_of, unknown_among
from gateway.domain.topics.topology import TopicInfo
from gateway.offering import offered
from gateway.ports import Broker

L = TypeVar("L", EntityInfo, TopicInfo)

MAX_KNOWN: Final = 10_000
INSPECTION_LIMIT: Final = 10.0  # seconds
ASK_AGAIN: Final = 3600.0  # seconds: limits change, and entities are recreated
ASK_AGAIN_SOON: Final = 60.0  # seconds, after a failed question
# Seconds that the primary has for a question of an operator, whose client waits for ten.
ANSWER_LIMIT: Final = 4.0
PAGE: Final = 100
MOST_LISTED: Final = 1000  # queues and topics each: ten requests


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
            await trio.lowlevel.checkpoint()  # a lost primary refuses at once
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


@attrs.define(eq=False, kw_only=True)
class KnownEntities:
    """
    The entities that an order may name: those of the configuration, those that the processes of the
    pair have seen, and those on the primary. It is asked for what the others don't have.
    """

    primary: Broker  # without a watch around it: a question of operators is no evidence
    configured: Sequence[str] = ()  # names of entities and of backlog queues

    async def refuse_unknown(
        self, targets: Sequence[str], seen: Callable[[], Iterable[str]]
    ) -> None:
        """
        Return if each target matches an entity. `seen` gives the names that the processes know.

        Raises:
            InvalidRequest: nobody knows some of them; the text suggests similar names.
        """
        known = {*self.configured, *seen()}
        unknown = unknown_among(targets, known)
        if not unknown:
            return
        doubt = "it doesn't answer"
        with trio.move_on_after(ANSWER_LIMIT):
            try:
                await self._ask(unknown, known)
                doubt = ""
            except BrokerError as error:
                doubt = str(error)
        if unknown := unknown_among(unknown, known):
            raise InvalidRequest(refusal_of(unknown, known, doubt))

    async def _ask(self, targets: Sequence[str], known: set[str]) -> None:
        """Add the entities that the primary has for these targets, or similar ones, to `known`."""
        for target in targets:
            if EVERYTHING not in target and await self._exists(EntityPath(target)):
                known.add(target)
        if not unknown_among(targets, known):
            return
        known.update(each.path.name for each in await _list(self.primary.list_queues))
        if (topology := offered(self.primary, Topology)) is not None:
            known.update(each.path.name for each in await _list(topology.list_topics))

    async def _exists(self, entity: EntityPath) -> bool:
        try:
            await self.primary.inspect(entity)
        except EntityNotFound:
            topology = offered(self.primary, Topology)
            if topology is None:
                return False
        else:
            return True
        try:
            await topology.inspect_topic(entity)
        except EntityNotFound:
            return False
        return True


async def list_known(broker: Broker) -> Sequence[EntityInfo]:
    """
    The first `MOST_LISTED` queues of the namespace; none, if it doesn't list them to us.

    Raises:
        BrokerError: the namespace doesn't answer.
    """
    try:
        return await _list(broker.list_queues)
    except (NotAuthorized, NotSupported):
        return ()


async def list_known_topics(topology: Topology) -> Sequence[TopicInfo]:
    """As `list_known`, of the topics."""
    try:
        return await _list(topology.list_topics)
    except (NotAuthorized, NotSupported):
        return ()


async def _list(page_of: Callable[..., Awaitable[Sequence[L]]]) -> list[L]:
    """The first `MOST_LISTED` entities that the namespace lists."""
    found: list[L] = []
    for skip in range(0, MOST_LISTED, PAGE):
        page = await page_of("", skip=skip, top=PAGE)
        found += page
        if len(page) < PAGE:
            break
    return found
