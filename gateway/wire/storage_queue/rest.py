"""
Requests of the Queue service as operations, and operations as requests.

    POST /orders/messages?visibilitytimeout=30&messagettl=600      <QueueMessage>...</QueueMessage>

A request without `x-ms-version` is of the service's first version: its message is the raw body of
a PUT, and comes back in Base64.
"""

from collections.abc import Callable, Mapping
from typing import Final

from gateway.wire.http.messages import Headers, Request
from gateway.wire.storage_queue.address import Address, build_target
from gateway.wire.storage_queue.delegation import build_key_info, parse_key_info
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.fields import (
    Query,
    check_body,
    check_name,
    check_text,
    invalid,
    invalid_header,
    metadata_headers,
    metadata_of,
    version_of,
)
from gateway.wire.storage_queue.operations import (
    DEFAULT_TIME_TO_LIVE,
    MAX_MESSAGES,
    MAX_QUEUES,
    MAX_VISIBILITY,
    NEVER,
    ClearMessages,
    CreateQueue,
    DeleteMessage,
    DeleteQueue,
    GetAcl,
    GetMessages,
    GetMetadata,
    GetServiceProperties,
    GetStats,
    GetUserDelegationKey,
    ListQueues,
    OfAccount,
    OfQueue,
    Operation,
    PeekMessages,
    Preflight,
    PutMessage,
    SetAcl,
    SetMetadata,
    SetServiceProperties,
    UpdateMessage,
)
from gateway.wire.storage_queue.service_properties import build_properties, parse_properties
from gateway.wire.storage_queue.xml import build_acl, build_text, decoded, parse_acl, parse_text

Read = Callable[[Request, Query, Address], Operation]
# Seconds, some 4,000 years. The service takes any positive number; beyond this one the date of
# expiry may be past the year 9999, and the message lives for ever.
_LONGEST_LIFE: Final = 2**37
_MOST: Final = 10**20  # no number of the codec has more digits
_SERVICE: Final = "service"
_DELEGATION: Final = "userdelegationkey"


def parse_request(request: Request, address: Address) -> Operation:
    """
    Parse a request.

    Raises:
        StorageRefusal: with the service's code for the error.
    """
    if request.method == "OPTIONS":
        return _preflight(request)
    check_body(request)
    query = Query.of(request)
    table = _table(address)
    kind = (query.get("restype") or "").lower(), (query.get("comp") or "").lower()
    methods = table.get(kind)
    if methods is None:
        if kind == ("", ""):
            raise StorageRefusal("InvalidUri", "comp is expected.")
        name, value = ("comp", kind[1]) if kind[1] else ("restype", kind[0])
        raise invalid(name, value, "There is no such operation.")
    read = methods.get("GET" if request.method == "HEAD" else request.method)
    if read is None:
        raise StorageRefusal("UnsupportedHttpVerb", f"Supported are {', '.join(methods)}.")
    return read(request, query, address)


def _table(address: Address) -> Mapping[tuple[str, str], Mapping[str, Read]]:
    """The operations on such an address, by `restype` and `comp`."""
    if not address.path:
        return _OF_ACCOUNT
    if len(address.path) == 1:
        return _OF_QUEUE
    if not address.of_messages:
        raise StorageRefusal("InvalidUri")
    return _OF_MESSAGES if address.message_id is None else _OF_MESSAGE


# --- requests


def _list(_request: Request, query: Query, _address: Address) -> ListQueues:
    limit = query.number("maxresults", 0, 1, MAX_QUEUES)
    include = (query.get("include") or "").lower()
    if include not in {"", "metadata"}:
        raise invalid("include", include, "metadata is expected.")
    return ListQueues(
        prefix=query.get("prefix") or "",
        marker=query.get("marker") or "",
        limit=limit or None,
        with_metadata=bool(include),
    )


