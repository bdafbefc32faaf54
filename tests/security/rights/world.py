"""A gateway in memory whose namespace notes each call, for the rights table."""

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.access import AccessPolicy
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityExists, LockLost
from gateway.domain.message import Message
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.store.local.memory import MemoryBroker
from tests.frontends.bearer import World as Provider
from tests.frontends.rest_client import wall_clock
from tests.security.rights.credentials import POLICIES
from tests.security.rights.model import Entity, Kind

_QUEUES = ("orders", "orders2", "invoices", "orders/eu")
_WITH_SESSIONS = ("sessions", "closed")
_TOPICS = ("news", "other")

_Q, _D, _S, _T, _N = Kind.QUEUE, Kind.DEAD_LETTERS, Kind.SUBSCRIPTION, Kind.TOPIC, Kind.NEW
# Each as a client may write it: own and foreign ones, names that begin alike, other cases, and
# percent-encoded characters.
ENTITIES = (
    *(Entity(name, _Q) for name in ("orders", "ORDERS", "%6Frders", "orders2", "invoices")),
    *(Entity(name, _Q) for name in ("orders/eu", "Orders%2Feu")),
    Entity("orders/$DeadLetterQueue", _D),
    Entity("orders%2F%24deadletterqueue", _D),
    Entity("invoices/$deadletterqueue", _D),
    Entity("orders/eu/$deadletterqueue", _D),
    Entity("orders/$Transfer/$DeadLetterQueue", _D),
    Entity("news/subscriptions/x/$deadletterqueue", _D),
    *(Entity(f"{name}ubscriptions/x", _S) for name in ("news/s", "NEWS/S", "other/s")),
    Entity("news", _T),
    Entity("other", _T),
    Entity("sessions", Kind.SESSIONS),
    Entity("closed", Kind.SESSIONS),
    Entity("new", _N),
    Entity("new2", _N),
)
NAMESPACE = Entity("", Kind.NAMESPACE)


class Noted:
    """A broker inside. It notes the name of each method that is called, and the entity."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self.entities: list[EntityPath] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.entities += [each for each in args[:1] if isinstance(each, EntityPath)]
            return found(*args, **kwargs)

        return noted


@attrs.define(eq=False)
class World:
    """The namespace, with every entity of the table."""

    provider: Provider
    memory: MemoryBroker
    broker: Noted
    leases: Leases
    authorizer: Authorizer
    nursery: trio.Nursery
    refusals: list[str]
    lock_token: str = ""  # of the message that another client has locked
    _locks: dict[str, str] = attrs.field(factory=dict)

    @classmethod
    async def open(
        cls, nursery: trio.Nursery, policies: Sequence[AccessPolicy] = POLICIES
    ) -> "World":
        refusals: list[str] = []
        provider = Provider()
        await nursery.start(provider.issuers.run)
        await wait_all_tasks_blocked()
        memory = MemoryBroker(wall_clock, random.Random(1))
        broker: Any = Noted(memory)
        leases = Leases(broker, wall_clock)
        await nursery.start(leases.run)
        authorizer = Authorizer(
            policies,
            wall_clock=wall_clock,
            accepts_well_known_key=True,
            issuers=provider.issuers,
            on_refused=lambda name, why: refusals.append(why.value),
        )
        world = cls(provider, memory, broker, leases, authorizer, nursery, refusals)
        await world.fill()
        return world

    async def fill(self) -> None:
        """Create all entities that are missing, and delete those that aren't in the table."""
        for name in _QUEUES:
            await self._create(name, QueueProperties())
        for name in _WITH_SESSIONS:
            await self._create(name, QueueProperties(requires_session=True))
        for name in _TOPICS:
            with suppress(EntityExists):
                await self.memory.create_topic(EntityPath(name), TopicProperties())
            for subscription in ("x", "y"):
                await self._subscribe(EntityPath(name), subscription)
        for name in ("new", "new2"):
            await self._delete(name)

    async def _create(self, name: str, properties: QueueProperties) -> None:
        with suppress(EntityExists):
            await self.memory.create_queue(EntityPath(name), properties)

    async def _subscribe(self, topic: EntityPath, name: str) -> None:
        try:
            await self.memory.create_subscription(topic, name, SubscriptionProperties())
        except EntityExists:
            await self.memory.update_subscription(topic, name, SubscriptionProperties())

    async def _delete(self, name: str) -> None:
        if name in {info.path.key for info in await self.memory.list_queues(name)}:
            await self.memory.delete_queue(EntityPath(name))
        if name in {info.path.key for info in await self.memory.list_topics(name)}:
            await self.memory.delete_topic(EntityPath(name))

    async def put(self, entity: Entity, **fields: Any) -> None:
        """Let one message arrive at that entity; into dead letters none is put."""
        if entity.kind is Kind.SUBSCRIPTION:
            await self.memory.send(EntityPath(entity.owner), [Message(**fields)])
        elif entity.kind is not Kind.DEAD_LETTERS:
            await self.memory.send(EntityPath(entity.path), [Message(**fields)])

    async def lock(self, entity: Entity) -> str:
        """The lock token of a message that another client has locked there."""
        path = EntityPath(entity.path)
        token = self._locks.get(path.key)
        try:
            if token is not None:
                await self.leases.renew(path, token)
                return token
        except LockLost:  # the message was settled by an earlier row
            pass
        await self.put(entity)
        (delivery,) = await self.leases.receive(path, 1)
        assert delivery.lock_token is not None
        self._locks[path.key] = delivery.lock_token
        return delivery.lock_token

    async def is_locked(self, entity: Entity, token: str) -> bool:
        """True if the lock is still there."""
        await self.leases.renew(EntityPath(entity.path), token)
        return True
