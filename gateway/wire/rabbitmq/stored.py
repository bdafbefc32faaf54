"""
Messages of AMQP 0-9-1 in a namespace that isn't RabbitMQ's, and back.

Each field that both protocols have is the message's own, as `properties.read` lists them, so that
any client reads it. The content header as it came is an annotation: the client of RabbitMQ gets
each property and each header back in its own type, unless somebody has changed the fields since.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from pamqp import commands
from pamqp import header as pamqp_header

from gateway.domain.errors import MessageError
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DataBody,
    Message,
    Typed,
    Value,
    ValueBody,
    derive_message,
)
from gateway.domain.values import value
from gateway.wire.amqp.message import encode_message
from gateway.wire.rabbitmq.content import read_content_header
from gateway.wire.rabbitmq.properties import read

# RabbitMQ's own AMQP 1.0 has the first two.
EXCHANGE: Final = "x-exchange"
ROUTING_KEY: Final = "x-routing-key"
CONTENT_HEADER: Final = "x-opt-pairgate-content-header"

CC: Final = "CC"
BCC: Final = "BCC"
DEATHS: Final = "x-death"
REJECTED: Final = "rejected"
_OF_STORE: Final = frozenset({DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION})
_FIELDS: Final = attrgetter(
    "message_id",
    "correlation_id",
    "subject",
    "reply_to",
    "content_type",
    "content_encoding",
    "user_id",
    "priority",
    "creation_time",
)
_PERSISTENT: Final = 2  # the delivery mode, as in `properties`
_MILLISECOND: Final = timedelta(milliseconds=1)
_LEAST_LIFE: Final = _MILLISECOND  # a store has no message that ends at once
_IN_HEADER: Final = (str, bytes, bool, int, float, datetime)
_INT64: Final = 2**63  # beyond the type `l` of a table
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@value
class StoredContent:
    """A message as a client of RabbitMQ publishes and gets it."""

    exchange: str
    routing_key: str
    header: bytes  # the payload of the content header frame
    body: bytes

    @property
    def headers(self) -> dict[str, Any]:
        """The application's headers. Raises MessageError: the content header is malformed."""
        found: dict[str, Any] = read_content_header(self.header).get("headers") or {}
        return found


def message_of(content: StoredContent) -> Message:
    """
    The message for a namespace.

    Raises:
        MessageError: the content header is malformed.
    """
    read_content_header(content.header)  # `read` has another message for one that it can't read
    message = read(content.header, content.body).message
    annotations = {
        **message.annotations,
        EXCHANGE: content.exchange,
        ROUTING_KEY: content.routing_key,
        CONTENT_HEADER: content.header,
    }
    life = message.time_to_live
    return derive_message(
        message,
        annotations=annotations,
        time_to_live=None if life is None else max(life, _LEAST_LIFE),
    )


def content_of(message: Message, queue: str) -> StoredContent:
    """The message of a queue as its consumer gets it; `queue` is where others have sent it."""
    body = _body_of(message)
    noted = message.annotations
    exchange, key, header = noted.get(EXCHANGE), noted.get(ROUTING_KEY), noted.get(CONTENT_HEADER)
    if not isinstance(header, bytes) or not _is_unchanged(message, header):
        header = _written(message, len(body))
    header = header[:4] + len(body).to_bytes(8) + header[12:]
    if not (isinstance(exchange, str) and isinstance(key, str)):
        exchange, key = "", queue
    return StoredContent(exchange, key, header, body)


def _is_unchanged(message: Message, header: bytes) -> bool:
    """True if the fields say what that content header does."""
    try:
        read_content_header(header)
    except MessageError:
        return False
    there = read(header, b"").message
    if there.message_id is None:  # a pair gives a message an id
        there = derive_message(there, message_id=message.message_id)
    own = {name: each for name, each in message.properties.items() if name not in _OF_STORE}
    return bool(_FIELDS(there) == _FIELDS(message) and dict(there.properties) == own)


def _body_of(message: Message) -> bytes:
    match message.body:
        case bytes() as data:
            return data
        case DataBody(parts=parts):
            return b"".join(parts)
        case ValueBody(value=str() as text):
            return text.encode()
        case ValueBody(value=bytes() as data):
            return data
        case _:
            return encode_message(message)


