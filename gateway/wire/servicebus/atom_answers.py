"""
Service Bus's management in Atom: the answers, both directions; the requests are `atom`'s.

Three clients read one rendering: azure-servicebus 0.21.1 and Node's SDK take names from <id>, after
`/subscriptions/` and `/Subscriptions/`, each as it writes its requests; azure-servicebus 7.15 takes
a name from <title>, and the next page from a second <link>. So paths are as the client wrote them.
"""

from typing import Final
from urllib.parse import unquote
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape, quoteattr

import attrs

from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import InvalidRequest, OutcomeUnknown
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import SubscriptionInfo, TopicInfo
from gateway.wire.http.hardened_xml import XmlError, parse_xml, text_of, without_illegal
from gateway.wire.http.messages import Headers, Response
from gateway.wire.servicebus import (
    queue_description,
    rule_description,
    subscription_description,
    topic_description,
)
from gateway.wire.servicebus.atom import ATOM, ENTRY, find_description
from gateway.wire.servicebus.atom_conditions import etag, parse_etag
from gateway.wire.servicebus.atom_operations import (
    PREMIUM,
    Answer,
    DeleteEntity,
    DeleteRule,
    DeleteSubscription,
    GetEntity,
    GetNamespace,
    GetRule,
    GetSubscription,
    Info,
    ListOperation,
    ListQueues,
    ListRules,
    ListSubscriptions,
    ListTopics,
    NamespaceInfo,
    Operation,
    PutOperation,
    PutRule,
    PutSubscription,
    name_of,
)
from gateway.wire.servicebus.atom_paths import (
    API_VERSION,
    entity_path,
    name_in_path,
    path_of,
    query_of,
)
from gateway.wire.servicebus.description import NAMESPACE, enclosed, leaf
from gateway.wire.servicebus.errors import PAIRGATE, parse_error
from gateway.wire.servicebus.management_values import date_text

_FEED: Final = "application/atom+xml;type=feed;charset=utf-8"
_NAMESPACE_INFO: Final = "NamespaceInfo"
_TITLES: Final[dict[type[ListOperation], str]] = {
    ListQueues: "Queues",
    ListTopics: "Topics",
    ListSubscriptions: "Subscriptions",
    ListRules: "Rules",
}


@attrs.frozen(kw_only=True)
class _AtomEntry:
    """The Atom entry around a description."""

    title: str
    content: str
    dates: str
    has_author: bool = True


# Answers of our own


def build_response(operation: Operation, answer: Answer, origin: str, asked: str = "") -> Response:
    """
    Build a success. `origin` begins the links; see `rest.origin_of`. `asked` is the request's path
    as its client wrote it, percent-encoded; empty: as `path_of` writes it.

    Raises:
        InvalidRequest: XML can't express a property.
    """
    here = origin + (asked.rstrip("/") or path_of(operation))
    match operation, answer:
        case ((ListQueues() | ListTopics() | ListSubscriptions() | ListRules()), tuple()):
            return _response(200, _FEED, _list_feed(operation, answer, origin, here))
        case GetEntity(), None:
            link = f"{here}?{query_of(operation)}"
            return _response(200, _FEED, _feed("Publicly Listed Services", link, None, ""))
        case _, NamespaceInfo():
            return _response(200, ENTRY, _entry(_namespace_entry(answer), origin, here))
        case _, EntityInfo() | TopicInfo() | SubscriptionInfo() | Rule():
            created = isinstance(operation, PutOperation) and not operation.update
            status = 201 if created else 200
            return _response(status, ENTRY, _one(answer, origin, here), _etag_of(answer))
        case _:
            return Response(status=200, headers=Headers.of([PAIRGATE]))


def build_unchanged(tag: str | None) -> Response:
    """Build the answer to a client that has this state already."""
    fields = [PAIRGATE, *([("ETag", tag)] if tag else [])]
    return Response(status=304, headers=Headers.of(fields))


def _response(
    status: int, content_type: str, body: str, more: tuple[tuple[str, str], ...] = ()
) -> Response:
    fields = [PAIRGATE, ("Content-Type", content_type), *more]
    return Response(status=status, headers=Headers.of(fields), body=body.encode())


def _etag_of(answer: Info) -> tuple[tuple[str, str], ...]:
    return () if isinstance(answer, Rule) else (("ETag", etag(answer.version)),)


def _one(answer: Info, origin: str, link: str) -> str:
    host = origin.partition("://")[2]
    match answer:
        case EntityInfo(path=path):
            title, content = path.name, queue_description.build_info(answer, host)
        case TopicInfo(path=path):
            title, content = path.name, topic_description.build_info(answer)
        case SubscriptionInfo(name=title):
            content = subscription_description.build_info(answer, host)
        case Rule(name=title):
            content = rule_description.build(answer)
    updated = answer.created if isinstance(answer, Rule) else answer.updated or answer.created
    dates = (
        f"<published>{date_text(answer.created)}</published><updated>{date_text(updated)}</updated>"
    )
    # An entity of the namespace has its name as the author.
    return _entry(
        _AtomEntry(
            title=title,
            content=content,
            dates=dates,
            has_author=isinstance(answer, EntityInfo | TopicInfo),
        ),
        origin,
        link,
    )


