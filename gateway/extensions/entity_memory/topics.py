"""Topics of the pair, with answers from memory while its primary can't be asked."""

from collections.abc import Sequence
from functools import partial

from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.extensions.entity_memory.asking import created, listed, read
from gateway.extensions.entity_memory.memory import EntityMemory
from gateway.offering import required
from gateway.ports import Broker


class TopicsFromMemory:
    """The methods of `Topology`, of the topics, subscriptions and rules that `memory` knows."""

    broker: Broker
    memory: EntityMemory

    @property
    def topology(self) -> Topology:
        """The topics of the primary."""
        return required(self.broker, Topology)

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        """As `Topology.create_topic`; a topic that the primary had exists."""
        knows = self.memory.knows(topic)
        info = await created(knows, topic, lambda: self.topology.create_topic(topic, properties))
        self.memory.record_topic(info)
        return info

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        """As `Topology.update_topic`."""
        info = await self.topology.update_topic(topic, properties, if_version=if_version)
        self.memory.record_topic(info)
        return info

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        """As `Topology.inspect_topic`; in an outage from memory."""
        memory = self.memory
        ask = partial(self.topology.inspect_topic, topic)
        return await read(memory.topic(topic), ask, memory.record_topic)

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        """As `Topology.list_topics`; in an outage the known topics."""
        memory = self.memory
        ask = partial(self.topology.list_topics, prefix, skip=skip, top=top)
        return await listed(memory.topics(prefix), ask, memory.record_topic, skip=skip, top=top)

    async def delete_topic(self, topic: EntityPath) -> None:
        """As `Topology.delete_topic`."""
        await self.topology.delete_topic(topic)
        self.memory.forget(topic)

    # --- subscriptions

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        """As `Topology.create_subscription`; one that the primary had exists."""
        knows = self.memory.subscription(topic, name) is not None
        create = partial(self.topology.create_subscription, topic, name, properties, rule)
        info = await created(knows, f"{topic}/Subscriptions/{name}", create)
        self.memory.record_subscription(info)
        return info

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        """As `Topology.update_subscription`."""
        update = self.topology.update_subscription
        info = await update(topic, name, properties, if_version=if_version)
        self.memory.record_subscription(info)
        return info

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        """As `Topology.inspect_subscription`; in an outage from memory, without the counts."""
        memory = self.memory
        ask = partial(self.topology.inspect_subscription, topic, name)
        try:
            return await read(memory.subscription(topic, name), ask, memory.record_subscription)
        except EntityNotFound:
            memory.forget_subscription(topic, name)
            raise

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        """As `Topology.list_subscriptions`; in an outage the known ones."""
        memory = self.memory
        ask = partial(self.topology.list_subscriptions, topic, skip=skip, top=top)
        known = memory.subscriptions(topic)
        return await listed(known, ask, memory.record_subscription, skip=skip, top=top)

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        """As `Topology.delete_subscription`."""
        await self.topology.delete_subscription(topic, name)
        self.memory.forget_subscription(topic, name)

    # --- rules

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        """As `Topology.create_rule`; one that the primary had exists."""
        knows = self.memory.rule(topic, subscription, rule.name) is not None
        create = partial(self.topology.create_rule, topic, subscription, rule)
        made = await created(knows, f"rule {rule.name}", create)
        self.memory.record_rule(topic, subscription, made)
        return made

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        """As `Topology.update_rule`."""
        changed = await self.topology.update_rule(topic, subscription, rule)
        self.memory.record_rule(topic, subscription, changed)
        return changed

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        """As `Topology.inspect_rule`; in an outage from memory."""
        memory = self.memory
        ask = partial(self.topology.inspect_rule, topic, subscription, name)
        record = partial(memory.record_rule, topic, subscription)
        try:
            return await read(memory.rule(topic, subscription, name), ask, record)
        except EntityNotFound:
            memory.forget_rule(topic, subscription, name)
            raise

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        """As `Topology.list_rules`; in an outage the known ones."""
        memory = self.memory
        ask = partial(self.topology.list_rules, topic, subscription, skip=skip, top=top)
        record = partial(memory.record_rule, topic, subscription)
        return await listed(memory.rules(topic, subscription), ask, record, skip=skip, top=top)

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        """As `Topology.delete_rule`."""
        await self.topology.delete_rule(topic, subscription, name)
        self.memory.forget_rule(topic, subscription, name)
