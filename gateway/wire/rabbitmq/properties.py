"""
Messages to AMQP 0-9-1 and back.

A field that AMQP 0-9-1 has a place for is written there, so that any consumer can read it:

    message_id, correlation_id,      the property of that name: text of up to 255 bytes
    content_type, content_encoding,
    reply_to; subject                (`type`)
    time to live                     `expiration`, up to 2^32-1 ms
    creation time                    `timestamp`: whole seconds
    priority                         `priority`
    durable                          the header `x-pairgate-durable`; all are sent as persistent
    application properties           headers: text, bytes, bool, 64-bit integers, floats, null;
                                     of names in x-, which are the broker's, only the envelope's
    a body of one data section       the body

All other fields are encoded as an AMQP 1.0 message in the header `x-pairgate-amqp`. If that is too
large, or the body isn't one data section, the message with the body is in the body, and the header
`x-pairgate-body` is set. `x-pairgate-copy` has the date of the send and the copy id.

A message of a client of RabbitMQ that goes through the pair has its content header as data
(`Message.content_header`): nothing in it acts in another namespace. It's published with that
header, less the life that has passed, and with the user's id in `x-pairgate-user-id`, since the
broker takes no other user's.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import attrs

from gateway.domain.envelope_fields import RESERVED
from gateway.domain.errors import MessageError
from gateway.domain.message import DEAD_LETTER_REASON, Message, Value
from gateway.domain.values import value
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.rabbitmq.content import (
    fits_short,
    fits_table,
    read_content_header,
    split_content_header,
    write_content_header,
    write_entry,
)

COPY: Final = "x-pairgate-copy"
REST: Final = "x-pairgate-amqp"
BODY: Final = "x-pairgate-body"
DURABLE: Final = "x-pairgate-durable"
_COPY_ENTRY: Final = write_entry(COPY, "")[:-4]  # without the length of its text
UNREADABLE: Final = "x-pairgate-unreadable"
USER_ID: Final = "x-pairgate-user-id"
DELIVERY_COUNT: Final = "x-delivery-count"

# Reserved for the broker: each would be taken for a command, or describes a delivery.
_ROUTES: Final = frozenset({"CC", "BCC"})
_OF_BROKER: Final = frozenset(
    {COPY, REST, BODY, DURABLE, DELIVERY_COUNT, "x-acquired-count", "x-death"}
)
_DEATH_REASON: Final = "x-first-death-reason"
_OF_DEATH: Final = ("x-first-death-", "x-last-death-")
_RARE_HEADERS: Final = _OF_BROKER | {_DEATH_REASON}
_REASONS: Final = {
    "expired": "TTLExpiredException",
    "delivery_limit": "MaxDeliveryCountExceeded",
    "maxlen": "MaxLengthExceeded",
    "rejected": "Rejected",
}

_MILLISECOND: Final = timedelta(milliseconds=1)
_MAX_EXPIRATION: Final = 2**32 - 1  # milliseconds: RabbitMQ refuses more
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_TABLE: Final = 32 * 1024  # a content header is one frame, and a peer may want small frames
_PERSISTENT: Final = 2  # the delivery mode: 1 doesn't outlive the broker
_TAG_BITS: Final = 20  # a million messages within a millisecond have different numbers
_MAX_SENT: Final = 2 ** (63 - _TAG_BITS)  # milliseconds, so that a sequence number has 63 bits
_TEXTS: Final = {  # Message field -> AMQP 0-9-1 property
    "message_id": "message_id",
    "correlation_id": "correlation_id",
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "reply_to": "reply_to",
    "subject": "type",
}
_FIELDS: Final = {name: field for field, name in _TEXTS.items()} | {"priority": "priority"}
# Symbols in AMQP 1.0. Non-ASCII text from other producers becomes an annotation.
_ASCII: Final = ("content_type", "content_encoding")
# Properties that a Pairgate doesn't set, or sets to ASCII only: other values are of other clients.
_OTHERS: Final = frozenset({"user_id", "app_id", *_ASCII})
_RARE: Final = _OTHERS | {"timestamp", "expiration"}


@value
class CopyId:
    """Identifies one physical copy of a message, as stamped by its sender."""

    sent: int  # milliseconds since 1970
    tag: int  # counts the messages of a channel
    channel: str  # unique among all channels ever

    def __str__(self) -> str:
        return f"{self.sent}-{self.tag}-{self.channel}"

    @property
    def sent_at(self) -> datetime:
        """The date of the send, by the sender's clock."""
        return _date_of_milliseconds(self.sent)

    @property
    def sequence_number(self) -> int:
        """Grows with the sends of one channel, and is the same at each delivery of the copy."""
        return (self.sent << _TAG_BITS) | (self.tag & ((1 << _TAG_BITS) - 1))