def _written(message: Message, size: int) -> bytes:
    """The content header of a message that a client of another protocol has sent."""
    headers = {
        name: plain
        for name, each in message.properties.items()
        if (plain := _plain(each)) is not None and name not in _OF_STORE
    }
    created = message.creation_time
    life = message.time_to_live
    fields = {
        "message_id": _text(message.message_id),
        "correlation_id": _text(message.correlation_id),
        "reply_to": message.reply_to,
        "type": message.subject,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "user_id": None if message.user_id is None else message.user_id.decode(errors="replace"),
        "priority": None if message.priority is None else min(message.priority, 255),
        "timestamp": created if isinstance(created, datetime) else None,
        "expiration": None if life is None else str(life // _MILLISECOND),
        "delivery_mode": _PERSISTENT,
        "headers": headers or None,
    }
    return write_header(size, {name: each for name, each in fields.items() if each is not None})


def _text(name: Value) -> str | None:
    """An id as text, which fits a property."""
    plain = name.value if isinstance(name, Typed) else name
    if plain is None:
        return None
    text = plain.hex() if isinstance(plain, bytes) else str(plain)
    return text.encode()[:255].decode(errors="ignore")


def _plain(given: Value) -> Value:
    """The value of a header; None: a table has no such type."""
    plain = given.value if isinstance(given, Typed) else given
    if isinstance(plain, UUID):
        return str(plain)
    if type(plain) is int and not -_INT64 <= plain < _INT64:
        return str(plain)
    return plain if isinstance(plain, _IN_HEADER) else None


def write_header(size: int, properties: Mapping[str, Any]) -> bytes:
    """
    The payload of a content header frame with these properties, as `read_content_header` has them.

    Raises:
        MessageError: a table can't express a value.
    """
    found = dict(properties)
    found["message_type"] = found.pop("type", None)
    found.pop("cluster_id", None)  # deprecated: pamqp writes none
    if isinstance(stamp := found.get("timestamp"), int):
        try:
            found["timestamp"] = _EPOCH + timedelta(seconds=stamp)
        except OverflowError:
            del found["timestamp"]
    try:
        written = commands.Basic.Properties(**found)
        return pamqp_header.ContentHeader(body_size=size, properties=written).marshal()
    except (TypeError, ValueError) as error:
        raise MessageError(f"a property can't be written: {error}") from error


def with_property(content: StoredContent, name: str, new: Any) -> StoredContent:
    """The message with another value of a property; None: without it."""
    properties = read_content_header(content.header)
    properties.pop(name, None)
    if new is not None:
        properties[name] = new
    header = write_header(len(content.body), properties)
    return StoredContent(content.exchange, content.routing_key, header, content.body)


def recipients(headers: Mapping[str, Any]) -> list[str]:
    """The further routing keys of RabbitMQ's sender-selected distribution."""
    lists = (headers.get(name) for name in (CC, BCC))
    return [key for each in lists if isinstance(each, list) for key in each if type(key) is str]


def without_bcc(content: StoredContent) -> StoredContent:
    """The message without the header that only its publisher sees. Raises MessageError."""
    if BCC.encode() not in content.header:  # as nearly always
        return content
    headers = content.headers
    if headers.pop(BCC, None) is None:
        return content
    return with_property(content, "headers", headers or None)


def dead_letter_of(
    content: StoredContent, *, queue: str, reason: str, now: datetime, key: str | None
) -> StoredContent:
    """
    The dead letter of a message, with `x-death` as RabbitMQ writes it; `key` is the routing key
    that the queue sets.

    Raises:
        MessageError: the content header is malformed.
    """
    properties = read_content_header(content.header)
    headers = dict(properties.get("headers") or {})
    earlier = _deaths_in(headers)
    same = [each for each in earlier if (each.get("queue"), each.get("reason")) == (queue, reason)]
    count = same[0].get("count") if same else 0
    death: dict[str, Any] = {
        "exchange": content.exchange,
        "queue": queue,
        "reason": reason,
        "routing-keys": [content.routing_key, *recipients({CC: headers.get(CC)})],
        "time": now.replace(microsecond=0),
    }
    death |= same[0] if same else {}  # the first time stays
    death["count"] = (count if isinstance(count, int) else 0) + 1
    if (expiration := properties.pop("expiration", None)) is not None:
        death["original-expiration"] = expiration
    headers[DEATHS] = [death, *(each for each in earlier if each not in same)]
    for each in ("reason", "queue", "exchange"):
        headers.setdefault(f"x-first-death-{each}", death[each])
        headers[f"x-last-death-{each}"] = death[each]
    if key is not None:
        headers.pop(CC, None)
    header = write_header(len(content.body), {**properties, "headers": headers})
    return StoredContent(
        content.exchange, content.routing_key if key is None else key, header, content.body
    )


def is_in_circle(dead_letter: StoredContent, queue: str) -> bool:
    """
    True if the dead letter would come to a queue where it died before, and nobody has rejected it
    since: RabbitMQ drops it there, as it could go round for ever.
    """
    for death in _deaths_in(dead_letter.headers):
        if death.get("reason") == REJECTED:
            return False
        if death.get("queue") == queue:
            return True
    return False


def _deaths_in(headers: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = headers.get(DEATHS)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
