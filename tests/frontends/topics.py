"""A namespace with topics, kept in dictionaries: for what a front end does with one."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import attrs
import trio

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    PreconditionFailed,
)
from gateway.domain.rules import DEFAULT_RULE, Rule, SqlFilter
from gateway.domain.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.wire.sql_filter import compile_filter

T = TypeVar("T")
FIXED = ("requires_session", "requires_duplicate_detection", "support_ordering")
CREATED = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define(eq=False)
class Topics:
    """Implements `Topology`, and of `Broker` what management asks for. Nothing flows through it."""

    queues: dict[str, EntityInfo] = attrs.field(factory=dict)
    topics: dict[str, TopicInfo] = attrs.field(factory=dict)
    subscriptions: dict[tuple[str, str], SubscriptionInfo] = attrs.field(factory=dict)
    rules: dict[tuple[str, str], dict[str, Rule]] = attrs.field(factory=dict)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        await trio.lowlevel.checkpoint()
        return _found(self.queues, entity.key)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        await trio.lowlevel.checkpoint()
        names = sorted(name for name in self.queues if name.startswith(prefix.lower()))
        return [self.queues[name] for name in names[skip : skip + top]]

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        await trio.lowlevel.checkpoint()
        self._must_be_new(entity)
        self.queues[entity.key] = EntityInfo(
            path=entity, properties=properties, created=CREATED, updated=CREATED, version=1
        )
        return self.queues[entity.key]

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        await trio.lowlevel.checkpoint()
        return _change(self.queues, entity.key, properties, if_version)

    async def delete_queue(self, entity: EntityPath) -> None:
        await trio.lowlevel.checkpoint()
        _found(self.queues, entity.key)
        del self.queues[entity.key]

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        await trio.lowlevel.checkpoint()
        self._must_be_new(topic)
        self.topics[topic.key] = TopicInfo(
            path=topic, properties=properties, created=CREATED, updated=CREATED, version=1
        )
        return self.topics[topic.key]

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        await trio.lowlevel.checkpoint()
        return _change(self.topics, topic.key, properties, if_version)

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        await trio.lowlevel.checkpoint()
        count = sum(key == topic.key for key, _ in self.subscriptions)
        return attrs.evolve(_found(self.topics, topic.key), subscriptions=count)

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        await trio.lowlevel.checkpoint()
        names = sorted(name for name in self.topics if name.startswith(prefix.lower()))
        return [self.topics[name] for name in names[skip : skip + top]]

    async def delete_topic(self, topic: EntityPath) -> None:
        await trio.lowlevel.checkpoint()
        _found(self.topics, topic.key)
        del self.topics[topic.key]

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        await trio.lowlevel.checkpoint()
        _found(self.topics, topic.key)
        key = (topic.key, name.lower())
        if key in self.subscriptions:
            raise EntityExists(f"subscription {name} is there")
        first = rule or Rule(name=DEFAULT_RULE)
        self.rules[key] = {first.name.lower(): first}
        self.subscriptions[key] = SubscriptionInfo(
            topic=topic, name=name, properties=properties, created=CREATED, version=1
        )
        return self.subscriptions[key]

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        await trio.lowlevel.checkpoint()
        return _change(self.subscriptions, (topic.key, name.lower()), properties, if_version)

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        await trio.lowlevel.checkpoint()
        return _found(self.subscriptions, (topic.key, name.lower()))

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        await trio.lowlevel.checkpoint()
        _found(self.topics, topic.key)
        keys = sorted(key for key in self.subscriptions if key[0] == topic.key)
        return [self.subscriptions[key] for key in keys[skip : skip + top]]

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        await trio.lowlevel.checkpoint()
        _found(self.subscriptions, (topic.key, name.lower()))
        del self.subscriptions[topic.key, name.lower()]

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        await trio.lowlevel.checkpoint()
        rules = self._rules(topic, subscription)
        if rule.name.lower() in rules:
            raise EntityExists(f"rule {rule.name} is there")
        return _keep(rules, attrs.evolve(rule, created=CREATED))

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        await trio.lowlevel.checkpoint()
        rules = self._rules(topic, subscription)
        _found(rules, rule.name.lower())
        return _keep(rules, rule)

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        await trio.lowlevel.checkpoint()
        return _found(self._rules(topic, subscription), name.lower())

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        await trio.lowlevel.checkpoint()
        rules = self._rules(topic, subscription)
        return [rules[name] for name in sorted(rules)[skip : skip + top]]

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        await trio.lowlevel.checkpoint()
        rules = self._rules(topic, subscription)
        _found(rules, name.lower())
        del rules[name.lower()]

    def _rules(self, topic: EntityPath, subscription: str) -> dict[str, Rule]:
        return _found(self.rules, (topic.key, subscription.lower()))

    def _must_be_new(self, entity: EntityPath) -> None:
        if entity.key in self.queues or entity.key in self.topics:
            raise EntityExists(f"{entity} is there")


def _found(entities: dict[Any, T], key: object) -> T:
    if key not in entities:
        raise EntityNotFound(f"there is no {key}")
    return entities[key]


def _keep(rules: dict[str, Rule], rule: Rule) -> Rule:
    if isinstance(rule.filter, SqlFilter):
        compile_filter(rule.filter.expression, rule.filter.parameters)
    rules[rule.name.lower()] = rule
    return rule


def _change(entities: dict[Any, Any], key: object, properties: Any, version: int | None) -> Any:
    info: Any = _found(entities, key)
    if version is not None and version != info.version:
        raise PreconditionFailed(f"{key} has version {info.version}")
    for name in FIXED:
        if getattr(properties, name, None) != getattr(info.properties, name, None):
            raise InvalidRequest(f"{name}: can't be changed")
    entities[key] = attrs.evolve(info, properties=properties, version=info.version + 1)
    return entities[key]
