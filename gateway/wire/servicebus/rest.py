"""
Service Bus REST: the requests, both directions; the answers are in `answers`.

    SendMessages     POST   /{entity}/messages                     201
    ReceiveMessages  POST   /{entity}/messages/head?timeout=60     201 with one message, 204 none
                     DELETE ...                                    200 the same, and it is gone
    SettleMessage    DELETE /{entity}/messages/{id}/{lock}         200 completed
                     PUT    ...                                    200 abandoned
    RenewLock        POST   ...                                    200

Between Pairgates there is more. Every answer of a Pairgate carries `X-Pairgate: 1`, and none of
these means anything else to Service Bus:

    send a batch     POST /{entity}/messages, Content-Type: application/vnd.pairgate.amqp
    receive a batch  X-Pairgate-Receive: limit=100 on a receive; the answer is of that type
    peek             GET  /{entity}/messages?from-sequence=0&limit=10     200, 204 none
    dead-letter      PUT  /{entity}/messages/{id}/{lock}/$dead-letter     200
                     {"reason": "...", "description": "..."}
    abandon          X-Pairgate-Delivered: false: the message wasn't processed, it doesn't count
    probe            HEAD /{entity}/messages        200 if it could be sent to; needs Send only
    renew            the answer's X-Pairgate-Locked-Until: ISO 8601
    send             the answer's X-Pairgate-Accepted-By: primary, backlog or spool
    identity         GET  /$pairgate/identity       200, X-Pairgate-Identity: the namespace's

A subscription is the entity `{topic}/subscriptions/{name}`, to receive from. Entities are read from
the right, since their names hold slashes. The lock token alone decides which delivery is settled;
`{id}`, a sequence number or message id, is carried along.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.message import (
    MAX_REASON_LENGTH,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.wire.http import strict_json
from gateway.wire.http.messages import Headers, Request
from gateway.wire.pairgate import frames
from gateway.wire.servicebus.batch import build_batch, parse_batch
from gateway.wire.servicebus.operations import (
    MAX_LIMIT,
    Form,
    Operation,
    PeekMessages,
    ProbeEntity,
    ReceiveMessages,
    RenewLock,
    SendMessages,
    SettleMessage,
)
from gateway.wire.servicebus.rest_message import body_bytes, message_headers, message_of

RECEIVE: Final = "X-Pairgate-Receive"
IDENTITY_PATH: Final = "$pairgate/identity"
MAX_TIMEOUT: Final = 86400.0  # seconds: a day; a client that waits for longer asks again
_MAX_SETTLEMENT: Final = 64 * 1024  # total bytes of reason and description
_DEAD_LETTER: Final = "$dead-letter"
_DELIVERED: Final = "X-Pairgate-Delivered"
_NOT: Final = "false"
_TIMEOUT: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_RECEIVE: Final = re.compile(r"limit=([0-9]{1,9})", re.ASCII)
# Parses the body of a batch, by its content type.
_BATCHES: Final[Mapping[str, Callable[[bytes], Iterator[Message]]]] = {
    Form.AMQP.value: frames.parse_messages,
    Form.JSON.value: parse_batch,
}
_HOST: Final = re.compile(r"[A-Za-z0-9._\-\[\]:]{1,260}", re.ASCII)


def is_identity_request(request: Request) -> bool:
    """True if a client asks for the namespace's identity."""
    return request.method == "GET" and request.path == f"/{IDENTITY_PATH}"


def build_identity_request() -> Request:
    return Request(method="GET", target=f"/{IDENTITY_PATH}", headers=Headers())


def build_options_request(entity: EntityPath) -> Request:
    """Build a request that a namespace refuses by itself, and that changes nothing."""
    return Request(method="OPTIONS", target=_messages_path(entity), headers=Headers())


def is_message_request(request: Request) -> bool:
    """True if the path is that of one of these operations; otherwise it may be management."""
    return _tail(request.target) > 0


def is_receive_request(request: Request) -> bool:
    """True if the path is that of a receive, whatever the method."""
    return _tail(request.target) == 2


def waits_for_messages(request: Request) -> bool:
    """True if the request is a receive that waits for a message where there is none."""
    return is_receive_request(request) and request.query.get("timeout", "60").strip("0.") != ""


def is_send_request(request: Request) -> bool:
    """True if the request sends messages."""
    return request.method == "POST" and _tail(request.target) == 1


def is_peek_request(request: Request) -> bool:
    """True if the request peeks messages."""
    return request.method == "GET" and _tail(request.target) == 1


