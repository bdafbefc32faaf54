"""
Requests and answers between two gateways of a cluster, as the contents of their frames.

    content   length of the head (4 bytes, big-endian)  head (a JSON object)  rest
    request   {"do": "settle", "entity": "orders", "token": "...",
               "settlement": "dead-letter", "reason": "...", "description": "..."}
              {"do": "renew", "entity": "orders", "token": "..."}
              {"do": "change", "entity": "orders", "receipt": [7, 12, 1],
               "microseconds": 30000000, "body": true}
              {"do": "remove", "entity": "orders", "receipt": [7, 12, 1]}
              {"do": "suspect", "from": "10.0.0.1:5680", "entities": [["orders", 1.5, "..."]]}
              {"do": "forward", "entity": "orders", "queue": "...", "seconds": 12.5}
              {"do": "orderer", "from": "10.0.0.1:5680", "queue": "..."}
    answer    {"done": true, "until": "ISO 8601", "receipt": [7, 13, 0]}
              {"done": true, "acceptedBy": "primary"}
              {"error": "LockLost", "text": "...", "retryAfter": 2.0}

The rest is the AMQP message with a settlement's properties, a message's new body, or the messages
of a send, as in `frames.py`. A connection carries one request at a time, so that requests need no
numbers.
"""

import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    HolderSilent,
    InternalError,
    InvalidRequest,
    LockLost,
    MessageError,
    MessageNotFound,
    MessageTooLarge,
    NotAuthorized,
    NotOrderer,
    NotSupported,
    Outcome,
    QuotaExceeded,
    StorageFull,
    Unavailable,
)
from gateway.domain.message import (
    Abandon,
    AcceptedBy,
    Complete,
    DeadLetter,
    Defer,
    Message,
    Properties,
    Settlement,
)
from gateway.domain.storage_queue import PopReceipt
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.http import strict_json
from gateway.wire.pairgate.frames import build_messages, parse_messages

LARGEST: Final = 1024 * 1024  # bytes of a content
MOST_ADVICE: Final = 50  # entities of one request
_LENGTH: Final = 4  # bytes before the head
_LARGEST_HEAD: Final = 64 * 1024  # bytes: `MOST_ADVICE` reasons and names, with room
_MOST_REASON: Final = 200  # characters of advice
_MOST_TEXT: Final = 2000  # characters of an error's text
_LONGEST_PAUSE: Final = 3600.0  # seconds: no server means more than an hour
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = timedelta(days=365)  # beyond any invisibility timeout
_ERRORS: Final = {
    kind.__name__: kind
    for kind in (
        Busy,
        EntityDisabled,
        EntityNotFound,
        InternalError,
        InvalidRequest,
        LockLost,
        MessageNotFound,
        MessageTooLarge,
        NotAuthorized,
        NotOrderer,
        NotSupported,
        QuotaExceeded,
        StorageFull,
        Unavailable,
    )
}
_UNKNOWN: Final = "OutcomeUnknown"
_NO_HEAD: Final[Mapping[str, Any]] = MappingProxyType({})


@attrs.frozen
class SettleHeld:
    entity: EntityPath
    lock_token: str
    settlement: Settlement


@attrs.frozen
class RenewHeld:
    entity: EntityPath
    lock_token: str


@attrs.frozen
class ChangeHidden:
    """Storage Queue's Update Message."""

    entity: EntityPath
    receipt: PopReceipt
    hidden: timedelta
    body: bytes | None = None


@attrs.frozen
class RemoveHidden:
    """Storage Queue's Delete Message."""

    entity: EntityPath
    receipt: PopReceipt


@attrs.frozen
class Suspicion:
    """An entity that a gateway suspects since `age` seconds, and why."""

    entity: EntityPath
    age: float
    reason: str


@attrs.frozen
class SuspectEntities:
    """Advice of the gateway `sender`, of at most `MOST_ADVICE` entities."""

    sender: str
    suspicions: tuple[Suspicion, ...]


@attrs.frozen
class ForwardSend:
    """
    A send of an ordered entity, for the orderer of that ordered backlog queue. All messages are of
    one key, and have `seconds` to be accepted, from the request's arrival on.
    """

    entity: EntityPath
    queue: EntityPath
    seconds: float
    messages: tuple[Message, ...]


@attrs.frozen
class NameOrderer:
    """The gateway `sender` is the orderer of that ordered backlog queue."""

    sender: str
    queue: EntityPath


HeldRequest = SettleHeld | RenewHeld | ChangeHidden | RemoveHidden
News = SuspectEntities | NameOrderer
PeerRequest = HeldRequest | News | ForwardSend


@attrs.frozen
class HeldAnswer:
    """
    The request was done. `until` is the new end of a lock or an invisibility timeout;
    `accepted_by` is set for a send that was forwarded.
    """

    until: datetime | None = None
    receipt: PopReceipt | None = None
    accepted_by: AcceptedBy | None = None


