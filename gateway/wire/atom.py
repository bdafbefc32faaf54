"""
The part of Service Bus's management that is about queues: Atom entries and feeds, both directions.

    GetQueue      GET    /{queue}                      200 an entry; an empty feed if there is none
    PutQueue      PUT    /{queue}                      201 an entry; with If-Match an update, 200
    DeleteQueue   DELETE /{queue}                      200
    ListQueues    GET    /$Resources/queues?$skip=0&$top=100&$filter=startswith(path,'x') eq true
    GetNamespace  GET    /$namespaceinfo               200 an entry

Two clients read one rendering: azure-servicebus 0.21.1 takes a name from <id>, 7.15 from <title>
and the next page from a second <link>.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape, quoteattr

import attrs

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, InvalidRequest, OutcomeUnknown
from gateway.wire.hardened_xml import XmlError, parse_xml, text_of, without_illegal
from gateway.wire.http import Headers, Request, Response
from gateway.wire.management_values import date_text
from gateway.wire.queue_description import (
    NAMESPACE,
    build_info,
    build_properties,
    parse_info,
    parse_properties,
)
from gateway.wire.servicebus_errors import PAIRGATE, parse_error

MAX_TOP: Final = 1000  # queues in one page
_ATOM: Final = "http://www.w3.org/2005/Atom"
_API_VERSION: Final = "api-version=2021-05"
_ENTRY: Final = "application/atom+xml;type=entry;charset=utf-8"
_FEED: Final = "application/atom+xml;type=feed;charset=utf-8"
_FILTER: Final = re.compile(
    r"\s*startswith\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)\s*(?:eq\s+true\s*)?", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@attrs.frozen(kw_only=True)
class GetQueue:
    entity: EntityPath


@attrs.frozen(kw_only=True)
class PutQueue:
    """Create a queue; with `update`, change one that is there."""

    entity: EntityPath
    properties: QueueProperties
    update: bool = False


@attrs.frozen(kw_only=True)
class DeleteQueue:
    entity: EntityPath


@attrs.frozen(kw_only=True)
class ListQueues:
    prefix: str = ""
    skip: int = 0
    top: int = 100


@attrs.frozen(kw_only=True)
class GetNamespace:
    """Ask for the namespace's name."""


ManagementOperation = GetQueue | PutQueue | DeleteQueue | ListQueues | GetNamespace
# Of GetQueue (None: there is none) and PutQueue; of ListQueues; of GetNamespace; of DeleteQueue.
ManagementAnswer = EntityInfo | tuple[EntityInfo, ...] | str | None


# Requests


def parse_request(request: Request) -> ManagementOperation:
    """
    Read what a client asks for.

    Raises:
        InvalidRequest: the text names the field or the XML element.
        EntityNotFound: of topics, subscriptions and rules there are none.
    """
    path = request.path.removeprefix("/").removesuffix("/")
    match request.method, path.lower():
        case "GET", "$resources/queues":
            return _parse_list(request)
        case "GET", "$namespaceinfo":
            return GetNamespace()
        case _, lowered if lowered.startswith("$resources/") or "/subscriptions" in lowered:
            raise EntityNotFound(f"there is no {path[:300]!r} here")
    entity = EntityPath.parse(path)
    match request.method:
        case "GET":
            return GetQueue(entity=entity)
        case "DELETE":
            return DeleteQueue(entity=entity)
        case "PUT":
            properties = _parse_body(request.body)
            update = request.headers.get("If-Match") is not None
            return PutQueue(entity=entity, properties=properties, update=update)
        case method:
            raise InvalidRequest(f"method {method} is not known for {path[:300]!r}")


def build_request(operation: ManagementOperation) -> Request:
    """
    Build the request, without Host and Authorization.

    Raises:
        InvalidRequest: a property that XML can't hold.
    """
    match operation:
        case GetNamespace():
            return Request(method="GET", target=f"/$namespaceinfo?{_API_VERSION}")
        case ListQueues():
            return Request(method="GET", target=_list_target(operation))
        case GetQueue(entity=entity):
            return Request(method="GET", target=_target(entity))
        case DeleteQueue(entity=entity):
            return Request(method="DELETE", target=_target(entity))
        case PutQueue(entity=entity, properties=properties, update=update):
            fields = [("Content-Type", _ENTRY)] + ([("If-Match", "*")] if update else [])
            content = f'<content type="application/xml">{build_properties(properties)}</content>'
            return Request(
                method="PUT",
                target=_target(entity),
                headers=Headers.of(fields),
                body=f'<entry xmlns="{_ATOM}">{content}</entry>'.encode(),
            )


def _target(entity: EntityPath) -> str:
    return f"/{quote(entity.name, safe='/$')}?{_API_VERSION}"


def _list_target(operation: ListQueues) -> str:
    target = f"/$Resources/queues?{_API_VERSION}&$skip={operation.skip}&$top={operation.top}"
    if not operation.prefix:
        return target
    literal = operation.prefix.replace("'", "''")
    wish = quote(f"startswith(path,'{literal}') eq true", safe="")
    return f"{target}&$filter={wish}"


def _parse_list(request: Request) -> ListQueues:
    query = {name.lower(): value for name, value in request.query.items()}
    wish = query.get("$filter", "")
    match = _FILTER.fullmatch(wish) if wish else None
    if wish and match is None:
        raise InvalidRequest(f"$filter: startswith(path,'...') eq true expected, got {wish!r:.80}")
    return ListQueues(
        prefix=match[1].replace("''", "'") if match else "",
        skip=_number(query, "$skip", 0, 10**9),
        top=_number(query, "$top", 100, MAX_TOP),
    )