def origin_of(request: Request, *, secure: bool) -> str:
    """Scheme and host as the client wrote them: it expects its own host in a Location."""
    host = request.headers.get("Host") or ""
    scheme = "https" if secure else "http"
    return f"{scheme}://{host if _HOST.fullmatch(host) else 'localhost'}"


def batch_of(request: Request) -> Iterator[Message] | None:
    """
    The messages of a request that sends a batch, each parsed when it is asked for (raises
    `InvalidRequest`); None: it is another request.
    """
    if not is_send_request(request):
        return None
    parse = _BATCHES.get(_content_type(request))
    return None if parse is None else parse(request.body)


def parse_request(request: Request, batch: Sequence[Message] | None = None) -> Operation:
    """
    Parse a client's request. `batch` are the messages of `batch_of`, if the caller has them.

    Raises:
        InvalidRequest: the text names the field.
    """
    path, tail = _path(request.target), _tail(request.target)
    if tail == 0:
        raise InvalidRequest(f"path {request.path!r:.300}: /{{entity}}/messages expected")
    entity = _entity(path, tail)
    match request.method, tail:
        case "POST", 1:
            return _parse_send(entity, request, batch)
        case "GET", 1:
            return _parse_peek(entity, request)
        case "HEAD", 1:
            return ProbeEntity(entity=entity)
        case (("POST" | "DELETE"), 2):
            return _parse_receive(entity, request)
        case _, (3 | 4):
            message, lock_token = (unquote(part) for part in path.split("/")[1 - tail :][:2])
            return _parse_locked(entity, message, lock_token, request, tail)
        case _:
            raise _wrong_method(request)


def build_request(operation: Operation) -> Request:
    """
    Build the request, without Host and Authorization.

    Raises:
        NotSupported: the format can't carry a message; the text names the field.
        InvalidRequest: the format is SINGLE, and there isn't exactly one message.
    """
    path = _messages_path(operation.entity)
    match operation:
        case SendMessages():
            return _build_send(path, operation)
        case ReceiveMessages():
            return _build_receive(path, operation)
        case PeekMessages(from_sequence=sequence, limit=limit):
            return Request(method="GET", target=f"{path}?from-sequence={sequence}&limit={limit}")
        case ProbeEntity():
            return Request(method="HEAD", target=path)
        case RenewLock(entity=entity, message=message, lock_token=token):
            return Request(method="POST", target=lock_path(entity, message, token))
        case SettleMessage(entity=entity, message=message, lock_token=token):
            return _build_settle(lock_path(entity, message, token), operation.settlement)


def lock_path(entity: EntityPath, message: str, lock_token: str) -> str:
    """The path at which a locked message is settled and renewed."""
    return f"{_messages_path(entity)}/{quote(message, safe='')}/{quote(lock_token, safe='')}"


def _messages_path(entity: EntityPath) -> str:
    return "/" + quote(entity.name, safe="/$") + "/messages"


def _path(target: str) -> str:
    return target.partition("?")[0].removeprefix("/")


def _entity(path: str, tail: int) -> EntityPath:
    """The entity that is named by all segments except the last `tail` ones."""
    return _entity_named(path.rsplit("/", tail)[0])


# Both are cached: most requests are for few entities, and the target is looked at repeatedly.


@functools.lru_cache(maxsize=1024)
def _entity_named(name: str) -> EntityPath:
    return EntityPath.parse(unquote(name))


@functools.lru_cache(maxsize=1024)
def _tail(target: str) -> int:
    """The number of segments at the end of the path that aren't the entity's; 0 if none."""
    match [segment.lower() for segment in _path(target).split("/")]:
        case [_, *_, "messages"]:
            return 1
        case [_, *_, "messages", "head"]:
            return 2
        case [_, *_, "messages", _, _]:
            return 3
        case [_, *_, "messages", _, _, last] if unquote(last) == _DEAD_LETTER:
            return 4
        case _:
            return 0


def _content_type(request: Request) -> str:
    return (request.headers.get("Content-Type") or "").partition(";")[0].strip().lower()


def _parse_send(
    entity: EntityPath, request: Request, batch: Sequence[Message] | None
) -> SendMessages:
    messages: Iterable[Message] | None = batch_of(request) if batch is None else batch
    if messages is None:
        message = message_of(request.headers, request.body)
        return SendMessages(entity=entity, messages=(message,), form=Form.SINGLE)
    found = tuple(messages)
    if not found:
        raise InvalidRequest("body: at least one message expected")
    return SendMessages(entity=entity, messages=found, form=Form(_content_type(request)))