@value
class Outgoing:
    """A message ready to be stamped and sent."""

    properties: Mapping[str, Any]
    table: bytes
    body: bytes
    publish_method: bytes | None = None  # the payload of its own `basic.publish`

    @property
    def size(self) -> int:
        """Bytes of the body and the headers, without properties and frames."""
        return len(self.body) + len(self.table)

    def header(self, copy: CopyId) -> bytes:
        """The payload of the content header frame."""
        text = str(copy).encode()
        table = self.table + _COPY_ENTRY + len(text).to_bytes(4) + text
        return write_content_header(len(self.body), self.properties, table)


@value(kw_only=True)
class Incoming:
    """The content of a content header and a body."""

    message: Message
    copy: CopyId | None  # None: of another producer
    delivery_count: int | None  # failed deliveries, if the queue counts them


def prepare(message: Message) -> Outgoing:
    """
    The message in AMQP 0-9-1.

    Raises:
        MessageError: AMQP can't express a field; the text names the section.
    """
    if message.content_header is not None:
        return _prepare_given(message, message.content_header)
    try:
        properties, rest = _properties_and_rest(message)
        headers = {name: each for name, each in message.properties.items() if _fits(name, each)}
        table = b"".join([write_entry(name, each) for name, each in headers.items()])
        if len(table) > _MAX_TABLE:
            headers, table = {}, b""
        if message.durable is not None:
            table += write_entry(DURABLE, message.durable)
        body: Any = message.body
        if type(body) is bytes and not rest and len(headers) == len(message.properties):
            return Outgoing(properties, table, body)
        misfits = {name: each for name, each in message.properties.items() if name not in headers}
        left = Message(properties=misfits, **rest)
        if type(body) is bytes:
            encoded = encode_message(left)
            if len(encoded) <= _MAX_TABLE:
                return Outgoing(properties, table + write_entry(REST, encoded), body)
        table += write_entry(BODY, True)
        return Outgoing(properties, table, encode_message(attrs.evolve(left, body=body)))
    except UnicodeEncodeError as error:
        raise MessageError(
            f"the message has a text that UTF-8 can't express: {error.reason}"
        ) from error


def message_as_given(header: bytes, body: bytes, publish_method: bytes | None = None) -> Message:
    """
    A message with that content header, and that `basic.publish` to an exchange, as data; and with
    the life that the header gives it.

    Raises:
        MessageError: the header is malformed.
    """
    properties = read_content_header(header)
    return Message(
        message_id=properties.get("message_id"),
        content_header=header,
        publish_method=publish_method,
        time_to_live=_time_to_live(properties.get("expiration")),
        body=body,
    )


def refusal_of_properties(header: bytes, user: str) -> str:
    """
    The reason for which RabbitMQ closes the channel of a user who publishes with that content
    header; empty: it takes it, or the header is malformed. A channel of the pair's would be closed
    by it, with what others have under way on it.
    """
    try:
        properties = read_content_header(header)
    except MessageError:
        return ""
    expiration, owner = properties.get("expiration"), properties.get("user_id", user)
    life = _time_to_live(expiration)
    if expiration is not None and (life is None or life > _MAX_EXPIRATION * _MILLISECOND):
        return f"invalid expiration '{expiration}'"
    if owner != user:
        return f"user_id property set to '{owner}' but authenticated user was '{user}'"
    headers = properties.get("headers", {})
    odd = [name for name in _ROUTES.intersection(headers) if not isinstance(headers[name], list)]
    return f"invalid message: the header {odd[0]} isn't an array" if odd else ""


