"""A namespace's address and identity, and operations on its queues, topics and rules."""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, NotSupported
from gateway.domain.identity import Identity
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.offering import capability, offered
from gateway.ports import Broker


@capability(Broker, "this namespace has no address")
class Placed(Protocol):
    """A namespace that is reached over a network."""

    @property
    def address(self) -> str:
        """Host and port as in the configuration; empty for a namespace of this process."""
        ...


def address_of(broker: Broker) -> str:
    """As `Placed.address`; empty for a namespace that isn't reached over a network."""
    placed = offered(broker, Placed)
    return "" if placed is None else placed.address


@capability(Broker, "this namespace isn't reached with a policy's key")
class ReplacesKey(Protocol):
    """A namespace that is reached with the key of a policy, which may be replaced."""

    def replace_key(self, name: str, key: str) -> None:
        """
        Sign with that key of that policy from now on. What is authorized stays so until its
        signature expires or is refused.
        """
        ...


@capability(Broker, "this namespace has no identity to report")
class Identifies(Protocol):
    """A namespace that may report its identity, which is the same at each of its addresses."""

    async def identity(self) -> Identity:
        """
        Return the identity of the namespace; a Pairgate reports that of the namespace behind it.

        Raises:
            NotSupported: the namespace reports no identity; only its address is known.
            BrokerError: the namespace didn't answer.
        """
        ...


@capability(Broker, "this namespace has no queue settings to verify")
class Verifies(Protocol):
    """A namespace whose queues may have settings that lose messages silently."""

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """
        Return a sentence for each setting of the queue that may lose or block messages, or that
        can't be read; none if all is well. `is_backlog`: the queue belongs to a pair's backlog,
        which needs more. Nothing is changed.

        Raises:
            EntityNotFound: there is no such queue.
            BrokerError: the namespace didn't answer.
        """
        ...


@capability(Broker, "this namespace describes its queues when they are inspected")
class Describes(Protocol):
    """A namespace that needs more requests, or more rights, to tell all properties of a queue."""

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """
        As `Broker.inspect`, with every property that the queue has. A property that the namespace
        doesn't show to these credentials is told as `inspect` tells it.

        Raises:
            EntityNotFound: there is no such queue.
        """
        ...


async def described(broker: Broker, entity: EntityPath) -> EntityInfo:
    """As `Describes.describe`; as `Broker.inspect` where that tells everything. Raises as both."""
    describes = offered(broker, Describes)
    return await (broker.inspect(entity) if describes is None else describes.describe(entity))


async def dead_letters_in(broker: Broker, info: EntityInfo) -> int | None:
    """
    The number of dead letters of the queue that `info` describes, also where the namespace counts
    them as the messages of a queue of their own. None: it doesn't count them.

    Raises:
        BrokerError: as `Broker.inspect`.
    """
    if info.dead_lettered is not None:
        return info.dead_lettered
    try:
        return (await broker.inspect(info.path.dead_letter)).active
    except EntityNotFound:
        return 0
    except NotSupported:
        return None


@capability(Broker, "the queues of this namespace can't be updated")
class Updates(Protocol):
    """A namespace whose queues can be updated."""

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """
        Return once the queue has all of these properties, and a new version.

        The queue is updated only if its version is `if_version` (an HTTP client's `If-Match`);
        None updates any version. Needs the Manage right.

        Raises:
            EntityNotFound: there is no such queue.
            PreconditionFailed: the queue has another version; nothing was changed.
            InvalidRequest: a value isn't allowed, or a property can't be changed.
            NotSupported: the namespace doesn't have that property; nothing was changed.
        """
        ...


@capability(Broker, "this namespace can't delete an entity by its version")
class DeletesByVersion(Protocol):
    """A namespace whose entities can be deleted on condition that nobody has changed them."""

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """
        Return once the queue, topic or subscription is deleted with all of its messages, if it had
        that version (an HTTP client's `If-Match`). Needs the Manage right.

        Raises:
            EntityNotFound: there is no such entity.
            PreconditionFailed: the entity has another version; nothing was deleted.
            NotSupported: the namespace's entities have no versions; nothing was deleted.
        """
        ...


@capability(Broker, "this namespace doesn't support topics")
class Topology(Updates, Protocol):
    """
    A namespace with topics, subscriptions and rules, as Service Bus has them.

    `if_version` and `PreconditionFailed` are as in `Updates`, pages as in `Broker.list_queues`.
    Names of topics, subscriptions and rules ignore case. All methods need the Manage right.
    """

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        """
        Return once the topic exists, without subscriptions: it drops messages until it has one.

        Raises:
            EntityExists: a topic or a queue has that name; it stays as it is.
            InvalidRequest: the name, or a property's value, isn't allowed.
        """
        ...

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        """
        Return once the topic has all of these properties, and a new version.

        Raises:
            EntityNotFound: there is no such topic.
            PreconditionFailed: the topic has another version; nothing was changed.
            InvalidRequest: a value isn't allowed, or the property can't change.
        """
        ...

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        """
        Return the topic's properties and counts.

        Raises:
            EntityNotFound: there is no such topic.
        """
        ...

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        """Return one page of the topics whose path starts with `prefix`, sorted by path."""
        ...

    async def delete_topic(self, topic: EntityPath) -> None:
        """
        Return once the topic is deleted, with its subscriptions and their messages.

        Raises:
            EntityNotFound: there is no such topic.
        """
        ...

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        """
        Return once the subscription exists, with one rule: `rule`, or else `$Default`, which
        matches every message. It receives messages that are sent from then on.

        Raises:
            EntityNotFound: there is no such topic.
            EntityExists: the topic has that subscription already; it stays as it is.
            InvalidRequest: the name, a property's value or the rule isn't allowed.
        """
        ...

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        """
        Return once the subscription has all of these properties, and a new version. Its rules and
        messages stay.

        Raises:
            EntityNotFound: there is no such topic or subscription.
            PreconditionFailed: the subscription has another version; nothing was changed.
            InvalidRequest: a value isn't allowed, or the property can't change.
        """
        ...

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        """
        Return the subscription's properties and counts of messages.

        Raises:
            EntityNotFound: there is no such topic or subscription.
        """
        ...

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        """
        Return one page of the topic's subscriptions, sorted by name.

        Raises:
            EntityNotFound: there is no such topic.
        """
        ...

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        """
        Return once the subscription is deleted, with its rules and messages.

        Raises:
            EntityNotFound: there is no such topic or subscription.
        """
        ...

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        """
        Return the rule once it applies to each message that is sent from then on. A message is
        taken if any rule of the subscription matches it.

        Raises:
            EntityNotFound: there is no such topic or subscription.
            EntityExists: the subscription has a rule with that name; it stays as it is.
            InvalidRequest: the name, the filter or the action isn't allowed.
        """
        ...

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        """
        Return the rule once it has replaced the one with its name, for messages that are sent from
        then on.

        Raises:
            EntityNotFound: there is no such topic, subscription or rule.
            InvalidRequest: the filter or the action isn't allowed.
        """
        ...

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        """
        Return the rule.

        Raises:
            EntityNotFound: there is no such topic, subscription or rule.
        """
        ...

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        """
        Return one page of the subscription's rules, sorted by name.

        Raises:
            EntityNotFound: there is no such topic or subscription.
        """
        ...

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        """
        Return once the rule no longer applies. A subscription without rules takes no messages.

        Raises:
            EntityNotFound: there is no such topic, subscription or rule.
        """
        ...