def _build_send(path: str, operation: SendMessages) -> Request:
    fields = [("Content-Type", operation.form.value)]
    match operation.form:
        case Form.AMQP:
            body = frames.build_messages(operation.messages)
        case Form.JSON:
            body = build_batch(operation.messages)
        case Form.SINGLE:
            if len(operation.messages) != 1:
                raise InvalidRequest("body: exactly one message expected")
            (message,) = operation.messages
            if message.content_type is not None and _is_batch(message.content_type):
                raise NotSupported(
                    f"content type {message.content_type!r} means a batch for Service Bus REST"
                )
            fields = message_headers(message, strict=True)
            body = body_bytes(message, strict=True)
    return Request(method="POST", target=path, headers=Headers.of(fields), body=body)


def _is_batch(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind in _BATCHES


def _parse_receive(entity: EntityPath, request: Request) -> ReceiveMessages:
    text = request.query.get("timeout", "60")
    if not _TIMEOUT.fullmatch(text):
        raise InvalidRequest(f"timeout: seconds expected, got {text!r:.60}")
    mode = ReceiveMode.PEEK_LOCK if request.method == "POST" else ReceiveMode.RECEIVE_AND_DELETE
    wish = request.headers.get(RECEIVE)
    return ReceiveMessages(
        entity=entity,
        mode=mode,
        timeout=min(float(text), MAX_TIMEOUT),
        limit=None if wish is None else _limit(_RECEIVE.fullmatch(wish.strip()), RECEIVE),
    )


def _build_receive(path: str, operation: ReceiveMessages) -> Request:
    wish, seconds = dict[str, str](), str(math.ceil(operation.timeout))
    if operation.limit is not None:
        wish, seconds = {RECEIVE: f"limit={operation.limit}"}, f"{operation.timeout:.3f}"
    return Request(
        method="POST" if operation.mode is ReceiveMode.PEEK_LOCK else "DELETE",
        target=f"{path}/head?timeout={seconds}",
        headers=Headers.of(wish),
    )


def _parse_peek(entity: EntityPath, request: Request) -> PeekMessages:
    sequence = request.query.get("from-sequence", "0")
    if not _NUMBER.fullmatch(sequence):
        raise InvalidRequest(f"from-sequence: a number expected, got {sequence!r:.60}")
    limit = re.fullmatch(r"([0-9]{1,9})", request.query.get("limit", "1"), re.ASCII)
    return PeekMessages(entity=entity, from_sequence=int(sequence), limit=_limit(limit, "limit"))


def _limit(match: re.Match[str] | None, what: str) -> int:
    limit = int(match[1]) if match else 0
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"{what}: a limit of 1 to {MAX_LIMIT} expected")
    return limit


def _parse_locked(
    entity: EntityPath, message: str, lock_token: str, request: Request, tail: int
) -> SettleMessage | RenewLock:
    settlement: Settlement
    match request.method, tail:
        case "POST", 3:
            return RenewLock(entity=entity, message=message, lock_token=lock_token)
        case "DELETE", 3:
            settlement = Complete()
        case "PUT", 3:
            settlement = Abandon(delivered=request.headers.get(_DELIVERED) != _NOT)
        case "PUT", 4:
            settlement = _parse_dead_letter(request.body)
        case _:
            raise _wrong_method(request)
    return SettleMessage(
        entity=entity, message=message, lock_token=lock_token, settlement=settlement
    )


def _wrong_method(request: Request) -> InvalidRequest:
    return InvalidRequest(f"method {request.method} is not known for {request.path!r:.300}")


def _build_settle(path: str, settlement: Settlement) -> Request:
    match settlement:
        case Complete():
            return Request(method="DELETE", target=path)
        case Abandon(delivered=delivered):
            fields = {} if delivered else {_DELIVERED: _NOT}
            return Request(method="PUT", target=path, headers=Headers.of(fields))
        case DeadLetter(reason=reason, description=description):
            why = {"reason": reason, "description": description}
            return Request(
                method="PUT",
                target=f"{path}/{_DEAD_LETTER}",
                headers=Headers.of({"Content-Type": "application/json"}),
                body=json.dumps(why).encode(),
            )
        case Defer():
            raise NotSupported("Service Bus REST can't defer a message")


def _parse_dead_letter(body: bytes) -> DeadLetter:
    what = "dead-letter"
    fields = strict_json.as_object(strict_json.load(body, what, max_bytes=_MAX_SETTLEMENT), what)
    texts = {name: fields.get(name, "") for name in ("reason", "description")}
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > MAX_REASON_LENGTH:
            raise InvalidRequest(f"{name}: up to {MAX_REASON_LENGTH} characters expected")
    return DeadLetter(**texts)
