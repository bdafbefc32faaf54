"""Topics of the pair, with answers from memory while its primary can't be asked."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gateway.capabilities import Topology
from gateway.capabilities.remembering import record_from_memory
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.topics.topology import TopicInfo, TopicProperties
from gateway.extensions.entity_memory.asking import created, in_time, listed
from gateway.extensions.entity_memory.memory import EntityMemory
from gateway.offering import required
from gateway.ports import Broker


def _passed_on(name: str) -> Any:
    """A method of `Topology` that only the primary can do."""

    async def method(self: "TopicsFromMemory", *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.topology, name)(*args, **kwargs)

    return method


class TopicsFromMemory:
    """
    The methods of `Topology`, of the topics that `memory` knows. Subscriptions and rules aren't
    remembered.
    """

    broker: Broker
    memory: EntityMemory

    @property
    def topology(self) -> Topology:
        """The topics of the primary."""
        return required(self.broker, Topology)

    update_subscription = _passed_on("update_subscription")
    create_subscription = _passed_on("create_subscription")
    inspect_subscription = _passed_on("inspect_subscription")
    list_subscriptions = _passed_on("list_subscriptions")
    delete_subscription = _passed_on("delete_subscription")
    create_rule = _passed_on("create_rule")
    update_rule = _passed_on("update_rule")
    inspect_rule = _passed_on("inspect_rule")
    list_rules = _passed_on("list_rules")
    delete_rule = _passed_on("delete_rule")

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        """As `Topology.create_topic`; a topic that the primary had exists."""
        create: Callable[..., Any] = self.topology.create_topic
        info: TopicInfo = await created(self.memory, topic, lambda: create(topic, properties))
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
        known = self.memory.topic(topic)
        try:
            info = await in_time(
                lambda: self.topology.inspect_topic(topic), knows=known is not None
            )
        except BrokerError as error:
            if known is None or not error.counts_as_outage:
                raise
            record_from_memory()
            return known
        self.memory.record_topic(info)
        return info

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
