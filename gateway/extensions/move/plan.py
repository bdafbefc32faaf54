"""
Compares entities of both sides, and finds out what the new side can't do. A queue that is missing
there is tried out: one with its properties is made under another name, and deleted.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import attrs
import trio

from gateway.app.entities import make_entities
from gateway.capabilities import (
    Peeks,
    Schedules,
    SendsToSubscriptions,
    Sessions,
    Topology,
    Transacts,
    WritesDeadLetters,
    described,
)
from gateway.deadlines import answered_within
from gateway.domain.backlog import is_backlog
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties, first_changed
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    NotSupported,
)
from gateway.domain.operators.control import matches
from gateway.domain.plan import Plan, PlannedQueue, PlannedSubscription, PlannedTopic
from gateway.extensions.move.order import PlannedMove
from gateway.offering import offered, required
from gateway.ports import Broker

TRIAL: Final = EntityPath("x-pairgate-move/trial")
ANSWER: Final = 10.0  # seconds that one request to a namespace may take
PAGE: Final = 100  # as many as Service Bus lists at most
MOST_ENTITIES: Final = 10_000  # of one order: as many as a namespace of Service Bus has
_STAY: Final = "stay, and are received from both sides"
_RECEIVERS_ALONE: Final = "the new namespace gets them from receivers alone"
_CAPABILITIES: Final = (Sessions, Schedules, Peeks, Transacts)


@attrs.frozen(kw_only=True)
class Planning:
    """The two sides, and the entities that an order means."""

    old: Broker
    new: Broker

    async def plan(self, targets: Sequence[str], allowed: Sequence[str]) -> list[PlannedMove]:
        """
        Compare each queue and topic that a target matches, as far as [move] allows it.

        Raises:
            InvalidRequest: a target means nothing that may be moved.
            BrokerError: a side doesn't answer.
        """
        found = [each async for each in self._entities(targets)]
        for each in found:
            if not any(matches(pattern, each.path.key) for pattern in allowed):
                raise InvalidRequest(f"targets: {each.path} isn't among the entities of [move]")
        if not found:
            raise InvalidRequest(f"targets: no queue or topic matches {' '.join(targets)}")
        return [await self._planned(each) for each in found]

    async def make(self, planned: PlannedMove) -> None:
        """
        Return when the new side has the entity, with the properties that it can have, and a topic
        that is there its subscriptions.

        Raises:
            BrokerError: it can't be made.
        """
        path = EntityPath(planned.entity)
        if planned.exists and not planned.is_topic:
            return
        if planned.is_topic:
            topic = await self._known_topic(path) if planned.exists else await self._topic(path)
            if topic is not None:
                await make_entities(self.new, Plan(topics=(topic,)))
            return
        properties = (await _queue_info(self.old, path)).properties
        default = QueueProperties()
        lost = {name: getattr(default, name) for name in planned.lost}
        properties = attrs.evolve(properties, **lost)
        await make_entities(
            self.new, Plan(queues=(PlannedQueue(path=path, properties=properties),))
        )

    # --- what is there

    async def _entities(self, targets: Sequence[str]) -> AsyncIterator["_EntityToPlan"]:
        """The queues and topics of the old side; a name is asked for, where none can be listed."""
        seen = set[str]()
        for target in targets:
            names = [EntityPath.parse(target)] if "*" not in target else None
            if names is None:
                names = [each async for each in self._listed(target)]
            for path in names:
                if path.key in seen or is_backlog(path) or path.key.startswith("x-pairgate"):
                    continue
                seen.add(path.key)
                yield _EntityToPlan(path, await self._is_topic(path))
                if len(seen) > MOST_ENTITIES:
                    raise InvalidRequest(f"targets: more than {MOST_ENTITIES} entities match")

    async def _listed(self, pattern: str) -> AsyncIterator[EntityPath]:
        prefix, topology = pattern.partition("*")[0], offered(self.old, Topology)
        lists: list[Any] = [self.old.list_queues]
        lists += [] if topology is None else [topology.list_topics]
        for list_entities in lists:
            seen = 0
            while True:
                with answered_within(ANSWER, at=str(prefix)):
                    page = await list_entities(prefix, skip=seen, top=PAGE)
                for each in page:
                    if matches(pattern, each.path.key):
                        yield each.path
                seen += len(page)
                if not page:
                    break

    async def _is_topic(self, path: EntityPath) -> bool:
        """As the old side says; while that doesn't answer, as the new one does."""
        try:
            return await _has_topic(self.old, path)
        except BrokerError as error:
            if not error.counts_as_outage:
                raise
        return await _has_topic(self.new, path)

    async def _known_topic(self, path: EntityPath) -> PlannedTopic | None:
        try:
            return await self._topic(path)
        except BrokerError as error:
            if not error.counts_as_outage:
                raise
        return None  # the old side doesn't answer: the new one's stays as it is

    async def _topic(self, path: EntityPath) -> PlannedTopic:
        topology, found, seen = required(self.old, Topology), list[PlannedSubscription](), 0
        while page := await topology.list_subscriptions(path, skip=seen, top=PAGE):
            for each in page:
                rules = await topology.list_rules(path, each.name)
                found.append(
                    PlannedSubscription(
                        name=each.name, properties=each.properties, rules=tuple(rules)
                    )
                )
            seen += len(page)
        properties = (await topology.inspect_topic(path)).properties
        return PlannedTopic(path=path, properties=properties, subscriptions=tuple(found))

    # --- what differs

    async def _planned(self, found: "_EntityToPlan") -> PlannedMove:
        try:
            with answered_within(6 * ANSWER, at=found.path.name):
                return await (self._topic_move if found.is_topic else self._queue_move)(found)
        except BrokerError as error:
            if not error.counts_as_outage:
                raise
            outage = error
        return await self._half_planned(found, outage)

    async def _half_planned(self, found: "_EntityToPlan", outage: BrokerError) -> PlannedMove:
        """
        The move of an entity that the new side has, while the old one doesn't answer.

        Raises:
            BrokerError: the new side doesn't have it, or doesn't answer either.
        """
        with answered_within(ANSWER, at=found.path.name):
            if found.is_topic:
                await self.new.probe(found.path)
                new = EntityInfo(path=found.path)
            else:
                new = await _queue_info(self.new, found.path)
        return PlannedMove(
            entity=found.path.name,
            is_topic=found.is_topic,
            exists=True,
            requires_session=new.requires_session,
            problems=(f"the old namespace doesn't answer: {outage}",),
        )

    async def _queue_move(self, found: "_EntityToPlan") -> PlannedMove:
        old = await _queue_info(self.old, found.path)
        problems, lost = list(self._missing(old)), list[str]()
        new: EntityInfo | None = None
        try:
            new = await _queue_info(self.new, found.path)
        except EntityNotFound:
            lost = [name async for name in self._lost(old.properties, problems)]
        if new is not None and new != EntityInfo(path=found.path):
            problems += _different(old, new)
        problems += _smaller(old, new)
        return PlannedMove(
            entity=found.path.name,
            exists=new is not None,
            messages=old.active,
            requires_session=old.requires_session,
            problems=tuple(problems),
            lost=tuple(lost),
            notes=tuple(self._notes(old)),
        )

    async def _topic_move(self, found: "_EntityToPlan") -> PlannedMove:
        topic = await self._topic(found.path)
        topology, exists, problems = offered(self.new, Topology), False, list[str]()
        if topology is None:
            problems.append("the new namespace doesn't support topics")
        else:
            try:
                there = await topology.inspect_topic(found.path)
                exists = True
                problems += _changes(topic.properties, there.properties, "")
                names = {each.name.lower() for each in topic.subscriptions}
                for each in await topology.list_subscriptions(found.path, top=PAGE):
                    if each.name.lower() not in names:
                        problems.append(f"subscription {each.name}: only the new topic has it")
            except EntityNotFound:
                pass  # it will be made
        return PlannedMove(
            entity=found.path.name,
            is_topic=True,
            exists=exists,
            requires_session=any(each.properties.requires_session for each in topic.subscriptions),
            problems=tuple(problems),
            notes=tuple(self._notes_of_topic(topic)),
        )

    def _notes(self, old: EntityInfo) -> Iterator[str]:
        """The messages that aren't moved, and what becomes of them."""
        if old.dead_lettered != 0:
            dead = f"{_number(old.dead_lettered)} dead letters"
            if offered(self.new, WritesDeadLetters) is None:
                yield f"{dead} {_STAY}: {_RECEIVERS_ALONE}"
            elif offered(self.old, WritesDeadLetters) is None:
                yield f"{dead} are moved; a roll back leaves them at the new namespace"
        if old.deferred or (old.deferred is None and self._may_defer):
            yield (
                f"{_number(old.deferred)} deferred messages stay until they are received by their"
                " numbers; the move ends after that"
            )
        if old.scheduled is None:
            yield "its scheduled messages aren't counted: each comes to the new side when it is due"
        elif old.scheduled and not self._numbers_schedules:
            yield f"{old.scheduled} scheduled messages come to the new side when they are due"

    @property
    def _may_defer(self) -> bool:
        """True if the old side is of Service Bus's kind: others' receivers don't defer."""
        return all(offered(self.old, each) is not None for each in (Peeks, Sessions))

    @property
    def _numbers_schedules(self) -> bool:
        return all(offered(side, Schedules) is not None for side in (self.old, self.new))

    def _notes_of_topic(self, topic: PlannedTopic) -> Iterator[str]:
        """As `_notes`, of the topic's subscriptions."""
        if any(each.properties.requires_session for each in topic.subscriptions):
            yield "the order of its sessions is kept: their receivers take what is there"
        elif offered(self.new, SendsToSubscriptions) is None:
            yield (
                f"messages of its subscriptions {_STAY}: the new namespace takes none for a"
                " subscription alone"
            )
        if offered(self.new, WritesDeadLetters) is None:
            yield f"dead letters of its subscriptions {_STAY}: {_RECEIVERS_ALONE}"

    def _missing(self, old: EntityInfo) -> Iterator[str]:
        """The abilities that clients have had at the old side."""
        wanted = [each for each in _CAPABILITIES if each is not Sessions or old.requires_session]
        for each in wanted:
            if offered(self.old, each) is not None:
                try:
                    required(self.new, each)
                except NotSupported as error:
                    yield str(error)

    async def _lost(self, asked: QueueProperties, problems: list[str]) -> AsyncIterator[str]:
        """The properties that a queue of the new side can't have, each tried out."""
        default = QueueProperties()
        differing = [
            name
            for name in attrs.fields_dict(QueueProperties)
            if getattr(asked, name) != getattr(default, name)
        ]
        if await self._refusal(asked) is None:
            return
        for name in differing:
            only = attrs.evolve(default, **{name: getattr(asked, name)})
            refusal = await self._refusal(only)
            if refusal is not None:
                problems.append(f"{name}: {refusal}")
                yield name

    async def _refusal(self, properties: QueueProperties) -> str | None:
        """Why the new side can't make such a queue; None: it can."""
        try:
            await self.new.create_queue(TRIAL, properties)
        except (NotSupported, InvalidRequest) as error:
            return str(error)
        except EntityExists:
            pass  # of a plan that was interrupted
        with trio.move_on_after(ANSWER, shield=True):
            await self.new.delete_queue(TRIAL)
        return None