def build_request(request: PeerRequest) -> bytes:
    """
    Build the content of a request.

    Raises:
        InvalidRequest: AMQP can't express the settlement's properties, or a message.
        MessageTooLarge: it is larger than `LARGEST`, or its head than 64 KiB.
    """
    if isinstance(request, News):
        return _joined(_news(request), b"")
    head: dict[str, Any] = {"entity": request.entity.name}
    rest = b""
    match request:
        case SettleHeld():
            kind, fields, properties = _parts(request.settlement)
            head |= {"do": "settle", "token": request.lock_token, "settlement": kind, **fields}
            rest = _encoded(properties) if properties else b""
        case RenewHeld():
            head |= {"do": "renew", "token": request.lock_token}
        case ChangeHidden():
            rest = request.body or b""
            head |= {
                "do": "change",
                "receipt": _numbers(request.receipt),
                "microseconds": request.hidden // _MICROSECOND,
                "body": request.body is not None,
            }
        case RemoveHidden():
            head |= {"do": "remove", "receipt": _numbers(request.receipt)}
        case ForwardSend():
            rest = build_messages(request.messages)
            head |= {"do": "forward", "queue": request.queue.name, "seconds": request.seconds}
    content = _joined(head, rest)
    if len(content) > LARGEST or len(content) - len(rest) > _LARGEST_HEAD:
        raise MessageTooLarge(
            f"{len(content)} bytes: another gateway of the cluster has to do this, and takes up to"
            f" {LARGEST}"
        )
    return content


def _news(news: News) -> dict[str, Any]:
    if isinstance(news, NameOrderer):
        return {"do": "orderer", "from": news.sender, "queue": news.queue.name}
    rows = [[each.entity.name, each.age, each.reason] for each in news.suspicions]
    return {"do": "suspect", "from": news.sender, "entities": rows}


def parse_request(content: bytes) -> PeerRequest:
    """
    Parse the content of a request.

    Raises:
        InvalidRequest: it isn't one.
        NotSupported: it is one of a later version.
    """
    head, rest = _split(content)
    match head.get("do"):
        case "suspect":
            return _suspects(head)
        case "orderer":
            return NameOrderer(_text(head, "from"), _path(head, "queue"))
        case "forward":
            return ForwardSend(
                _path(head, "entity"),
                _path(head, "queue"),
                _seconds(head),
                tuple(parse_messages(rest)),
            )
    return _held(head, _path(head, "entity"), rest)


def _held(head: Mapping[str, Any], entity: EntityPath, rest: bytes) -> HeldRequest:
    match head.get("do"):
        case "settle":
            return SettleHeld(entity, _text(head, "token"), _settlement(head, rest))
        case "renew":
            return RenewHeld(entity, _text(head, "token"))
        case "change":
            hidden = _int(head, "microseconds") * _MICROSECOND
            if not timedelta(0) <= hidden <= _LONGEST:
                raise InvalidRequest(f"microseconds: {hidden} is out of range")
            body = rest if head.get("body") is True else None
            return ChangeHidden(entity, _receipt(head.get("receipt")), hidden, body)
        case "remove":
            return RemoveHidden(entity, _receipt(head.get("receipt")))
    raise NotSupported(f"do: {head.get('do')!r:.40} is no request of this version")


def _suspects(head: Mapping[str, Any]) -> SuspectEntities:
    rows = head.get("entities")
    if not isinstance(rows, list) or len(rows) > MOST_ADVICE:
        raise InvalidRequest(f"entities: a list of up to {MOST_ADVICE} expected")
    return SuspectEntities(_text(head, "from")[:_MOST_REASON], tuple(map(_suspicion, rows)))


def _suspicion(row: Any) -> Suspicion:
    match row:
        case [str(name), int() | float() as age, str(reason)] if not isinstance(age, bool):
            return Suspicion(EntityPath.parse(name), float(age), reason[:_MOST_REASON])
    raise InvalidRequest(f"entities: a name, seconds and a reason expected, got {row!r:.80}")


def build_answer(answer: HeldAnswer | BrokerError) -> bytes:
    """Build the content of an answer."""
    head: dict[str, Any] = {}
    if isinstance(answer, BrokerError):
        head |= _error_head(answer)
    else:
        head["done"] = True
        if answer.until is not None:
            head["until"] = answer.until.isoformat()
        if answer.receipt is not None:
            head["receipt"] = _numbers(answer.receipt)
        if answer.accepted_by is not None:
            head["acceptedBy"] = answer.accepted_by.value
    return _joined(head, b"")


def parse_answer(content: bytes) -> HeldAnswer | BrokerError:
    """
    Parse the content of an answer. An unknown outcome, or an unknown error, becomes `HolderSilent`.

    Raises:
        InvalidRequest: it isn't an answer.
    """
    head, _ = _split(content)
    if "error" in head:
        return _error(head)
    if head.get("done") is not True:
        raise InvalidRequest("an answer that says neither what was done nor an error")
    receipt = _receipt(head["receipt"]) if "receipt" in head else None
    accepted_by = _accepted_by(head["acceptedBy"]) if "acceptedBy" in head else None
    return HeldAnswer(_date(head.get("until")), receipt, accepted_by)