def _put(request: Request, query: Query, address: Address) -> PutMessage:
    is_raw = version_of(request, query) is None and request.method == "PUT"
    body = request.body if is_raw else parse_text(request.body)
    visibility = query.number("visibilitytimeout", 0, 0, MAX_VISIBILITY)
    life = query.number("messagettl", DEFAULT_TIME_TO_LIVE, NEVER, _MOST)
    text = query.get("messagettl")
    if life == 0:
        raise invalid("messagettl", "0", "It is above 0, or -1 for never.")
    if text is not None and life != NEVER and visibility >= life:
        why = "messagettl must be greater than visibilitytimeout"  # the service's words
        raise invalid("visibilitytimeout", str(visibility), why)
    return PutMessage(
        queue=_queue(address),
        body=check_text(body),
        visibility=visibility,
        time_to_live=life if life <= _LONGEST_LIFE else NEVER,
        is_raw=is_raw,
    )


def _get(_request: Request, query: Query, address: Address) -> Operation:
    limit = query.number("numofmessages", 1, 1, MAX_MESSAGES)
    if (query.get("peekonly") or "").lower() == "true":
        return PeekMessages(queue=_queue(address), limit=limit)
    hidden = query.number("visibilitytimeout", 0, 1, MAX_VISIBILITY)
    return GetMessages(queue=_queue(address), limit=limit, visibility=hidden or None)


def _update(request: Request, query: Query, address: Address) -> UpdateMessage:
    receipt = _receipt(query)
    query.required("visibilitytimeout")
    return UpdateMessage(
        queue=_queue(address),
        message_id=address.message_id or "",
        pop_receipt=receipt,
        visibility=query.number("visibilitytimeout", 0, 0, MAX_VISIBILITY),
        body=check_text(parse_text(request.body)) if request.body else None,
    )


def _delete(_request: Request, query: Query, address: Address) -> DeleteMessage:
    return DeleteMessage(
        queue=_queue(address),
        message_id=address.message_id or "",
        pop_receipt=_receipt(query),
    )


def _receipt(query: Query) -> str:
    receipt = query.required("popreceipt")
    if decoded(receipt) is None:
        raise invalid("popreceipt", receipt, "Invalid pop receipt format")  # the service's words
    return receipt


def _preflight(request: Request) -> Preflight:
    headers = request.headers
    values = []
    for name in ("Origin", "Access-Control-Request-Method"):
        value = headers.get(name)
        if not value:
            raise invalid_header(name, value or "")
        values.append(value)
    wanted = (headers.get("Access-Control-Request-Headers") or "").split(",")
    names = tuple(name.strip().lower() for name in wanted if name.strip())
    return Preflight(origin=values[0], method=values[1], headers=names)


def _queue(address: Address) -> str:
    return check_name(address.queue or "")


_OF_ACCOUNT: Final[Mapping[tuple[str, str], Mapping[str, Read]]] = {
    ("", "list"): {"GET": _list},
    (_SERVICE, "properties"): {
        "GET": lambda _r, _q, _a: GetServiceProperties(),
        "PUT": lambda r, _q, _a: SetServiceProperties(properties=parse_properties(r.body)),
    },
    (_SERVICE, "stats"): {"GET": lambda _r, _q, _a: GetStats()},
    (_SERVICE, _DELEGATION): {"POST": lambda r, _q, _a: parse_key_info(r.body)},
}
_OF_QUEUE: Final[Mapping[tuple[str, str], Mapping[str, Read]]] = {
    ("", ""): {
        "PUT": lambda r, _q, a: CreateQueue(queue=_queue(a), metadata=metadata_of(r.headers)),
        "DELETE": lambda _r, _q, a: DeleteQueue(queue=_queue(a)),
    },
    ("", "metadata"): {
        "GET": lambda _r, _q, a: GetMetadata(queue=_queue(a)),
        "PUT": lambda r, _q, a: SetMetadata(queue=_queue(a), metadata=metadata_of(r.headers)),
    },
    ("", "acl"): {
        "GET": lambda _r, _q, a: GetAcl(queue=_queue(a)),
        "PUT": lambda r, _q, a: SetAcl(queue=_queue(a), policies=parse_acl(r.body)),
    },
}
_OF_MESSAGES: Final[Mapping[tuple[str, str], Mapping[str, Read]]] = {
    ("", ""): {
        "POST": _put,
        "PUT": _put,
        "GET": _get,
        "DELETE": lambda _r, _q, a: ClearMessages(queue=_queue(a)),
    }
}
_OF_MESSAGE: Final[Mapping[tuple[str, str], Mapping[str, Read]]] = {
    ("", ""): {"PUT": _update, "DELETE": _delete}
}