def _prepare_given(message: Message, header: bytes) -> Outgoing:
    body = message.body
    if not isinstance(body, bytes):
        raise MessageError("a body of bytes expected with a content header of AMQP 0-9-1")
    properties, table = split_content_header(header)
    properties.pop("expiration", None)
    _place_time_to_live(message.time_to_live, properties, {})
    if (user := properties.pop("user_id", None)) is not None:
        table += write_entry(USER_ID, user)
    return Outgoing(properties, table, body, message.publish_method)


def read(header: bytes, body: bytes, *, is_dead_letter: bool = False) -> Incoming:
    """
    The message of a delivery, from any producer.

    A message that can't be decoded keeps its body, and has the reason as `x-pairgate-unreadable`.
    """
    try:
        properties = read_content_header(header)
        headers = properties.get("headers", {})
        copy, count = _copy_of(headers.pop(COPY, None)), headers.get(DELIVERY_COUNT)
        message = _read(properties, headers, body, is_dead_letter=is_dead_letter)
    except MessageError as error:
        broken = Message(body=body, properties={UNREADABLE: str(error)})
        return Incoming(message=broken, copy=None, delivery_count=None)
    return Incoming(
        message=message, copy=copy, delivery_count=count if isinstance(count, int) else None
    )


def copy_in(header: bytes) -> CopyId | None:
    """The id of a copy that the broker has returned."""
    try:
        return _copy_of(read_content_header(header).get("headers", {}).get(COPY))
    except MessageError:
        return None


_NOTHING: Final = Message()
_REST_FIELDS: Final = (
    "to",
    "session_id",
    "reply_to_session_id",
    "user_id",
    "absolute_expiry",
    "group_sequence",
    "partition_key",
    "scheduled",
    "annotations",
    "footer",
)


_texts_but_id_of: Final = attrgetter(*[field for field in _TEXTS if field != "message_id"])
_NO_TEXTS: Final = _texts_but_id_of(_NOTHING)
_rest_of: Final = attrgetter(*_REST_FIELDS)
_NO_REST: Final = _rest_of(_NOTHING)


def _properties_and_rest(message: Message) -> tuple[dict[str, Any], dict[str, Value]]:
    """The fields that AMQP 0-9-1 has, and the message with all others."""
    properties: dict[str, Any] = {"delivery_mode": _PERSISTENT}
    values = _rest_of(message)
    rest: dict[str, Value] = {}
    if values != _NO_REST:
        rest.update(zip(_REST_FIELDS, values, strict=True))
    only_id = _texts_but_id_of(message) == _NO_TEXTS  # as in most messages
    for field, name in (("message_id", "message_id"),) if only_id else _TEXTS.items():
        value = getattr(message, field)
        if value is not None:
            fits = _fits_text(field, value)
            (properties if fits else rest)[name if fits else field] = value
    if message.creation_time is not None:
        seconds = _whole_seconds(message.creation_time)
        if seconds is None:
            rest["creation_time"] = message.creation_time
        else:
            properties["timestamp"] = seconds
    if message.priority is not None:
        fits = 0 <= message.priority <= 255
        (properties if fits else rest)["priority"] = message.priority
    _place_time_to_live(message.time_to_live, properties, rest)
    return properties, rest


def _place_time_to_live(
    ttl: timedelta | None, properties: dict[str, Any], rest: dict[str, Value]
) -> None:
    if ttl is None:
        return
    milliseconds = ttl // _MILLISECOND
    if 0 <= milliseconds <= _MAX_EXPIRATION:
        properties["expiration"] = str(milliseconds)
    else:
        rest["time_to_live"] = ttl


def _fits_text(field: str, value: Value) -> bool:
    return type(value) is str and fits_short(value) and (field not in _ASCII or value.isascii())


