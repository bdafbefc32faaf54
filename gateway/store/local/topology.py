"""Manages the entities of a namespace that Pairgate keeps itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from gateway.domain.billing import Operation
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.store.embedded.entities import write_rule
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.topics import Topics

T = TypeVar("T")


class LocalTopology(ABC):
    """Implements `Topology` and `DeletesByVersion`, except for where a step runs."""

    @abstractmethod
    async def run_on(
        self,
        entity: EntityPath,
        work: Callable[[Namespace, Now], T],
        *,
        billed: Operation | None = Operation.MANAGE,
    ) -> T:
        """Run `work`, billed as `billed`, and wake the receivers that wait at `entity`."""

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """
        As `Topology.update_queue`. Raises `InvalidRequest` for properties that are fixed at
        creation.
        """
        return await self.run_on(
            entity, lambda space, now: space.update(entity, properties, if_version, now)
        )

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        """
        As `Topology.create_topic`; raises `QuotaExceeded` if the namespace has its maximum of
        entities.
        """
        return await self.run_on(
            topic, lambda space, now: Topics(space).create(topic, properties, now)
        )

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        return await self.run_on(
            topic, lambda space, now: Topics(space).update(topic, properties, if_version, now)
        )

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        return await self.run_on(topic, lambda space, _now: Topics(space).inspect(topic))

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        return await self.run_on(
            EntityPath(""), lambda space, _now: Topics(space).page(prefix, skip, top)
        )

    async def delete_topic(self, topic: EntityPath) -> None:
        """Delete a topic with its subscriptions; receivers that wait there get `EntityNotFound`."""
        await self.run_on(topic, lambda space, _now: Topics(space).delete(topic))

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """As `DeletesByVersion.delete_version`."""
        await self.run_on(path, lambda space, now: Topics(space).delete_version(path, version, now))

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        """
        As `Topology.create_subscription`; raises `QuotaExceeded` above 2,000 subscriptions of a
        topic.
        """
        if rule is not None:
            _check_storable(rule)
        return await self.run_on(
            topic, lambda space, now: Topics(space).subscribe(topic, name, properties, rule, now)
        )

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        def work(space: Namespace, now: Now) -> SubscriptionInfo:
            return Topics(space).update_subscription(topic, name, properties, if_version, now)

        return await self.run_on(topic, work)

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        return await self.run_on(
            topic, lambda space, now: Topics(space).inspect_subscription(topic, name, now)
        )

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        return await self.run_on(
            topic, lambda space, now: Topics(space).page_of_subscriptions(topic, skip, top, now)
        )

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        await self.run_on(topic, lambda space, now: Topics(space).unsubscribe(topic, name, now))

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        """As `Topology.create_rule`."""
        _check_storable(rule)
        return await self.run_on(
            topic, lambda space, now: Topics(space).add_rule(topic, subscription, rule, now)
        )

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        _check_storable(rule)
        return await self.run_on(
            topic, lambda space, now: Topics(space).update_rule(topic, subscription, rule, now)
        )

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        return await self.run_on(
            topic, lambda space, _now: Topics(space).inspect_rule(topic, subscription, name)
        )

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        return await self.run_on(
            topic, lambda space, _now: Topics(space).page_of_rules(topic, subscription, skip, top)
        )

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        await self.run_on(
            topic, lambda space, _now: Topics(space).drop_rule(topic, subscription, name)
        )


def _check_storable(rule: Rule) -> None:
    """
    Check that the storage can store the rule, so that storing it can't fail later.

    Raises:
        InvalidRequest: a value of the rule can't be stored.
    """
    try:
        write_rule(attrs.evolve(rule, created=None))
    except MessageError as error:
        raise InvalidRequest(f"rule {rule.name!r:.60}: {error}") from error


class LocalQueues(LocalTopology):
    """The queue management of `ports.Broker`: probe, inspect, list, create and delete."""

    async def probe(self, entity: EntityPath) -> None:
        def work(namespace: Namespace, _now: Now) -> None:
            if namespace.known(entity) is not None or not namespace.create_missing:
                namespace.find(entity).enqueue.check_sendable()
            namespace.check_room()

        await self.run_on(entity, work, billed=Operation.INSPECT)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.run_on(
            entity,
            lambda namespace, now: namespace.inspect(entity, now),
            billed=Operation.INSPECT,
        )

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self.run_on(
            EntityPath(""),
            lambda namespace, _now: namespace.page(prefix, skip, top),
            billed=Operation.INSPECT,
        )

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        As `Broker.create_queue`; raises `QuotaExceeded` if the namespace has its maximum of
        entities.
        """
        return await self.run_on(
            entity, lambda namespace, now: namespace.create(entity, properties, now)
        )

    async def delete_queue(self, entity: EntityPath) -> None:
        """
        As `Broker.delete_queue`; receivers that wait for a message there get `EntityNotFound`.
        """
        await self.run_on(entity, lambda namespace, _now: namespace.delete(entity))
