"""Managing the entities of a namespace that we keep ourselves."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.domain.billing import Operation
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.namespace import Namespace
from gateway.domain.rules import Rule
from gateway.domain.stored import Now
from gateway.domain.topics import Topics
from gateway.domain.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)

T = TypeVar("T")


class LocalTopology(ABC):
    """Implements `capabilities.Topology`, but for where a step runs."""

    @abstractmethod
    async def run_on(
        self,
        entity: EntityPath,
        work: Callable[[Namespace, Now], T],
        *,
        billed: Operation | None = Operation.MANAGE,
    ) -> T:
        """Do `work`, which concerns those who wait at `entity`, and which a cloud would bill so."""

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """As `Topology.update_queue`. What a queue was created with stays: `InvalidRequest`."""
        return await self.run_on(
            entity, lambda space, now: space.update(entity, properties, if_version, now)
        )

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        """As `Topology.create_topic`; `QuotaExceeded` where there are as many as there may be."""
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
        """Remove a topic with its subscriptions; who waits there gets `EntityNotFound`."""
        await self.run_on(topic, lambda space, _now: Topics(space).delete(topic))

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        """As `Topology.create_subscription`; `QuotaExceeded` above 2,000 of one topic."""
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
        """
        As `Topology.create_rule`.

        An action is stored and returned, and not carried out: a message that such a rule takes
        is refused with `NotSupported`.
        """
        return await self.run_on(
            topic, lambda space, now: Topics(space).add_rule(topic, subscription, rule, now)
        )

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
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
