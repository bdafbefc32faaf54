"""
The queues, topics, subscriptions and rules of the primary, as it described them when it answered
last.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities import Topology
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, NotAuthorized, NotSupported
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import SubscriptionInfo, TopicInfo
from gateway.offering import offered
from gateway.pairing.entity_cache import (
    ASK_AGAIN,
    ASK_AGAIN_SOON,
    MAX_KNOWN,
    PAGE,
    EntityCache,
    list_known,
    list_known_topics,
)

_PATIENCE: Final = 30.0  # seconds for the list


@attrs.define(eq=False, kw_only=True)
class EntityMemory:
    """
    The queues and topics of the primary. `names` has those that messages were sent to as well, also
    before a restart; of these nothing else may be known.
    """

    names: EntityCache
    _queues: Bounded[str, EntityInfo] = attrs.field(factory=lambda: Bounded(MAX_KNOWN), init=False)
    _topics: Bounded[str, TopicInfo] = attrs.field(factory=lambda: Bounded(MAX_KNOWN), init=False)
    # By topic, and then by the subscription's name; by subscription, and then by the rule's.
    _subscriptions: Bounded[str, dict[str, SubscriptionInfo]] = attrs.field(
        factory=lambda: Bounded(MAX_KNOWN), init=False
    )
    _rules: Bounded[tuple[str, str], dict[str, Rule]] = attrs.field(
        factory=lambda: Bounded(MAX_KNOWN), init=False
    )
    _gone: Bounded[str, None] = attrs.field(factory=lambda: Bounded(MAX_KNOWN), init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask the primary for all of them at once, and again each hour, until cancelled."""
        task_status.started()
        while True:
            answered = False
            with trio.move_on_after(_PATIENCE):
                answered = await self._ask()
            await trio.sleep(ASK_AGAIN if answered else ASK_AGAIN_SOON)

    async def _ask(self) -> bool:
        primary = self.names.primary
        try:
            queues = await list_known(primary)
            topology = offered(primary, Topology)
            topics = [] if topology is None else await list_known_topics(topology)
        except BrokerError:
            return False
        for queue in queues:
            self.record_queue(queue)
        for topic in topics:
            self.record_topic(topic)
        return topology is None or await self._ask_for_subscriptions(topology, topics)

    async def _ask_for_subscriptions(self, topology: Topology, topics: Sequence[TopicInfo]) -> bool:
        """Ask for the subscriptions of these topics, and for their rules. False: no answer."""
        try:
            for topic in topics:
                for found in await topology.list_subscriptions(topic.path, top=PAGE):
                    self.record_subscription(found)
                    for rule in await topology.list_rules(topic.path, found.name, top=PAGE):
                        self.record_rule(topic.path, found.name, rule)
        except (NotAuthorized, NotSupported):
            return True
        except BrokerError as error:  # a topic may be deleted meanwhile
            return not error.counts_as_outage
        return True

    def record_queue(self, info: EntityInfo) -> None:
        """Remember the queue as the primary has just described it."""
        key = info.path.key
        self._queues[key] = info
        self._topics.pop(key, None)
        self._gone.pop(key, None)

    def record_topic(self, info: TopicInfo) -> None:
        """Remember the topic as the primary has just described it."""
        key = info.path.key
        self._topics[key] = info
        self._queues.pop(key, None)
        self._gone.pop(key, None)

    def forget(self, entity: EntityPath) -> None:
        """Forget an entity that the primary hasn't any more."""
        self._queues.pop(entity.key, None)
        self._topics.pop(entity.key, None)
        for name in self._subscriptions.pop(entity.key, {}):
            self._rules.pop((entity.key, name), None)
        self._gone[entity.key] = None

    def record_subscription(self, info: SubscriptionInfo) -> None:
        """Remember the subscription as the primary has just described it."""
        self._subscriptions.setdefault(info.topic.key, {})[info.name.lower()] = info

    def forget_subscription(self, topic: EntityPath, name: str) -> None:
        """Forget a subscription that the primary hasn't any more."""
        self._subscriptions.get(topic.key, {}).pop(name.lower(), None)
        self._rules.pop((topic.key, name.lower()), None)

    def subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo | None:
        """The subscription without its counts; None: it isn't known."""
        info = self._subscriptions.get(topic.key, {}).get(name.lower())
        return None if info is None else _without_counts(info)

    def subscriptions(self, topic: EntityPath) -> Sequence[SubscriptionInfo]:
        """All known subscriptions of the topic, sorted by name."""
        found = self._subscriptions.get(topic.key, {})
        return [_without_counts(found[name]) for name in sorted(found)]

    def record_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> None:
        """Remember the rule as the primary has just described it."""
        self._rules.setdefault((topic.key, subscription.lower()), {})[rule.name.lower()] = rule

    def forget_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        """Forget a rule that the primary hasn't any more."""
        self._rules.get((topic.key, subscription.lower()), {}).pop(name.lower(), None)

    def rule(self, topic: EntityPath, subscription: str, name: str) -> Rule | None:
        return self._rules.get((topic.key, subscription.lower()), {}).get(name.lower())

    def rules(self, topic: EntityPath, subscription: str) -> Sequence[Rule]:
        """All known rules of the subscription, sorted by name."""
        found = self._rules.get((topic.key, subscription.lower()), {})
        return [found[name] for name in sorted(found)]

    def knows(self, entity: EntityPath) -> bool:
        """True if the primary had a queue or topic with that name."""
        key = entity.key
        described = key in self._queues or key in self._topics
        return described or (key not in self._gone and self.names.of(entity) is not None)

    def queue(self, entity: EntityPath) -> EntityInfo | None:
        """The queue; None: it isn't known, or nothing but its name is."""
        info = self._queues.get(entity.key)
        return None if info is None else _without_figures(info)

    def topic(self, entity: EntityPath) -> TopicInfo | None:
        return self._topics.get(entity.key)

    def queues(self, prefix: str) -> Sequence[EntityInfo]:
        """All known queues whose names begin with `prefix`, sorted by name."""
        found = {key: _without_figures(info) for key, info in self._queues.items()}
        for known in self.names.all():
            key = known.entity.key
            if self.knows(known.entity) and key not in self._topics:
                found.setdefault(key, EntityInfo(path=known.entity))
        return [found[key] for key in sorted(found) if key.startswith(prefix.lower())]

    def topics(self, prefix: str) -> Sequence[TopicInfo]:
        """As `queues`, of the topics."""
        return [self._topics[key] for key in sorted(self._topics) if key.startswith(prefix.lower())]


def _without_figures(info: EntityInfo) -> EntityInfo:
    """The counts of messages change all the time: nobody knows them now."""
    return attrs.evolve(
        info,
        active=None,
        locked_here=0,
        other_consumers=0,
        lag=0.0,
        dead_lettered=None,
        scheduled=None,
        deferred=None,
        transfer_dead_lettered=None,
        size=None,
        accessed=None,
    )


def _without_counts(info: SubscriptionInfo) -> SubscriptionInfo:
    return attrs.evolve(
        info, active=None, dead_lettered=None, transfer_dead_lettered=None, accessed=None
    )
