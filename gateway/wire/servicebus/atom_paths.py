"""Paths and queries of the entities in Service Bus's management, as clients write them."""

from typing import Final
from urllib.parse import quote

from gateway.domain.entity import EntityPath
from gateway.wire.servicebus.atom_operations import (
    DeleteEntity,
    DeleteRule,
    DeleteSubscription,
    GetEntity,
    GetNamespace,
    GetRule,
    GetSubscription,
    ListOperation,
    ListQueues,
    ListRules,
    ListSubscriptions,
    ListTopics,
    Operation,
    PutQueue,
    PutRule,
    PutSubscription,
    PutTopic,
)

API_VERSION: Final = "api-version=2021-05"


def target_of(operation: Operation) -> str:
    """Path and query, as clients write them."""
    match operation:
        case ListQueues() | ListTopics() | ListSubscriptions() | ListRules():
            return _list_target(operation)
        case GetEntity(entity=entity) | DeleteEntity(entity=entity):
            path = entity_path(entity)
        case PutQueue(entity=entity) | PutTopic(entity=entity):
            path = entity_path(entity)
        case GetSubscription() | PutSubscription() | DeleteSubscription():
            path = subscription_path(operation.topic, operation.name)
        case PutRule(rule=rule):
            path = rule_path(operation.topic, operation.subscription, rule.name)
        case GetRule(name=name) | DeleteRule(name=name):
            path = rule_path(operation.topic, operation.subscription, name)
        case GetNamespace():
            path = "/$namespaceinfo"
    return f"{path}?{API_VERSION}"


def entity_path(entity: EntityPath) -> str:
    return f"/{quote(entity.name, safe='/$')}"


def subscription_path(topic: EntityPath, name: str) -> str:
    # In lower case: 0.21.1 finds the name after exactly these letters.
    return f"{entity_path(topic)}/subscriptions/{quote(name, safe='$')}"


def rule_path(topic: EntityPath, subscription: str, name: str) -> str:
    return f"{subscription_path(topic, subscription)}/rules/{quote(name, safe='$')}"


def _list_target(operation: ListOperation) -> str:
    match operation:
        case ListQueues():
            path = "/$Resources/queues"
        case ListTopics():
            path = "/$Resources/topics"
        case ListSubscriptions(topic=topic):
            path = f"{entity_path(topic)}/subscriptions"
        case ListRules(topic=topic, subscription=subscription):
            path = f"{subscription_path(topic, subscription)}/rules"
    target = f"{path}?{API_VERSION}&$skip={operation.skip}&$top={operation.top}"
    if operation.after:
        target += f"&$skiptoken={quote(operation.after, safe='')}"
    prefix = operation.prefix if isinstance(operation, ListQueues | ListTopics) else ""
    if not prefix:
        return target
    literal = prefix.replace("'", "''")
    wish = quote(f"startswith(path,'{literal}') eq true", safe="")
    return f"{target}&$filter={wish}"
