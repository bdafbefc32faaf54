"""What a namespace is to have: queues, topics with subscriptions, and their rules."""

import attrs

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.rules import Rule
from gateway.domain.topology import SubscriptionProperties, TopicProperties


@attrs.frozen(kw_only=True)
class PlannedQueue:
    path: EntityPath
    properties: QueueProperties = attrs.field(factory=QueueProperties)


@attrs.frozen(kw_only=True)
class PlannedSubscription:
    """Without rules it gets the default one, which takes every message."""

    name: str
    properties: SubscriptionProperties = attrs.field(factory=SubscriptionProperties)
    rules: tuple[Rule, ...] = ()


@attrs.frozen(kw_only=True)
class PlannedTopic:
    path: EntityPath
    properties: TopicProperties = attrs.field(factory=TopicProperties)
    subscriptions: tuple[PlannedSubscription, ...] = ()


@attrs.frozen(kw_only=True)
class Plan:
    queues: tuple[PlannedQueue, ...] = ()
    topics: tuple[PlannedTopic, ...] = ()
