"""Management of a pair's entities: it is the primary's."""

from collections.abc import Sequence

from gateway.capabilities import Topology, Updates
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.domain.rules import Rule
from gateway.domain.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.ports import Broker


class PrimaryTopology:
    """
    A `Topology` that passes everything to `primary`.

    Every method raises `NotSupported` where the primary is none.
    """

    primary: Broker

    def _topology(self) -> Topology:
        if not isinstance(self.primary, Topology):
            raise NotSupported("the primary namespace has no topics")
        return self.primary

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        if not isinstance(self.primary, Updates):
            raise NotSupported("the primary namespace has no queues that can be changed")
        return await self.primary.update_queue(entity, properties, if_version=if_version)

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        return await self._topology().create_topic(topic, properties)

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        return await self._topology().update_topic(topic, properties, if_version=if_version)

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        return await self._topology().inspect_topic(topic)

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        return await self._topology().list_topics(prefix, skip=skip, top=top)

    async def delete_topic(self, topic: EntityPath) -> None:
        await self._topology().delete_topic(topic)

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        return await self._topology().create_subscription(topic, name, properties, rule)

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        topology = self._topology()
        return await topology.update_subscription(topic, name, properties, if_version=if_version)

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        return await self._topology().inspect_subscription(topic, name)

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        return await self._topology().list_subscriptions(topic, skip=skip, top=top)

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        await self._topology().delete_subscription(topic, name)

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        return await self._topology().create_rule(topic, subscription, rule)

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        return await self._topology().update_rule(topic, subscription, rule)

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        return await self._topology().inspect_rule(topic, subscription, name)

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        return await self._topology().list_rules(topic, subscription, skip=skip, top=top)

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        await self._topology().delete_rule(topic, subscription, name)
