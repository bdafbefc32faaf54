"""What a broker that is made of another one passes on to it as it is."""

import abc
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import ClassVar

from gateway.capabilities import Peeks, Schedules, SessionReceiver, Sessions, Topology, Updates
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.domain.rules import Rule
from gateway.domain.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.ports import Broker, Receiver


class PassesOn(abc.ABC):
    """
    Everything but sending, passed on to `inner`, with all capabilities that there are.

    Each is there whatever `inner` is; what that one can't do is `NotSupported`, which names it as
    `inner_name`.
    """

    inner_name: ClassVar[str] = "the namespace"

    @property
    @abc.abstractmethod
    def inner(self) -> Broker:
        """Who does what is passed on."""

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self.inner.open_receiver(entity, mode)

    async def probe(self, entity: EntityPath) -> None:
        await self.inner.probe(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.inner.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self.inner.list_queues(prefix, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self.inner.create_queue(entity, properties)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.inner.delete_queue(entity)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        if not isinstance(self.inner, Peeks):
            raise NotSupported(f"{self.inner_name} can't show messages without taking them")
        return await self.inner.peek(entity, from_sequence=from_sequence, limit=limit)

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        return self._sessions().open_session(entity, session_id, mode)

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        return await self._sessions().list_sessions(
            entity, updated_since=updated_since, skip=skip, top=top
        )

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        return await self._schedules().schedule(entity, messages)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        await self._schedules().cancel_scheduled(entity, sequence_numbers)

    def _sessions(self) -> Sessions:
        if not isinstance(self.inner, Sessions):
            raise NotSupported(f"{self.inner_name} has no sessions")
        return self.inner

    def _schedules(self) -> Schedules:
        if not isinstance(self.inner, Schedules):
            raise NotSupported(f"{self.inner_name} tells no numbers of scheduled messages")
        return self.inner

    def _topology(self) -> Topology:
        if not isinstance(self.inner, Topology):
            raise NotSupported(f"{self.inner_name} has no topics")
        return self.inner

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        if not isinstance(self.inner, Updates):
            raise NotSupported(f"{self.inner_name} has no queues that can be changed")
        return await self.inner.update_queue(entity, properties, if_version=if_version)

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
