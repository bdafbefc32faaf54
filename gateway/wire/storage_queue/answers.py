"""Answers of the Queue service as responses, and responses as answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from gateway.wire.http.date import format_http_date, parse_http_date
from gateway.wire.http.hardened_xml import without_illegal
from gateway.wire.http.messages import REMEMBERED, Headers, Response
from gateway.wire.storage_queue.delegation import build_key, parse_key
from gateway.wire.storage_queue.errors import XML_TYPE, StorageRefusal, parse_error
from gateway.wire.storage_queue.fields import metadata_headers, metadata_of
from gateway.wire.storage_queue.operations import (
    Acl,
    Allowed,
    Answer,
    ClearMessages,
    CorsRule,
    Created,
    CreateQueue,
    DeleteMessage,
    DeleteQueue,
    Done,
    Existed,
    GetAcl,
    GetMessages,
    GetMetadata,
    GetServiceProperties,
    GetStats,
    GetUserDelegationKey,
    ListQueues,
    Messages,
    Operation,
    PeekMessages,
    PutMessage,
    QueueList,
    QueueMetadata,
    ServiceProperties,
    SetAcl,
    SetMetadata,
    SetServiceProperties,
    Stats,
    Updated,
    UpdateMessage,
    UserDelegationKey,
)
from gateway.wire.storage_queue.service_properties import build_properties, parse_properties
from gateway.wire.storage_queue.xml import (
    END_OF_TIME,
    build_acl,
    build_messages,
    build_old_queue_list,
    build_queue_list,
    build_stats,
    parse_acl,
    parse_count,
    parse_messages,
    parse_queue_list,
    parse_stats,
)

COUNT: Final = "x-ms-approximate-messages-count"
POP_RECEIPT: Final = "x-ms-popreceipt"
NEXT_VISIBLE: Final = "x-ms-time-next-visible"


@attrs.frozen(kw_only=True)
class Style:
    """The format of an answer: for a client of the service's first version, or of a later one."""

    endpoint: str = ""  # the account's URL
    is_first: bool = False


def pieces_of(answer: Answer, style: Style) -> Iterator[bytes]:
    """The body of an answer with messages, in pieces; nothing for any other answer."""
    if isinstance(answer, Messages):
        yield from build_messages(answer, encoded=style.is_first)


def build_response(
    operation: Operation, answer: Answer, style: Style, body: bytes = b""
) -> Response:
    """
    Build the answer to that operation, without the headers that all answers have. `body` is that of
    `pieces_of`, if the caller has it.
    """
    match answer:
        case Created() | Existed() | Done():
            return Response(status=_bare_status(operation, answer))
        case QueueMetadata(metadata=metadata, count=count):
            counts = [] if count is None else [(COUNT, str(count))]
            fields = [*counts, *metadata_headers(metadata)]
            return Response(status=200, headers=Headers.of(fields))
        case Updated(pop_receipt=receipt, visible=visible):
            fields = [(POP_RECEIPT, receipt), (NEXT_VISIBLE, format_http_date(visible))]
            return Response(status=204, headers=Headers.of(fields))
        case Allowed(origin=origin, rule=rule):
            return Response(status=200, headers=Headers.of(preflight_headers(origin, rule)))
        case UserDelegationKey():
            return _xml(build_key(answer), status=200)
    status = 201 if isinstance(operation, PutMessage) else 200
    return _xml(body or _body(operation, answer, style), status=status)


def _bare_status(operation: Operation, answer: Created | Existed | Done) -> int:
    if isinstance(answer, Created):
        return 201
    return 202 if isinstance(operation, SetServiceProperties) else 204


def _body(operation: Operation, answer: Answer, style: Style) -> bytes:
    match answer:
        case Messages():
            return b"".join(pieces_of(answer, style))
        case Acl(policies=policies):
            return build_acl(policies)
        case ServiceProperties():
            return build_properties(answer)
        case Stats():
            return build_stats(answer)
    assert isinstance(answer, QueueList)
    assert isinstance(operation, ListQueues)
    asked = list(_asked(operation))
    if style.is_first:
        return build_old_queue_list(answer, endpoint=style.endpoint, asked=asked)
    return build_queue_list(
        answer, endpoint=style.endpoint, asked=asked, metadata=operation.with_metadata
    )


