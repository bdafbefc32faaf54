"""The entities that a namespace must have: queues, topics with subscriptions, and their rules."""

import attrs

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties


@attrs.frozen(kw_only=True)
class PlannedQueue:
    path: EntityPath
    properties: QueueProperties = attrs.field(factory=QueueProperties)


@attrs.frozen(kw_only=True)
class PlannedSubscription:
    """A planned subscription. Without rules it gets the default rule, which matches everything."""

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
