"""
Dormant queues, topics and subscriptions weren't used since their namespace was opened: they are
known, but their `Queue` isn't made yet. A topic and its subscriptions are made together.
"""

import attrs

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.topics.filters import CorrelationFilter
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.store.engine.entity_store import StoredEntity
from gateway.store.engine.records import State, Total, Totals

_NONE = Total(0, 0)


@attrs.define(eq=False)
class DormantQueue:
    """
    A queue before its first use, which makes a `Queue` of it; until then it takes a tenth of the
    memory. Nobody has changed its messages, so it has no locks, and the counts from the opening of
    the namespace are right.
    """

    stored: StoredEntity
    properties: QueueProperties
    totals: Totals
    used: float | None = None  # monotonic: when its idle time began

    @property
    def path(self) -> EntityPath:
        return self.stored.path

    @property
    def is_empty(self) -> bool:
        return not any(total.messages for total in self.totals.values())

    @property
    def has_due_work(self) -> bool:
        """As `Queue.has_due_work`; an empty queue has none before its first use."""
        properties = self.properties
        onward = properties.forward_to or properties.forward_dead_lettered_messages_to
        return (properties.requires_session or onward is not None) and not self.is_empty

    def info(self, max_message_size: int) -> EntityInfo:
        """As `Queue.info`."""
        totals = {state: self.totals.get(state, _NONE) for state in State}
        dead = (State.DEAD, State.DEAD_DEFERRED)
        transfer = (State.TRANSFER, State.TRANSFER_DEFERRED)
        stored = self.stored
        return EntityInfo(
            path=stored.path,
            properties=self.properties,
            max_message_size=max_message_size,
            active=totals[State.ACTIVE].messages,
            dead_lettered=sum(totals[state].messages for state in dead),
            scheduled=totals[State.SCHEDULED].messages,
            deferred=totals[State.DEFERRED].messages,
            transfer_dead_lettered=sum(totals[state].messages for state in transfer),
            size=sum(total.bytes for total in totals.values()),
            created=to_date(stored.created),
            updated=to_date(stored.updated),
            accessed=None,
            version=stored.version,
        )


@attrs.define(eq=False)
class DormantSubscription(DormantQueue):
    """A subscription; its topic is dormant, too."""

    def subscription_info(self) -> SubscriptionInfo:
        """As `Topics.inspect_subscription`."""
        properties, info = self.stored.properties, self.info(0)
        assert isinstance(properties, SubscriptionProperties), "it is a subscription"
        return SubscriptionInfo(
            topic=self.path.topic,
            name=self.path.subscription,
            properties=properties,
            active=info.active or 0,
            dead_lettered=info.dead_lettered or 0,
            transfer_dead_lettered=info.transfer_dead_lettered or 0,
            created=info.created,
            updated=info.updated,
            version=info.version,
        )


@attrs.define(eq=False)
class DormantTopic(DormantQueue):
    """A topic, whose subscriptions are dormant, too."""

    subscriptions: list[DormantSubscription] = attrs.field(factory=list)

    @property
    def family(self) -> list[DormantQueue]:
        """The topic and its subscriptions, which are made together."""
        return [self, *self.subscriptions]

    @property
    def has_due_work(self) -> bool:
        """As `Queue.has_due_work`: a topic with messages may have to copy them."""
        return not self.is_empty

    def topic_info(self, max_message_size: int) -> TopicInfo:
        """As `Topics.inspect`."""
        properties, info = self.stored.properties, self.info(max_message_size)
        assert isinstance(properties, TopicProperties), "it is a topic"
        rules = [rule for each in self.subscriptions for rule in each.stored.rules]
        correlation = sum(isinstance(rule.filter, CorrelationFilter) for rule in rules)
        return TopicInfo(
            path=self.path,
            properties=properties,
            max_message_size=max_message_size,
            size=sum(total.bytes for each in self.family for total in each.totals.values()),
            subscriptions=len(self.subscriptions),
            scheduled=info.scheduled or 0,
            transfer_dead_lettered=info.transfer_dead_lettered or 0,
            sql_filters=len(rules) - correlation,
            correlation_filters=correlation,
            created=info.created,
            updated=info.updated,
            version=info.version,
        )