def _fits(name: str, value: Value) -> bool:
    if name in _ROUTES or not name or (name[:2] in {"x-", "X-"} and name not in RESERVED):
        return False
    return fits_short(name) and fits_table(value)


def _whole_seconds(moment: Value) -> int | None:
    if not isinstance(moment, datetime) or moment.microsecond or moment < _EPOCH:
        return None
    return (moment - _EPOCH) // timedelta(seconds=1)


def _read(
    properties: dict[str, Any], headers: dict[str, Any], body: bytes, *, is_dead_letter: bool
) -> Message:
    if _RARE_HEADERS.isdisjoint(headers) and _RARE.isdisjoint(properties):  # as nearly always
        return Message(
            message_id=properties.get("message_id"),
            correlation_id=properties.get("correlation_id"),
            reply_to=properties.get("reply_to"),
            subject=properties.get("type"),
            priority=properties.get("priority"),
            properties=headers,
            body=body,
        )
    return _read_any(properties, headers, body, is_dead_letter=is_dead_letter)


def _read_any(
    properties: dict[str, Any], headers: dict[str, Any], body: bytes, *, is_dead_letter: bool
) -> Message:
    encoded, is_whole = body if headers.get(BODY) else headers.get(REST), bool(headers.get(BODY))
    rest = decode_message(encoded) if isinstance(encoded, bytes) else _NOTHING
    found: dict[str, Any] = {}
    for name, each in properties.items():
        field = _FIELDS.get(name)
        if field is not None and (field not in _ASCII or each.isascii()):
            found[field] = each
    if "timestamp" in properties:
        found["creation_time"] = _date_of(properties["timestamp"])
    if isinstance(headers.get(DURABLE), bool):
        found["durable"] = headers[DURABLE]
    ttl = _time_to_live(properties.get("expiration"))
    if ttl is not None:
        found["time_to_live"] = ttl
    if not _OTHERS.isdisjoint(properties):
        found.update(_of_others(properties, rest))
    application = _application_properties(headers, rest, is_dead_letter=is_dead_letter)
    if rest is _NOTHING:
        return Message(**found, properties=application, body=body)
    found["body"] = rest.body if is_whole else body
    return attrs.evolve(rest, **found, properties=application, encoded=())


def _application_properties(
    headers: dict[str, Any], rest: Message, *, is_dead_letter: bool
) -> dict[str, Value]:
    if not _OF_BROKER.isdisjoint(headers):
        headers = {name: each for name, each in headers.items() if name not in _OF_BROKER}
    reason = headers.get(_DEATH_REASON)
    if _DEATH_REASON in headers:  # the broker sets the others with it
        headers = {name: each for name, each in headers.items() if not name.startswith(_OF_DEATH)}
    headers.update(rest.properties)
    if is_dead_letter and isinstance(reason, str):
        headers.setdefault(DEAD_LETTER_REASON, _REASONS.get(reason, reason))
    return headers


def _of_others(properties: dict[str, Any], rest: Message) -> Iterator[tuple[str, Any]]:
    """The fields for properties that only other clients set: user id, and annotations."""
    if "user_id" in properties:
        yield "user_id", properties["user_id"].encode()
    names = [name for name in _ASCII if not properties.get(name, "").isascii()]
    names += ["app_id"] if "app_id" in properties else []
    if names:
        added = {f"x-{name.replace('_', '-')}": properties[name] for name in names}
        yield "annotations", {**rest.annotations, **added}


@lru_cache(maxsize=1024)  # messages that were sent together have the same
def _date_of_milliseconds(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND


def _date_of(seconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _time_to_live(text: str | None) -> timedelta | None:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 10:
        return None
    return int(text) * _MILLISECOND


def _copy_of(text: Any) -> CopyId | None:
    if not isinstance(text, str):
        return None
    sent, _, rest = text.partition("-")
    tag, _, channel = rest.partition("-")
    if not (sent.isdecimal() and tag.isdecimal() and text.isascii() and len(text) <= 100):
        return None
    milliseconds = int(sent)
    return None if milliseconds >= _MAX_SENT else CopyId(milliseconds, int(tag), channel)