# --- the other way


def build_request(operation: Operation) -> Request:
    """
    Build the request, with its target below the account's URL. It isn't signed, and has no version:
    without a version it counts as the first.
    """
    if isinstance(operation, OfAccount):
        return _of_account(operation)
    return _of_messages(operation) or _of_queue(operation)


def _of_account(operation: OfAccount) -> Request:
    match operation:
        case ListQueues(prefix=prefix, marker=marker, limit=limit, with_metadata=full):
            include = "metadata" if full else None
            target = build_target(
                comp="list",
                prefix=prefix or None,
                marker=marker or None,
                maxresults=limit,
                include=include,
            )
            return _built("GET", target)
        case GetServiceProperties():
            return _built("GET", build_target(restype=_SERVICE, comp="properties"))
        case SetServiceProperties(properties=properties):
            target = build_target(restype=_SERVICE, comp="properties")
            return _built("PUT", target, body=build_properties(properties))
        case GetStats():
            return _built("GET", build_target(restype=_SERVICE, comp="stats"))
        case GetUserDelegationKey():
            target = build_target(restype=_SERVICE, comp=_DELEGATION)
            return _built("POST", target, body=build_key_info(operation))
        case Preflight(origin=origin, method=method, headers=names):
            fields = {"Origin": origin, "Access-Control-Request-Method": method}
            if names:
                fields["Access-Control-Request-Headers"] = ",".join(names)
            return _built("OPTIONS", build_target(), fields)


def _of_queue(operation: OfQueue) -> Request:
    queue = operation.queue
    match operation:
        case CreateQueue(metadata=metadata):
            return _built("PUT", build_target(queue), dict(metadata_headers(metadata)))
        case DeleteQueue():
            return _built("DELETE", build_target(queue))
        case GetMetadata():
            return _built("GET", build_target(queue, comp="metadata"))
        case SetMetadata(metadata=metadata):
            fields = dict(metadata_headers(metadata))
            return _built("PUT", build_target(queue, comp="metadata"), fields)
        case SetAcl(policies=policies):
            body = build_acl(policies) if policies else b""
            return _built("PUT", build_target(queue, comp="acl"), body=body)
        case _:
            return _built("GET", build_target(queue, comp="acl"))


def _of_messages(operation: OfQueue) -> Request | None:
    path = (operation.queue, "messages")
    match operation:
        case PutMessage(visibility=hidden, time_to_live=life, body=body, is_raw=is_raw):
            target = build_target(
                *path,
                visibilitytimeout=hidden or None,
                messagettl=None if life == DEFAULT_TIME_TO_LIVE else life,
            )
            return _built(
                "PUT" if is_raw else "POST", target, body=body if is_raw else build_text(body)
            )
        case GetMessages(limit=limit, visibility=hidden):
            return _built("GET", build_target(*path, numofmessages=limit, visibilitytimeout=hidden))
        case PeekMessages(limit=limit):
            return _built("GET", build_target(*path, numofmessages=limit, peekonly="true"))
        case ClearMessages():
            return _built("DELETE", build_target(*path))
    return _of_message(operation)


def _of_message(operation: OfQueue) -> Request | None:
    path = (operation.queue, "messages")
    match operation:
        case UpdateMessage(message_id=name, pop_receipt=receipt, visibility=hidden, body=new):
            target = build_target(*path, name, popreceipt=receipt, visibilitytimeout=hidden)
            return _built("PUT", target, body=b"" if new is None else build_text(new))
        case DeleteMessage(message_id=name, pop_receipt=receipt):
            return _built("DELETE", build_target(*path, name, popreceipt=receipt))
    return None


def _built(
    method: str, target: str, fields: Mapping[str, str] | None = None, *, body: bytes = b""
) -> Request:
    headers = dict(fields or {})
    if method in {"PUT", "POST"}:
        headers["Content-Length"] = str(len(body))
    if body:
        headers["Content-Type"] = "application/xml"
    return Request(method=method, target=target, headers=Headers.of(headers), body=body)
