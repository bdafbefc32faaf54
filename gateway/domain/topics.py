"""Managing topics, their subscriptions, and the rules of those."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    QuotaExceeded,
)
from gateway.domain.fanout import Fanout, Subscription
from gateway.domain.namespace import Namespace
from gateway.domain.rules import DEFAULT_RULE, Rule, SqlFilter, check_rule
from gateway.domain.shelf import StoredEntity
from gateway.domain.stored import Now, to_date
from gateway.domain.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)

MAX_SUBSCRIPTIONS: Final = 2000  # of a topic
MAX_RULES: Final = 100_000  # of a topic
MAX_SQL_RULES: Final = 2000
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,50}", re.ASCII)


@attrs.frozen
class Topics:
    """
    What may be done with the topics of a namespace. Each method is one step.

    Those that name a topic, a subscription or a rule raise `EntityNotFound` if it isn't there.
    """

    _namespace: Namespace

    # --- topics

    def create(self, path: EntityPath, properties: TopicProperties, now: Now) -> TopicInfo:
        """
        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: nothing was made.
        """
        if path.is_dead_letter or path.is_subscription:
            raise InvalidRequest(f"{path}: that can't be the name of a topic")
        stored = StoredEntity(path=path, properties=properties, created=now.wall, updated=now.wall)
        self._namespace.check_new(stored)
        self._namespace.add(stored)
        return self.inspect(path)

    def update(
        self, path: EntityPath, properties: TopicProperties, if_version: int | None, now: Now
    ) -> TopicInfo:
        """As `Namespace.update`."""
        fanout = self._namespace.fanout(path)
        self._namespace.change(path, properties, if_version, now)
        fanout.properties = properties
        return self.inspect(path)

    def inspect(self, path: EntityPath) -> TopicInfo:
        fanout = self._namespace.fanout(path)
        queue = self._namespace.find(path)
        info = queue.info()
        return TopicInfo(
            path=queue.path,
            properties=fanout.properties,
            max_message_size=info.max_message_size,
            size=queue.account.bytes,
            subscriptions=len(fanout.subscriptions),
            scheduled=info.scheduled or 0,
            transfer_dead_lettered=info.transfer_dead_lettered or 0,
            created=info.created,
            updated=info.updated,
            accessed=info.accessed,
            version=info.version,
        )

    def page(self, prefix: str, skip: int, top: int) -> Sequence[TopicInfo]:
        keys = self._namespace.page_of(TopicProperties, prefix, skip, top)
        return [self.inspect(EntityPath(key)) for key in keys]

    def delete(self, path: EntityPath) -> None:
        """Remove a topic with its subscriptions and their messages."""
        self._namespace.fanout(path)
        self._namespace.remove_whole(path)

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
        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: nothing was made.
        """
        fanout = self._namespace.fanout(topic)
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                "subscription name: 1 to 50 letters, digits, '.', '-', '_' expected"
            )
        if len(fanout.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise QuotaExceeded(f"{topic} has {MAX_SUBSCRIPTIONS} subscriptions: no more fit")
        rule = attrs.evolve(rule or Rule(name=DEFAULT_RULE), created=to_date(now.wall))
        self._check_rule(fanout, rule)
        stored = StoredEntity(
            path=_path(self._namespace.find(topic).path, name),
            properties=properties,
            created=now.wall,
            updated=now.wall,
        )
        self._namespace.check_new(stored)
        self._namespace.add(stored)
        self._namespace.shelf.put_rule(stored.path, rule)
        fanout.put_rule(fanout.subscriptions[name.lower()], rule)
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
        subscription.properties = properties
        return self.inspect_subscription(topic, name, now)

    def inspect_subscription(self, topic: EntityPath, name: str, now: Now) -> SubscriptionInfo:
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
        fanout = self._namespace.fanout(topic)
        names = islice(sorted(fanout.subscriptions), max(skip, 0), max(skip, 0) + max(top, 0))
        return [self.inspect_subscription(topic, name, now) for name in names]

    def unsubscribe(self, topic: EntityPath, name: str) -> None:
        """Remove a subscription with its messages."""
        self._namespace.remove_whole(self._subscription(topic, name).queue.path)

    # --- rules

    def add_rule(self, topic: EntityPath, name: str, rule: Rule, now: Now) -> Rule:
        """
        Raises:
            EntityExists, InvalidRequest, QuotaExceeded: nothing was made.
        """
        subscription = self._subscription(topic, name)
        if rule.name.lower() in subscription.rules:
            raise EntityExists(f"{subscription.queue.path} has a rule {rule.name!r} already")
        return self._put_rule(topic, subscription, rule, now)

    def update_rule(self, topic: EntityPath, name: str, rule: Rule, now: Now) -> Rule:
        """
        Raises:
            InvalidRequest: nothing has changed.
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
        keys = islice(sorted(rules), max(skip, 0), max(skip, 0) + max(top, 0))
        return [rules[key] for key in keys]

    def drop_rule(self, topic: EntityPath, name: str, rule: str) -> None:
        self.inspect_rule(topic, name, rule)
        subscription = self._subscription(topic, name)
        self._namespace.shelf.remove_rule(subscription.queue.path, rule)
        self._namespace.fanout(topic).drop_rule(subscription, rule)

    def _put_rule(
        self, topic: EntityPath, subscription: Subscription, rule: Rule, now: Now
    ) -> Rule:
        fanout = self._namespace.fanout(topic)
        old = subscription.rules.get(rule.name.lower())
        rule = attrs.evolve(rule, created=old.created if old else to_date(now.wall))
        self._check_rule(fanout, rule, old)
        self._namespace.shelf.put_rule(subscription.queue.path, rule)
        fanout.put_rule(subscription, rule)
        subscription.queue.entity.touch(now)
        return rule

    def _check_rule(self, fanout: Fanout, rule: Rule, old: Rule | None = None) -> None:
        check_rule(rule)
        fanout.compiled(rule.filter)
        sql = isinstance(rule.filter, SqlFilter)
        if old is None and fanout.rules >= MAX_RULES:
            raise QuotaExceeded(f"the topic has {MAX_RULES} rules: no more fit")
        if sql and fanout.sql_rules - _is_sql(old) >= MAX_SQL_RULES:
            raise QuotaExceeded(f"the topic has {MAX_SQL_RULES} SQL filters: no more fit")
        self._namespace.check_room()

    def _subscription(self, topic: EntityPath, name: str) -> Subscription:
        subscription = self._namespace.fanout(topic).subscriptions.get(name.lower())
        if subscription is None:
            raise EntityNotFound(f"{topic} has no subscription {name!r}")
        return subscription


def _is_sql(rule: Rule | None) -> bool:
    return rule is not None and isinstance(rule.filter, SqlFilter)


def _path(topic: EntityPath, name: str) -> EntityPath:
    return EntityPath(f"{topic.name}/Subscriptions/{name}")