def _number(query: dict[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not _NUMBER.fullmatch(text):
        raise InvalidRequest(f"{name}: a number expected, got {text!r:.60}")
    return min(int(text), most)


def _parse_body(body: bytes) -> QueueProperties:
    try:
        root = parse_xml(body)
    except XmlError as error:
        raise InvalidRequest(str(error)) from error
    return parse_properties(_description(root))


def _description(entry: Element) -> Element:
    found = entry.find(f"{{{_ATOM}}}content/{{{NAMESPACE}}}QueueDescription")
    if entry.tag != f"{{{_ATOM}}}entry" or found is None:
        raise InvalidRequest(f"XML: an Atom entry with a QueueDescription of {NAMESPACE} expected")
    return found


# Answers


def build_response(
    operation: ManagementOperation, answer: ManagementAnswer, origin: str
) -> Response:
    """
    Build a success. `origin` begins the links; see `servicebus_rest.origin_of`.

    Raises:
        InvalidRequest: a property that XML can't hold.
    """
    match operation, answer:
        case ListQueues(), tuple():
            return _response(200, _FEED, _list_feed(operation, answer, origin))
        case _, EntityInfo():
            created = isinstance(operation, PutQueue) and not operation.update
            entry = _queue_entry(answer, origin)
            return _response(201 if created else 200, _ENTRY, entry)
        case GetNamespace(), str():
            return _response(200, _ENTRY, _namespace_entry(answer, origin))
        case GetQueue(entity=entity), None:
            target = origin + _target(entity)
            return _response(200, _FEED, _feed("Publicly Listed Services", target, None, ""))
        case _:
            return Response(status=200, headers=Headers.of([PAIRGATE]))


def parse_response(operation: ManagementOperation, response: Response) -> ManagementAnswer:
    """
    Read the answer to a request that `build_request` made.

    Raises:
        BrokerError: the one that the answer says; OutcomeUnknown also where a success can't be
            understood.
    """
    if response.status not in {200, 201}:
        raise parse_error(response)
    if isinstance(operation, DeleteQueue):
        return None
    try:
        return _parse_answer(operation, parse_xml(response.body))
    except (XmlError, InvalidRequest) as error:
        raise OutcomeUnknown(f"an answer that can't be read: {error}") from error


def _parse_answer(operation: ManagementOperation, root: Element) -> ManagementAnswer:
    is_feed = root.tag == f"{{{_ATOM}}}feed"
    entries = root.findall(f"{{{_ATOM}}}entry")
    if isinstance(operation, ListQueues) and is_feed:
        return tuple(_queue_of(entry) for entry in entries)
    if isinstance(operation, GetQueue) and is_feed and not entries:
        return None
    if isinstance(operation, GetNamespace):
        name = root.find(f"{{{_ATOM}}}content/{{{NAMESPACE}}}NamespaceInfo/{{{NAMESPACE}}}Name")
        return "" if name is None else (name.text or "").strip()
    return _queue_of(root)


def _queue_of(entry: Element) -> EntityInfo:
    return parse_info(EntityPath.parse(unquote(text_of(entry, "title"))), _description(entry))


def _response(status: int, content_type: str, body: str) -> Response:
    fields = [PAIRGATE, ("Content-Type", content_type)]
    return Response(status=status, headers=Headers.of(fields), body=body.encode())


def _queue_entry(info: EntityInfo, origin: str) -> str:
    link = f"{origin}/{quote(info.path.name, safe='/$')}"
    dates = (
        f"<published>{date_text(info.created)}</published>"
        f"<updated>{date_text(info.updated or info.created)}</updated>"
    )
    return _entry(info.path.name, link, dates, build_info(info))


def _namespace_entry(name: str, origin: str) -> str:
    title = escape(without_illegal(name))
    content = (
        f'<NamespaceInfo xmlns="{NAMESPACE}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        f"<CreatedTime>{date_text(None)}</CreatedTime><MessagingSKU>Standard</MessagingSKU>"
        f"<ModifiedTime>{date_text(None)}</ModifiedTime><Name>{title}</Name>"
        "<NamespaceType>Messaging</NamespaceType></NamespaceInfo>"
    )
    updated = f"<updated>{date_text(None)}</updated>"
    return _entry(without_illegal(name), f"{origin}/$namespaceinfo", updated, content)


def _entry(title: str, link: str, dates: str, content: str) -> str:
    href = quoteattr(f"{link}?{_API_VERSION}")
    name = escape(link.partition("://")[2].partition("/")[0])
    return (
        f'<entry xmlns="{_ATOM}"><id>{escape(link)}</id><title type="text">{escape(title)}</title>'
        f'{dates}<author><name>{name}</name></author><link rel="self" href={href}/>'
        f'<content type="application/xml">{content}</content></entry>'
    )


def _list_feed(operation: ListQueues, infos: Sequence[EntityInfo], origin: str) -> str:
    following = attrs.evolve(operation, skip=operation.skip + len(infos))
    more = infos and len(infos) >= operation.top
    return _feed(
        "Queues",
        origin + _list_target(operation),
        origin + _list_target(following) if more else None,
        "".join(_queue_entry(info, origin) for info in infos),
    )


def _feed(title: str, link: str, following: str | None, entries: str) -> str:
    more = f'<link rel="next" href={quoteattr(following)}/>' if following else ""
    return (
        f'<feed xmlns="{_ATOM}"><title type="text">{title}</title><id>{escape(link)}</id>'
        f'<updated>{date_text(None)}</updated><link rel="self" href={quoteattr(link)}/>{more}'
        f"{entries}</feed>"
    )
