"""Operations of Service Bus's management, and their answers, as values."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)

MAX_TOP: Final = 1000  # entries in one page
# Headers in which the SDKs send a token for the entity that another one forwards to.
FORWARD_TOKEN: Final = "ServiceBusSupplementaryAuthorization"
DEAD_LETTER_TOKEN: Final = "ServiceBusDlqSupplementaryAuthorization"
PREMIUM: Final = "premium"
STANDARD: Final = "standard"


@attrs.frozen(kw_only=True)
class GetEntity:
    """Get a queue or a topic: they share their names."""

    entity: EntityPath


@attrs.frozen(kw_only=True)
class _Delete:
    """`if_version`: delete only if the entity has that version. None deletes any."""

    if_version: int | None = None


@attrs.frozen(kw_only=True)
class DeleteEntity(_Delete):
    """Delete a queue or a topic."""

    entity: EntityPath


@attrs.frozen(kw_only=True)
class _Put:
    """
    Create; with `update`, change an existing entity.

    `if_version`: only if the entity has that version. None overwrites any. `only_new`: an entity
    that exists already is a failed condition, instead of a conflict.
    """

    update: bool = False
    if_version: int | None = None
    only_new: bool = False


@attrs.frozen(kw_only=True)
class PutQueue(_Put):
    entity: EntityPath
    properties: QueueProperties


@attrs.frozen(kw_only=True)
class PutTopic(_Put):
    entity: EntityPath
    properties: TopicProperties


@attrs.frozen(kw_only=True)
class _List:
    """
    Asks for a page of a list. `after` is the last name of the page before: with it the page begins
    behind that name, whatever was created or deleted meanwhile, and `skip` only says where that
    name probably is.
    """

    skip: int = 0
    top: int = 100
    after: str = ""


@attrs.frozen(kw_only=True)
class ListQueues(_List):
    prefix: str = ""


@attrs.frozen(kw_only=True)
class ListTopics(_List):
    prefix: str = ""


@attrs.frozen(kw_only=True)
class GetSubscription:
    topic: EntityPath
    name: str


@attrs.frozen(kw_only=True)
class DeleteSubscription(_Delete):
    topic: EntityPath
    name: str


@attrs.frozen(kw_only=True)
class PutSubscription(_Put):
    """
    `rule`: the first rule of a new subscription, instead of the rule that accepts every message.
    """

    topic: EntityPath
    name: str
    properties: SubscriptionProperties
    rule: Rule | None = None


@attrs.frozen(kw_only=True)
class ListSubscriptions(_List):
    topic: EntityPath


@attrs.frozen(kw_only=True)
class GetRule:
    topic: EntityPath
    subscription: str
    name: str


@attrs.frozen(kw_only=True)
class DeleteRule:
    topic: EntityPath
    subscription: str
    name: str


@attrs.frozen(kw_only=True)
class PutRule:
    """Create a rule; with `update`, change an existing one. Rules have no versions."""

    topic: EntityPath
    subscription: str
    rule: Rule
    update: bool = False
    only_new: bool = False


@attrs.frozen(kw_only=True)
class ListRules(_List):
    topic: EntityPath
    subscription: str


@attrs.frozen(kw_only=True)
class GetNamespace:
    """Get the description of the namespace."""


@attrs.frozen(kw_only=True)
class NamespaceInfo:
    name: str
    tier: str = PREMIUM
    created: datetime | None = None
    modified: datetime | None = None


EntityOperation = GetEntity | PutQueue | PutTopic | DeleteEntity
SubscriptionOperation = GetSubscription | PutSubscription | DeleteSubscription
RuleOperation = GetRule | PutRule | DeleteRule
ListOperation = ListQueues | ListTopics | ListSubscriptions | ListRules
PutOperation = PutQueue | PutTopic | PutSubscription | PutRule
Operation = EntityOperation | SubscriptionOperation | RuleOperation | ListOperation | GetNamespace

Info = EntityInfo | TopicInfo | SubscriptionInfo | Rule
# An entity; a page of entities; the namespace; or None: deleted, or GetEntity found no entity.
Answer = Info | tuple[Info, ...] | NamespaceInfo | None


def name_of(info: Info) -> str:
    """The name by which a list sorts an entry."""
    return info.path.name if isinstance(info, EntityInfo | TopicInfo) else info.name


def forwards_of(operation: Operation) -> Iterator[tuple[str, EntityPath]]:
    """
    The entities to which the operation lets another one forward its messages: each needs the right
    to manage it, too. Each comes with the header that may have a token of its own for it.

    Raises:
        InvalidRequest: a name isn't allowed.
    """
    if not isinstance(operation, PutQueue | PutSubscription):
        return
    properties = operation.properties
    targets = (
        (FORWARD_TOKEN, properties.forward_to),
        (DEAD_LETTER_TOKEN, properties.forward_dead_lettered_messages_to),
    )
    for header, target in targets:
        if target is not None:
            yield header, EntityPath.parse(target)


def entity_of(operation: Operation) -> EntityPath | None:
    """The queue or topic that the operation needs a right on; None is the namespace itself."""
    match operation:
        case GetEntity() | PutQueue() | PutTopic() | DeleteEntity():
            return operation.entity
        case ListQueues() | ListTopics() | GetNamespace():
            return None
        case _:
            return operation.topic