def _asked(operation: ListQueues) -> Iterable[tuple[str, str]]:
    if operation.prefix:
        yield "Prefix", without_illegal(operation.prefix)
    if operation.marker:
        yield "Marker", operation.marker
    if operation.limit is not None:
        yield "MaxResults", str(operation.limit)


def _xml(body: bytes, *, status: int) -> Response:
    return Response(status=status, headers=Headers((("Content-Type", XML_TYPE),)), body=body)


# --- headers for browsers


def preflight_headers(origin: str, rule: CorsRule) -> Iterable[tuple[str, str]]:
    yield from origin_headers(origin, rule)
    yield "Access-Control-Allow-Methods", rule.methods
    if rule.headers:
        yield "Access-Control-Allow-Headers", rule.headers
    yield "Access-Control-Max-Age", str(rule.max_age)


def origin_headers(origin: str, rule: CorsRule) -> Iterable[tuple[str, str]]:
    """The CORS headers that let a browser's script read the answer."""
    everybody = "*" in [each.strip() for each in rule.origins.split(",")]
    yield "Access-Control-Allow-Origin", "*" if everybody else origin
    if not everybody:
        yield "Access-Control-Allow-Credentials", "true"
        yield "Vary", "Origin"
    if rule.exposed:
        yield "Access-Control-Expose-Headers", rule.exposed


# --- the other way

# The expected statuses by operation. Any other success comes from a proxy: a login page doesn't
# mean that a message was deleted.
_EXPECTED: Final[Mapping[type[Operation], frozenset[int]]] = {
    CreateQueue: frozenset({201, 204}),
    DeleteQueue: frozenset({204}),
    GetMetadata: frozenset({200}),
    SetMetadata: frozenset({204}),
    GetAcl: frozenset({200}),
    SetAcl: frozenset({204}),
    PutMessage: frozenset({201}),
    GetMessages: frozenset({200}),
    PeekMessages: frozenset({200}),
    UpdateMessage: frozenset({204}),
    DeleteMessage: frozenset({204}),
    ClearMessages: frozenset({204}),
    ListQueues: frozenset({200}),
    GetServiceProperties: frozenset({200}),
    SetServiceProperties: frozenset({202}),
    GetStats: frozenset({200}),
    GetUserDelegationKey: frozenset({200}),
}


def parse_response(operation: Operation, response: Response) -> Answer:
    """
    Parse the answer to that operation.

    Raises:
        BrokerError: the answer is that error.
        StorageRefusal: the answer is malformed.
    """
    if response.status not in _EXPECTED.get(type(operation), ()):
        raise parse_error(response)
    match operation:
        case CreateQueue():
            return Existed() if response.status == 204 else Created()
        case GetMetadata():
            count = parse_count(response.headers.get(COUNT) or "")
            if count is None and response.headers.get(REMEMBERED) is None:
                raise StorageRefusal("InvalidHeaderValue", f"{COUNT}: a number is expected.")
            return QueueMetadata(metadata=metadata_of(response.headers), count=count)
        case UpdateMessage():
            receipt = response.headers.get(POP_RECEIPT)
            if not receipt:  # without a receipt the message can't be settled
                raise StorageRefusal("InvalidHeaderValue", f"{POP_RECEIPT} is expected.")
            return Updated(
                pop_receipt=receipt,
                visible=parse_http_date(response.headers.get(NEXT_VISIBLE) or "") or END_OF_TIME,
            )
    parse = _PARSERS.get(type(operation))
    answer = Done() if parse is None else parse(response.body)
    if isinstance(operation, GetMessages | PeekMessages) and isinstance(answer, Messages):
        _check_number(len(answer.items), operation.limit)
    return answer


def _check_number(found: int, limit: int) -> None:
    if found > limit:
        raise StorageRefusal("InvalidXmlDocument", f"{found} messages, where {limit} were wanted.")


_PARSERS: Final[Mapping[type[Operation], Callable[[bytes], Answer]]] = {
    ListQueues: parse_queue_list,
    GetAcl: lambda body: Acl(parse_acl(body)),
    PutMessage: parse_messages,
    GetMessages: parse_messages,
    PeekMessages: parse_messages,
    GetServiceProperties: parse_properties,
    GetStats: parse_stats,
    GetUserDelegationKey: parse_key,
}