async def _has_topic(broker: Broker, path: EntityPath) -> bool:
    topology = offered(broker, Topology)
    if topology is None:
        return False
    try:
        with answered_within(ANSWER, at=path.name):
            await topology.inspect_topic(path)
    except (EntityNotFound, NotSupported, InvalidRequest):
        return False
    return True


async def _queue_info(broker: Broker, path: EntityPath) -> EntityInfo:
    """
    The queue as its namespace describes it; as one with defaults, if it describes none.

    Raises:
        EntityNotFound: there is no such queue.
        BrokerError: the namespace doesn't answer.
    """
    try:
        return await described(broker, path)
    except NotSupported:
        await broker.probe(path)
        return EntityInfo(path=path)


@attrs.frozen
class _EntityToPlan:
    path: EntityPath
    is_topic: bool


def _different(old: EntityInfo, new: EntityInfo) -> Iterator[str]:
    if first_changed(old.properties, new) is not None:
        yield from _changes(old.properties, new.properties, "")


def _changes(old: Any, new: Any, of: str) -> Iterator[str]:
    for name in attrs.fields_dict(type(old)):
        before, after = getattr(old, name), getattr(new, name)
        if before != after and name not in {"user_metadata", "authorization_rules"}:
            yield f"{of}{name}: {before} there, {after} at the new namespace"


def _smaller(old: EntityInfo, new: EntityInfo | None) -> Iterator[str]:
    if new is None or new.max_message_size is None:
        return
    if old.max_message_size is None or old.max_message_size > new.max_message_size:
        yield f"max_message_size: the new namespace takes {new.max_message_size} bytes at most"


def _number(count: int | None) -> str:
    """The count as the beginning of a sentence."""
    return "its" if count is None else str(count)
