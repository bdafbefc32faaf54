"""Manages topics, their subscriptions and the rules of subscriptions."""

import re
from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityExists, EntityNotFound, InvalidRequest, QuotaExceeded
from gateway.domain.topics.filters import DEFAULT_RULE, Rule, check_rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.store.engine.dormant import DormantSubscription, DormantTopic
from gateway.store.engine.entity_store import StoredEntity
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.topic_routing import (
    Compiled,
    RoutedSubscription,
    TopicRouting,
    has_sql,
    sql_length,
)

MAX_SUBSCRIPTIONS: Final = 2000  # per topic: Service Bus's quota, as the next two
MAX_RULES: Final = 100_000  # per topic
MAX_SQL_RULES: Final = 2000  # per topic
# Characters of all SQL expressions of a topic. The first message after a start waits while they are
# compiled, which takes 1.6 us a character: some 0.4 s.
MAX_SQL_LENGTH: Final = 256 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9._~-]{1,50}", re.ASCII)


@attrs.frozen
class Topics:
    """
    The management of a namespace's topics. Each method is one step.

    Methods that name a topic, a subscription or a rule raise `EntityNotFound` if it doesn't exist.
    """

    _namespace: Namespace
    # The limits of each topic.
    max_subscriptions: int = attrs.field(default=MAX_SUBSCRIPTIONS, kw_only=True)
    max_rules: int = attrs.field(default=MAX_RULES, kw_only=True)
    max_sql_rules: int = attrs.field(default=MAX_SQL_RULES, kw_only=True)
    max_sql_length: int = attrs.field(default=MAX_SQL_LENGTH, kw_only=True)

    # --- topics

    def create(self, path: EntityPath, properties: TopicProperties, now: Now) -> TopicInfo:
        """
        Create a topic.

        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: the topic wasn't created.
        """
        if path.is_dead_letter or path.is_subscription:
            raise InvalidRequest(
                f"{path}: a topic expected, not the path of a sub-queue or subscription"
            )
        stored = StoredEntity(path=path, properties=properties, created=now.wall, updated=now.wall)
        self._namespace.check_new(stored)
        self._namespace.add(stored)
        return self.inspect(path)

    def update(
        self, path: EntityPath, properties: TopicProperties, if_version: int | None, now: Now
    ) -> TopicInfo:
        """As `Namespace.update`."""
        routing = self._namespace.routing(path)
        self._namespace.change(path, properties, if_version, now)
        self._namespace.journal.keep(routing)
        routing.properties = properties
        return self.inspect(path)

    def inspect(self, path: EntityPath) -> TopicInfo:
        unused = self._namespace.unused(path)
        if isinstance(unused, DormantTopic):
            return unused.topic_info(self._namespace.limit(unused.path, unused.properties))
        routing = self._namespace.routing(path)
        queue = self._namespace.find(path)
        info = queue.info()
        return TopicInfo(
            path=queue.path,
            properties=routing.properties,
            max_message_size=info.max_message_size,
            size=queue.used,
            subscriptions=len(routing.subscriptions),
            scheduled=info.scheduled or 0,
            transfer_dead_lettered=info.transfer_dead_lettered or 0,
            # Service Bus's true and false filters are SQL filters, too.
            sql_filters=routing.rules - routing.correlation_rules,
            correlation_filters=routing.correlation_rules,
            created=info.created,
            updated=info.updated,
            accessed=info.accessed,
            version=info.version,
        )

    def page(self, prefix: str, skip: int, top: int) -> Sequence[TopicInfo]:
        keys = self._namespace.page_of(TopicProperties, prefix, skip, top)
        return [self.inspect(EntityPath(key)) for key in keys]

    def delete(self, path: EntityPath) -> None:
        """Delete a topic with its subscriptions and their messages."""
        self._namespace.routing(path)
        self._namespace.remove_whole(path)

    def delete_version(self, path: EntityPath, version: int, now: Now) -> None:
        """
        Delete a queue, topic or subscription with its messages, if it has that version.

        Raises:
            EntityNotFound, PreconditionFailed: nothing was deleted.
        """
        self._namespace.check_version(path, version)
        if path.is_subscription:
            self.unsubscribe(path.topic, path.subscription, now)
        elif self._namespace.is_topic(path):
            self.delete(path)
        else:
            self._namespace.delete(path)

    # --- subscriptions

    def subscribe(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None,
        now: Now,
    ) -> SubscriptionInfo:
        """
        Create a subscription with one rule; without `rule`, a default rule that matches all
        messages.

        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: the subscription wasn't created.
        """
        routing = self._namespace.routing(topic)
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                "subscription name: 1 to 50 letters, digits, '.', '-', '_', '~' expected"
            )
        if len(routing.subscriptions) >= self.max_subscriptions:
            raise QuotaExceeded(
                f"{topic} has {self.max_subscriptions} subscriptions, the most allowed; delete"
                " unused ones"
            )
        rule = attrs.evolve(rule or Rule(name=DEFAULT_RULE), created=to_date(now.wall))
        compiled = self._check_rule(routing, rule)
        stored = StoredEntity(
            path=_path(self._namespace.find(topic).path, name),
            properties=properties,
            created=now.wall,
            updated=now.wall,
        )
        self._namespace.check_new(stored)
        self._namespace.add(stored)
        self._namespace.store.put_rule(stored.path, rule)
        self._namespace.find(topic).entity.touch(now)
        routing.put_rule(routing.subscriptions[name.lower()], rule, compiled)
        return self.inspect_subscription(topic, name, now)

    def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        if_version: int | None,
        now: Now,
    ) -> SubscriptionInfo:
        """As `Namespace.update`."""
        subscription = self._subscription(topic, name)
        self._namespace.change(subscription.queue.path, properties, if_version, now)
        self._namespace.journal.keep(subscription)
        subscription.properties = properties
        return self.inspect_subscription(topic, name, now)

    def inspect_subscription(self, topic: EntityPath, name: str, now: Now) -> SubscriptionInfo:
        unused = self._namespace.unused(_path(topic, name))
        if isinstance(unused, DormantSubscription) and unused.is_empty:
            return unused.subscription_info()
        subscription = self._subscription(topic, name)
        subscription.queue.sweep(now)
        info = subscription.queue.info()
        return SubscriptionInfo(
            topic=self._namespace.find(topic).path,
            name=subscription.name,
            properties=subscription.properties,
            active=info.active or 0,
            dead_lettered=info.dead_lettered or 0,
            transfer_dead_lettered=info.transfer_dead_lettered or 0,
            created=info.created,
            updated=info.updated,
            accessed=info.accessed,
            version=info.version,
        )

    def page_of_subscriptions(
        self, topic: EntityPath, skip: int, top: int, now: Now
    ) -> Sequence[SubscriptionInfo]:
        unused = self._namespace.unused(topic)
        if isinstance(unused, DormantTopic):
            names = [each.path.subscription.lower() for each in unused.subscriptions]
        else:
            names = [*self._namespace.routing(topic).subscriptions]
        return [
            self.inspect_subscription(topic, name, now) for name in _some(sorted(names), skip, top)
        ]

    def unsubscribe(self, topic: EntityPath, name: str, now: Now) -> None:
        """Delete a subscription with its messages."""
        self._namespace.remove_whole(self._subscription(topic, name).queue.path)
        self._namespace.find(topic).entity.touch(now)

    # --- rules

    def add_rule(self, topic: EntityPath, name: str, rule: Rule, now: Now) -> Rule:
        """
        Add a rule to a subscription.

        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: the rule wasn't created.
        """
        subscription = self._subscription(topic, name)
        if rule.name.lower() in subscription.rules:
            raise EntityExists(f"{subscription.queue.path} : a rule {rule.name!r} exists already")
        return self._put_rule(topic, subscription, rule, now)

    def update_rule(self, topic: EntityPath, name: str, rule: Rule, now: Now) -> Rule:
        """
        Replace a rule.

        Raises:
            InvalidRequest: nothing was changed.
        """
        self.inspect_rule(topic, name, rule.name)
        return self._put_rule(topic, self._subscription(topic, name), rule, now)

    def inspect_rule(self, topic: EntityPath, name: str, rule: str) -> Rule:
        subscription = self._subscription(topic, name)
        if rule.lower() not in subscription.rules:
            raise EntityNotFound(f"{subscription.queue.path} has no rule {rule!r}")
        return subscription.rules[rule.lower()]

    def page_of_rules(self, topic: EntityPath, name: str, skip: int, top: int) -> Sequence[Rule]:
        rules = self._subscription(topic, name).rules
        return [rules[key] for key in _some(sorted(rules), skip, top)]

    def drop_rule(self, topic: EntityPath, name: str, rule: str) -> None:
        self.inspect_rule(topic, name, rule)
        subscription = self._subscription(topic, name)
        self._namespace.store.remove_rule(subscription.queue.path, rule)
        self._namespace.routing(topic).drop_rule(subscription, rule)

    def _put_rule(
        self, topic: EntityPath, subscription: RoutedSubscription, rule: Rule, now: Now
    ) -> Rule:
        routing = self._namespace.routing(topic)
        old = subscription.rules.get(rule.name.lower())
        rule = attrs.evolve(rule, created=old.created if old else to_date(now.wall))
        compiled = self._check_rule(routing, rule, old)
        self._namespace.store.put_rule(subscription.queue.path, rule)
        routing.put_rule(subscription, rule, compiled)
        subscription.queue.entity.touch(now)
        return rule

    def _check_rule(self, routing: TopicRouting, rule: Rule, old: Rule | None = None) -> Compiled:
        check_rule(rule)
        compiled = routing.compiled(rule)
        if old is None and routing.rules >= self.max_rules:
            raise QuotaExceeded(
                f"the topic has {self.max_rules} rules, the most allowed; delete unused ones"
            )
        if has_sql(rule) and routing.sql_rules - has_sql(old) >= self.max_sql_rules:
            raise QuotaExceeded(
                f"the topic has {self.max_sql_rules} rules with SQL, the most allowed; delete"
                " unused ones"
            )
        more = sql_length(rule) - sql_length(old)
        length = routing.sql_length + more
        if more > 0 and length > self.max_sql_length:
            raise QuotaExceeded(
                f"the SQL of the topic's rules has {length} characters, and at most"
                f" {self.max_sql_length} are allowed; delete or shorten some"
            )
        self._namespace.check_room()
        return compiled

    def _subscription(self, topic: EntityPath, name: str) -> RoutedSubscription:
        subscription = self._namespace.routing(topic).subscriptions.get(name.lower())
        if subscription is None:
            raise EntityNotFound(f"{topic} has no subscription {name!r}")
        return subscription


def _some(keys: Sequence[str], skip: int, top: int) -> Sequence[str]:
    first = max(skip, 0)
    return keys[first : first + max(top, 0)]


def _path(topic: EntityPath, name: str) -> EntityPath:
    return EntityPath(f"{topic.name}/Subscriptions/{name}")