def _namespace_entry(info: NamespaceInfo) -> _AtomEntry:
    name = without_illegal(info.name)
    units = "<MessagingUnits>1</MessagingUnits>" if info.tier == PREMIUM else ""
    content = (
        f"<Alias/><CreatedTime>{date_text(info.created)}</CreatedTime>"
        f"<MessagingSKU>{info.tier.capitalize()}</MessagingSKU>{units}"
        f"<ModifiedTime>{date_text(info.modified)}</ModifiedTime>{leaf('Name', name)}"
        "<NamespaceType>Messaging</NamespaceType>"
    )
    return _AtomEntry(
        title=name,
        content=enclosed(_NAMESPACE_INFO, content),
        dates=f"<updated>{date_text(info.modified)}</updated>",
    )


def _entry(entry: _AtomEntry, origin: str, link: str) -> str:
    href = quoteattr(f"{link}?{API_VERSION}")
    name = escape(origin.partition("://")[2])
    author = f"<author><name>{name}</name></author>" if entry.has_author else ""
    return (
        f'<entry xmlns="{ATOM}"><id>{escape(link)}</id>'
        f'<title type="text">{escape(entry.title)}</title>{entry.dates}{author}'
        f'<link rel="self" href={href}/>'
        f'<content type="application/xml">{entry.content}</content></entry>'
    )


def _list_feed(operation: ListOperation, page: tuple[Info, ...], origin: str, here: str) -> str:
    more = page and len(page) >= operation.top
    skip, after = operation.skip + len(page), name_of(page[-1]) if page else ""
    following = attrs.evolve(operation, skip=skip, after=after)
    return _feed(
        _TITLES[type(operation)],
        f"{here}?{query_of(operation)}",
        f"{here}?{query_of(following)}" if more else None,
        "".join(_one(info, origin, _listed_at(info, origin, here)) for info in page),
    )


def _listed_at(info: Info, origin: str, here: str) -> str:
    """The address of an entry of the list `here`."""
    if isinstance(info, SubscriptionInfo | Rule):
        return f"{here}/{name_in_path(info.name)}"
    return origin + entity_path(info.path)


def _feed(title: str, link: str, following: str | None, entries: str) -> str:
    more = f'<link rel="next" href={quoteattr(following)}/>' if following else ""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{title}</title><id>{escape(link)}</id>'
        f'<updated>{date_text(None)}</updated><link rel="self" href={quoteattr(link)}/>{more}'
        f"{entries}</feed>"
    )


# Received answers


def parse_response(operation: Operation, response: Response) -> Answer:
    """
    Parse the answer to a request of `atom.build_request`.

    Raises:
        BrokerError: the answer is an error; OutcomeUnknown also if a success is malformed.
    """
    if response.status not in {200, 201}:
        raise parse_error(response)
    if isinstance(operation, DeleteEntity | DeleteSubscription | DeleteRule):
        return None
    try:
        answer = _parse_answer(operation, parse_xml(response.body))
    except (XmlError, InvalidRequest) as error:
        raise OutcomeUnknown(f"the answer is malformed: {error}") from error
    if isinstance(answer, EntityInfo | TopicInfo | SubscriptionInfo):
        return attrs.evolve(answer, version=parse_etag(response.headers.get("ETag")))
    return answer


def _parse_answer(operation: Operation, root: Element) -> Answer:
    is_feed = root.tag == f"{{{ATOM}}}feed"
    entries = root.findall(f"{{{ATOM}}}entry")
    match operation:
        case ListQueues() | ListTopics() | ListSubscriptions() | ListRules() if is_feed:
            return tuple(_parse_entry(operation, entry) for entry in entries)
        case GetEntity() if is_feed and not entries:
            return None
        case GetNamespace():
            return _parse_namespace(root)
        case _:
            return _parse_entry(operation, root)


def _parse_namespace(root: Element) -> NamespaceInfo:
    found = find_description(root, _NAMESPACE_INFO)
    if found is None:
        raise InvalidRequest(f"XML: a {_NAMESPACE_INFO} of {NAMESPACE} expected")
    return NamespaceInfo(name=text_of(found, "Name"))


def _parse_entry(operation: Operation, entry: Element) -> Info:
    title = unquote(text_of(entry, "title"))
    match operation:
        case GetSubscription() | PutSubscription() | ListSubscriptions():
            description = _must_find(entry, subscription_description.TABLE.element)
            return subscription_description.parse_info(operation.topic, title, description)
        case GetRule() | PutRule() | ListRules():
            return rule_description.parse(_must_find(entry, rule_description.ELEMENT), title)
        case _:
            path = EntityPath.parse(title)
            topic = find_description(entry, topic_description.TABLE.element)
            if topic is not None:
                return topic_description.parse_info(path, topic)
            queue = _must_find(entry, queue_description.TABLE.element)
            return queue_description.parse_info(path, queue)


def _must_find(entry: Element, kind: str) -> Element:
    found = find_description(entry, kind)
    if found is None:
        raise InvalidRequest(f"XML: an Atom entry with a {kind} of {NAMESPACE} expected")
    return found
