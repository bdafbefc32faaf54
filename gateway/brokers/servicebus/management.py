"""Management of another namespace's entities over Atom. Needs the right Manage."""

from collections.abc import Sequence
from typing import Final, TypeVar

import attrs

from gateway.brokers.servicebus.peer import RestPeer
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, NotSupported, OutcomeUnknown
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
    as_queue,
)
from gateway.wire.servicebus import atom, atom_answers
from gateway.wire.servicebus import atom_operations as wish

T = TypeVar("T")

_PAGE: Final = 100  # entities per request, the most that Service Bus returns


class RestManagement:
    """
    `Topology`, `DeletesByVersion`, and the management operations of `Broker`.

    Queues and topics share their names: a deletion by name deletes either.
    """

    _peer: RestPeer

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`."""
        if entity.is_subscription:
            return _as_entity(await self.inspect_subscription(entity.topic, entity.subscription))
        answer = await self._manage(wish.GetEntity(entity=entity))
        if not isinstance(answer, EntityInfo):
            raise EntityNotFound(f"there is no queue {entity}")
        return answer

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self._pages(wish.ListQueues(prefix=prefix, skip=skip, top=top), EntityInfo)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self._answer(wish.PutQueue(entity=entity, properties=properties), EntityInfo)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        update = wish.PutQueue(
            entity=entity, properties=properties, update=True, if_version=if_version
        )
        return await self._answer(update, EntityInfo)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self._manage(wish.DeleteEntity(entity=entity))

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """As `DeletesByVersion.delete_version`: only before a Pairgate, which reads If-Match."""
        if not await self._peer.is_pairgate(path.parent):
            raise NotSupported("Service Bus can't delete an entity by its version")
        if path.is_subscription:
            await self._manage(
                wish.DeleteSubscription(
                    topic=path.topic, name=path.subscription, if_version=version
                )
            )
        else:
            await self._manage(wish.DeleteEntity(entity=path, if_version=version))

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        return await self._answer(wish.PutTopic(entity=topic, properties=properties), TopicInfo)

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        update = wish.PutTopic(
            entity=topic, properties=properties, update=True, if_version=if_version
        )
        return await self._answer(update, TopicInfo)

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        answer = await self._manage(wish.GetEntity(entity=topic))
        if not isinstance(answer, TopicInfo):
            raise EntityNotFound(f"there is no topic {topic}")
        return answer

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        return await self._pages(wish.ListTopics(prefix=prefix, skip=skip, top=top), TopicInfo)

    async def delete_topic(self, topic: EntityPath) -> None:
        await self._manage(wish.DeleteEntity(entity=topic))

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        creation = wish.PutSubscription(topic=topic, name=name, properties=properties, rule=rule)
        return await self._answer(creation, SubscriptionInfo)

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        update = wish.PutSubscription(
            topic=topic, name=name, properties=properties, update=True, if_version=if_version
        )
        return await self._answer(update, SubscriptionInfo)

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        return await self._answer(wish.GetSubscription(topic=topic, name=name), SubscriptionInfo)

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        question = wish.ListSubscriptions(topic=topic, skip=skip, top=top)
        return await self._pages(question, SubscriptionInfo)

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        await self._manage(wish.DeleteSubscription(topic=topic, name=name))

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        creation = wish.PutRule(topic=topic, subscription=subscription, rule=rule)
        return await self._answer(creation, Rule)

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        update = wish.PutRule(topic=topic, subscription=subscription, rule=rule, update=True)
        return await self._answer(update, Rule)

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        question = wish.GetRule(topic=topic, subscription=subscription, name=name)
        return await self._answer(question, Rule)

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        question = wish.ListRules(topic=topic, subscription=subscription, skip=skip, top=top)
        return await self._pages(question, Rule)

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        await self._manage(wish.DeleteRule(topic=topic, subscription=subscription, name=name))

    async def _answer(self, operation: wish.Operation, kind: type[T]) -> T:
        answer = await self._manage(operation)
        if not isinstance(answer, kind):
            raise OutcomeUnknown(f"the answer isn't a {kind.__name__}")
        return answer

    async def _pages(self, operation: wish.ListOperation, kind: type[T]) -> list[T]:
        found: list[T] = []
        while True:
            page = min(_PAGE, operation.top - len(found))
            question = attrs.evolve(operation, skip=operation.skip + len(found), top=page)
            answer = await self._manage(question)
            got = answer if isinstance(answer, tuple) else ()
            found += [each for each in got if isinstance(each, kind)]
            if len(got) < page or len(found) >= operation.top:
                return found

    async def _manage(self, operation: wish.Operation) -> wish.Answer:
        entity = wish.entity_of(operation)
        path = entity.parent.name if entity is not None else ""
        request, forwards = atom.build_request(operation), wish.forwards_of(operation)
        response = await self._peer.manage(path, request, forwards)
        return atom_answers.parse_response(operation, response)


def _as_entity(info: SubscriptionInfo) -> EntityInfo:
    return EntityInfo(
        path=info.path,
        properties=as_queue(info.properties),
        active=info.active,
        dead_lettered=info.dead_lettered,
        transfer_dead_lettered=info.transfer_dead_lettered,
        created=info.created,
        updated=info.updated,
        accessed=info.accessed,
        version=info.version,
    )
