"""
Service Bus's management in Atom: what clients ask for, both directions; `atom_answers` answers.

    GetEntity     GET    /{queue or topic}          200 an entry; an empty feed if there is none
    PutQueue      PUT    ...                        201 an entry; with If-Match an update, 200
    PutTopic      PUT    ...                        the same: the body says which it is
    DeleteEntity  DELETE ...                        200
    ListQueues    GET    /$Resources/queues?$skip=0&$top=100&$filter=startswith(path,'x') eq true
    ListTopics    GET    /$Resources/topics?...     the link to the next page has a $skiptoken too

    ...Subscription      /{topic}/subscriptions/{name}                           404 if none
    ListSubscriptions    /{topic}/subscriptions?$skip=0&$top=100
    ...Rule              /{topic}/subscriptions/{subscription}/rules/{name}      404 if none
    ListRules            /{topic}/subscriptions/{subscription}/rules?...
    GetNamespace         /$namespaceinfo                                         200 an entry

Entities are read from the right, since names of topics hold slashes. `atom_conditions` reads
If-Match and If-None-Match.
"""

import re
from typing import Any, Final
from xml.etree.ElementTree import Element

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, InvalidRequest, PreconditionFailed
from gateway.domain.topics.topology import TopicProperties
from gateway.wire.http.hardened_xml import XmlError, parse_xml
from gateway.wire.http.messages import Headers, Request
from gateway.wire.servicebus import (
    queue_description,
    rule_description,
    subscription_description,
    topic_description,
)
from gateway.wire.servicebus.atom_conditions import etag, put_condition, version_to_delete
from gateway.wire.servicebus.atom_operations import (
    MAX_TOP,
    DeleteEntity,
    DeleteRule,
    DeleteSubscription,
    GetEntity,
    GetNamespace,
    GetRule,
    GetSubscription,
    ListQueues,
    ListRules,
    ListSubscriptions,
    ListTopics,
    Operation,
    PutOperation,
    PutQueue,
    PutRule,
    PutSubscription,
    PutTopic,
)
from gateway.wire.servicebus.atom_paths import target_of
from gateway.wire.servicebus.description import NAMESPACE

ATOM: Final = "http://www.w3.org/2005/Atom"
ENTRY: Final = "application/atom+xml;type=entry;charset=utf-8"
MAX_NAME_LENGTH: Final = 50  # of a subscription; Service Bus's limit
_HAS_SIZES: Final = "2021-05"  # the first version in which an entity has its own message size
_FILTER: Final = re.compile(
    r"\s*startswith\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)\s*(?:eq\s+true\s*)?", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._~$-]+", re.ASCII)
_RULES: Final = re.compile(
    r"(?P<topic>.+)/subscriptions/(?P<subscription>[^/]*)/rules(?:/(?P<name>[^/]+))?",
    re.IGNORECASE,
)
_SUBSCRIPTIONS: Final = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<name>[^/]+))?", re.IGNORECASE
)


# Received requests


def parse_request(request: Request) -> Operation:
    """
    Parse a client's request.

    Raises:
        InvalidRequest: the text names the field or the XML element.
        EntityNotFound: there are no resources of that kind.
        PreconditionFailed: If-Match has a tag that isn't ours.
    """
    path = request.path.removeprefix("/").removesuffix("/")
    match request.method, path.lower():
        case "GET", "$namespaceinfo":
            return GetNamespace()
        case "GET", "$resources/queues":
            return ListQueues(prefix=_prefix(request), **_page(request))
        case "GET", "$resources/topics":
            return ListTopics(prefix=_prefix(request), **_page(request))
        case _, lowered if lowered.startswith("$resources/"):
            raise EntityNotFound(f"{path[:300]!r} doesn't exist")
    if match := _RULES.fullmatch(path):
        return _parse_rule(request, match)
    if match := _SUBSCRIPTIONS.fullmatch(path):
        return _parse_subscription(request, match)
    return _parse_entity(request, EntityPath.parse(path))


def _parse_entity(request: Request, entity: EntityPath) -> Operation:
    match request.method:
        case "GET":
            return GetEntity(entity=entity)
        case "DELETE":
            return DeleteEntity(entity=entity, if_version=version_to_delete(request.headers))
        case "PUT":
            kind, description = _described(request, _ENTITIES)
            wish: dict[str, Any] = {"entity": entity, **put_condition(request.headers)}
            if kind == topic_description.TABLE.element:
                topic = topic_description.parse_properties(description)
                _check_version(request, topic, update=wish["update"])
                return PutTopic(properties=topic, **wish)
            host = request.headers.get("Host") or ""
            queue = queue_description.parse_properties(description, host)
            _check_version(request, queue, update=wish["update"])
            return PutQueue(properties=queue, **wish)
        case _:
            raise _wrong_method(request)


def _check_version(
    request: Request, properties: QueueProperties | TopicProperties, *, update: bool
) -> None:
    """
    Refuse an element that the request's api-version doesn't have, except in an update: a client may
    repeat elements there that it has read and doesn't know.
    """
    version = _query(request).get("api-version", _HAS_SIZES)
    if properties.max_message_size is not None and version < _HAS_SIZES and not update:
        raise InvalidRequest(
            f"MaxMessageSizeInKilobytes: api-version {_HAS_SIZES} or later expected, got"
            f" {version:.20}"
        )