def _parts(settlement: Settlement) -> tuple[str, Mapping[str, Any], Properties]:
    match settlement:
        case Complete():
            return "complete", _NO_HEAD, {}
        case Abandon(delivered=delivered, properties=properties):
            return "abandon", {"delivered": delivered}, properties
        case DeadLetter(reason=reason, description=text, properties=properties):
            return "dead-letter", {"reason": reason, "description": text}, properties
        case Defer(properties=properties):
            return "defer", _NO_HEAD, properties


def _settlement(head: Mapping[str, Any], rest: bytes) -> Settlement:
    properties = _decoded(rest) if rest else {}
    match head.get("settlement"):
        case "complete":
            return Complete()
        case "abandon":
            return Abandon(delivered=head.get("delivered") is True, properties=properties)
        case "dead-letter":
            reason, text = _text(head, "reason"), _text(head, "description")
            return DeadLetter(reason=reason, description=text, properties=properties)
        case "defer":
            return Defer(properties=properties)
    raise InvalidRequest(f"settlement: {head.get('settlement')!r:.40} is none")


def _encoded(properties: Properties) -> bytes:
    try:
        return encode_message(Message(properties=properties))
    except MessageError as error:
        raise InvalidRequest(str(error)) from error


def _decoded(rest: bytes) -> Properties:
    try:
        return decode_message(rest).properties
    except MessageError as error:
        raise InvalidRequest(str(error)) from error


def _error_head(error: BrokerError) -> dict[str, Any]:
    kinds = type(error).__mro__
    known = next((kind.__name__ for kind in kinds if kind.__name__ in _ERRORS), None)
    if error.outcome is Outcome.UNKNOWN:
        known = _UNKNOWN
    head: dict[str, Any] = {
        "error": known or Unavailable.__name__,
        "text": str(error)[:_MOST_TEXT],
    }
    if isinstance(error, Busy):
        head["retryAfter"] = min(max(error.retry_after, 0.0), _LONGEST_PAUSE)
    return head


def _error(head: Mapping[str, Any]) -> BrokerError:
    text = _text(head, "text")[:_MOST_TEXT]
    kind = _ERRORS.get(_text(head, "error"))
    if kind is None:  # an unknown outcome, or an error that a later version has
        return HolderSilent(text)
    if kind is Busy:
        pause = head.get("retryAfter")
        seconds = float(pause) if isinstance(pause, int | float) else 1.0
        return Busy(text, retry_after=min(max(seconds, 0.0), _LONGEST_PAUSE))
    return kind(text)


def _joined(head: Mapping[str, Any], rest: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(_LENGTH) + text + rest


def _split(content: bytes) -> tuple[Mapping[str, Any], bytes]:
    size = int.from_bytes(content[:_LENGTH])
    end = _LENGTH + size
    if len(content) < end:
        raise InvalidRequest("the content is shorter than its head")
    text = content[_LENGTH:end]
    what = "head"
    head = strict_json.as_object(strict_json.load(text, what, max_bytes=_LARGEST_HEAD), what)
    return head, content[end:]


def _numbers(receipt: PopReceipt) -> list[int]:
    return [receipt.sequence, receipt.stamp, receipt.deliveries]


def _receipt(value: Any) -> PopReceipt:
    if not isinstance(value, list) or [type(each) for each in value] != [int, int, int]:
        raise InvalidRequest(f"receipt: three numbers expected, got {value!r:.60}")
    return PopReceipt(*value)


def _accepted_by(value: Any) -> AcceptedBy:
    try:
        return AcceptedBy(value)
    except ValueError:
        raise InvalidRequest(f"acceptedBy: {value!r:.40} accepts no sends") from None


def _seconds(head: Mapping[str, Any]) -> float:
    value = head.get("seconds")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidRequest(f"seconds: a number from 0 on expected, got {value!r:.60}")
    return float(value)


def _int(head: Mapping[str, Any], name: str) -> int:
    value = head.get(name)
    if type(value) is not int or abs(value) >= 2**63:
        raise InvalidRequest(f"{name}: a number of 64 bits expected, got {value!r:.60}")
    return value


def _text(head: Mapping[str, Any], name: str) -> str:
    value = head.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: a text expected, got {value!r:.60}")
    return value


def _path(head: Mapping[str, Any], name: str) -> EntityPath:
    return EntityPath.parse(_text(head, name))


def _date(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        date = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"until: a date expected, got {value!r:.60}") from error
    if date.tzinfo is None:
        raise InvalidRequest(f"until: a date with its offset expected, got {value!r:.60}")
    return date
