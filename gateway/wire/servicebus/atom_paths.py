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
    return f"{path_of(operation)}?{query_of(operation)}"


def path_of(operation: Operation) -> str:
    """The path, as the oldest client writes it: 0.21.1 finds a name after these letters."""
    match operation:
        case ListQueues() | ListTopics() | ListSubscriptions() | ListRules():
            path = _list_path(operation)
        case GetEntity(entity=entity) | DeleteEntity(entity=entity):
            path = entity_path(entity)
        case PutQueue(entity=entity) | PutTopic(entity=entity):
            path = entity_path(entity)
        case GetSubscription() | PutSubscription() | DeleteSubscription():
            path = _subscription_path(operation.topic, operation.name)
        case PutRule(rule=rule):
            path = _rule_path(operation.topic, operation.subscription, rule.name)
        case GetRule(name=name) | DeleteRule(name=name):
            path = _rule_path(operation.topic, operation.subscription, name)
        case GetNamespace():
            path = "/$namespaceinfo"
    return path


def entity_path(entity: EntityPath) -> str:
    return f"/{quote(entity.name, safe='/$')}"


def name_in_path(name: str) -> str:
    """The name of a subscription or rule, as a path has it."""
    return quote(name, safe="$")


def _subscription_path(topic: EntityPath, name: str) -> str:
    return f"{entity_path(topic)}/subscriptions/{name_in_path(name)}"


def _rule_path(topic: EntityPath, subscription: str, name: str) -> str:
    return f"{_subscription_path(topic, subscription)}/rules/{name_in_path(name)}"


def _list_path(operation: ListOperation) -> str:
    match operation:
        case ListQueues():
            return "/$Resources/queues"
        case ListTopics():
            return "/$Resources/topics"
        case ListSubscriptions(topic=topic):
            return f"{entity_path(topic)}/subscriptions"
        case ListRules(topic=topic, subscription=subscription):
            return f"{_subscription_path(topic, subscription)}/rules"


def query_of(operation: Operation) -> str:
    """The query, without its question mark."""
    if not isinstance(operation, ListOperation):
        return API_VERSION
    target = f"{API_VERSION}&$skip={operation.skip}&$top={operation.top}"
    if operation.after:
        target += f"&$skiptoken={quote(operation.after, safe='')}"
    prefix = operation.prefix if isinstance(operation, ListQueues | ListTopics) else ""
    if not prefix:
        return target
    literal = prefix.replace("'", "''")
    wish = quote(f"startswith(path,'{literal}') eq true", safe="")
    return f"{target}&$filter={wish}"