def _parse_subscription(request: Request, match: re.Match[str]) -> Operation:
    topic = EntityPath.parse(match["topic"])
    if match["name"] is None and request.method == "GET":
        return ListSubscriptions(topic=topic, **_page(request))
    name = check_subscription_name(match["name"])
    match request.method:
        case "GET":
            return GetSubscription(topic=topic, name=name)
        case "DELETE":
            version = version_to_delete(request.headers)
            return DeleteSubscription(topic=topic, name=name, if_version=version)
        case "PUT":
            _, description = _described(request, (subscription_description.TABLE.element,))
            host = request.headers.get("Host") or ""
            return PutSubscription(
                topic=topic,
                name=name,
                properties=subscription_description.parse_properties(description, host),
                rule=subscription_description.parse_first_rule(description),
                **put_condition(request.headers),
            )
        case _:
            raise _wrong_method(request)


def _parse_rule(request: Request, match: re.Match[str]) -> Operation:
    place: dict[str, Any] = {
        "topic": EntityPath.parse(match["topic"]),
        "subscription": check_subscription_name(match["subscription"]),
    }
    name: str = match["name"]
    match request.method:
        case "GET" if name is None:
            return ListRules(**place, **_page(request))
        case "GET":
            return GetRule(**place, name=name)
        case "DELETE" if name is not None:
            if version_to_delete(request.headers) is not None:
                raise PreconditionFailed(_NO_VERSION)
            return DeleteRule(**place, name=name)
        case "PUT" if name is not None:
            _, description = _described(request, (rule_description.ELEMENT,))
            condition = put_condition(request.headers)
            if condition.pop("if_version") is not None:
                raise PreconditionFailed(_NO_VERSION)
            return PutRule(**place, rule=rule_description.parse(description, name), **condition)
        case _:
            raise _wrong_method(request)


def check_subscription_name(name: str | None) -> str:
    """
    The name, checked because it comes from outside.

    Raises:
        InvalidRequest: the name is invalid; the text says the limit.
    """
    if name is None or not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise InvalidRequest(
            f"subscription name: 1 to {MAX_NAME_LENGTH} letters, digits, '.', '-', '_', '~'"
            " expected"
        )
    return name


def _page(request: Request) -> dict[str, Any]:
    query = _query(request)
    return {
        "skip": _number(query, "$skip", 0, 10**9),
        "top": _number(query, "$top", 100, MAX_TOP),
        "after": query.get("$skiptoken", ""),
    }


def _prefix(request: Request) -> str:
    wish = _query(request).get("$filter", "")
    match = _FILTER.fullmatch(wish) if wish else None
    if wish and match is None:
        raise InvalidRequest(f"$filter: startswith(path,'...') eq true expected, got {wish!r:.80}")
    return match[1].replace("''", "'") if match else ""


def _query(request: Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.query.items()}


def _number(query: dict[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not _NUMBER.fullmatch(text):
        raise InvalidRequest(f"{name}: a number from 0 to 999999999 expected, got {text!r:.60}")
    return min(int(text), most)


_NO_VERSION: Final = "If-Match: rules have no versions, so * expected"
_ENTITIES: Final = (queue_description.TABLE.element, topic_description.TABLE.element)


def _described(request: Request, kinds: tuple[str, ...]) -> tuple[str, Element]:
    """The description in the request's entry, and its kind."""
    try:
        root = parse_xml(request.body)
    except XmlError as error:
        raise InvalidRequest(str(error)) from error
    for kind in kinds:
        found = find_description(root, kind)
        if found is not None:
            return kind, found
    raise InvalidRequest(f"XML: an Atom entry with a {' or '.join(kinds)} of {NAMESPACE} expected")


def find_description(entry: Element, kind: str) -> Element | None:
    """The description of that kind in an Atom entry; None if the entry has another kind."""
    if entry.tag != f"{{{ATOM}}}entry":
        return None
    return entry.find(f"{{{ATOM}}}content/{{{NAMESPACE}}}{kind}")


def _wrong_method(request: Request) -> InvalidRequest:
    return InvalidRequest(f"method {request.method} is not known for {request.path[:300]!r}")


# Requests of our own


def build_request(operation: Operation) -> Request:
    """
    Build the request, without Host and Authorization.

    Raises:
        InvalidRequest: XML can't express a property, or a name isn't valid in a path.
    """
    if isinstance(operation, PutSubscription):
        check_subscription_name(operation.name)
    target = target_of(operation)
    match operation:
        case DeleteEntity(if_version=int(version)) | DeleteSubscription(if_version=int(version)):
            tag = Headers.of([("If-Match", etag(version))])
            return Request(method="DELETE", target=target, headers=tag)
        case DeleteEntity() | DeleteSubscription() | DeleteRule():
            return Request(method="DELETE", target=target)
        case PutQueue() | PutTopic() | PutSubscription() | PutRule():
            content = f'<content type="application/xml">{_description_of(operation)}</content>'
            return Request(
                method="PUT",
                target=target,
                headers=Headers.of([("Content-Type", ENTRY), *_if_match(operation)]),
                body=f'<entry xmlns="{ATOM}">{content}</entry>'.encode(),
            )
        case _:
            return Request(method="GET", target=target)


def _if_match(operation: PutOperation) -> list[tuple[str, str]]:
    if not operation.update:
        return [("If-None-Match", "*")] if operation.only_new else []
    version = None if isinstance(operation, PutRule) else operation.if_version
    return [("If-Match", "*" if version is None else etag(version))]


def _description_of(operation: PutOperation) -> str:
    match operation:
        case PutQueue(properties=properties):
            return queue_description.build_properties(properties)
        case PutTopic(properties=properties):
            return topic_description.build_properties(properties)
        case PutSubscription(properties=properties, rule=rule):
            return subscription_description.build_properties(properties, rule)
        case PutRule(rule=rule):
            return rule_description.build(rule)
