"""
The fast way to write and read plain messages: a header, properties that are short texts,
application properties, and one data section. Most messages of most producers are plain.
`wire/amqp/message.py` writes and reads every message, with the same results for these.
"""

import struct
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from gateway.domain.errors import MessageError
from gateway.domain.message import EncodedSection, Message, Value
from gateway.wire.amqp.decoding import DECODERS
from gateway.wire.amqp.messages import fields
from gateway.wire.amqp.messages.sections import (
    APPLICATION_PROPERTIES,
    HEADER,
    PROPERTIES,
    split_sections,
)

SHORT: Final = 64 * 1024  # bytes: a longer message isn't kept in memory twice

HEADER_START: Final = b"\x00\x53\x70\xc0"
_PROPERTIES_START: Final = b"\x00\x53\x73\xc0"
_PROPERTIES_CODE: Final = b"\x00\x53\x73"
_APPLICATION_CODE: Final = b"\x00\x53\x74"
_APPLICATION_START: Final = b"\x00\x53\x74\xc1"
_SMALL_DATA: Final = b"\x00\x53\x75\xa0"
_LARGE_DATA: Final = b"\x00\x53\x75\xb0"
_SMALL: Final = 256  # bytes: the size of a longer body takes four bytes
# Constructors of primitive types (part 1, 1.6).
_NULL: Final = 0x40
_STRING: Final = 0xA1
_SYMBOL: Final = 0xA3
_TEXTS: Final = frozenset((0, 2, 3, 4, 5, 10, 12))  # places of the properties that may be strings
_SYMBOLS: Final = frozenset((6, 7))  # content type and content encoding
_MOST_FIELDS: Final = len(fields.NO_PROPERTIES)

_properties_of = attrgetter(
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry",
    "creation_time",
    "session_id",
    "group_sequence",
    "reply_to_session_id",
)
_others_of = attrgetter(
    "encoded",
    "durable",
    "priority",
    "time_to_live",
    "scheduled",
    "partition_key",
    "annotations",
    "footer",
)
_NO_OTHERS: Final[tuple[Any, ...]] = ((), None, None, None, None, None, {}, {})
# The errors of bytes that end too early, or have another form.
UNREADABLE: Final = (LookupError, ValueError, TypeError, struct.error, MessageError)


def properties_of(message: Message) -> tuple[Any, ...]:
    """The values of the properties section, in its order."""
    values: tuple[Any, ...] = _properties_of(message)
    return values


def write_plain(message: Message) -> tuple[bytes, ...] | None:
    """
    The encoded message in pieces, as `Message.written`; None: the message isn't plain, or was
    received.

    Raises:
        MessageError: AMQP can't express a property; the text names the section.
    """
    body = message.body
    if type(body) is not bytes or _others_of(message) != _NO_OTHERS:
        return None
    parts = [b""]
    values, size = properties_of(message), len(body)
    name = "properties"
    try:
        if values != fields.NO_PROPERTIES:
            parts.append(_PROPERTIES_CODE + fields.write_properties(values))
        if message.properties:
            name = "application-properties"
            written = fields.write_application_properties(message.properties)
            parts.append(_APPLICATION_CODE + written)
    except MessageError as error:
        raise MessageError(f"{name}: {error}") from error
    parts.append(_SMALL_DATA + bytes((size,)) if size < _SMALL else _LARGE_DATA + size.to_bytes(4))
    parts.append(body)
    return tuple(parts)


def read_plain(data: bytes) -> Message | None:
    """The message in these bytes; None: it isn't plain, or malformed."""
    encoded: list[EncodedSection] = []
    header: tuple[Any, ...] = fields.NO_HEADER
    texts: tuple[Any, ...] = fields.NO_PROPERTIES
    properties: dict[Value, Value] = {}
    try:
        bare_at = at = end_of_short(data, HEADER_START, 0)
        if at:
            header = _read_header(data[:at])
            encoded.append(EncodedSection(HEADER, data[:at], header))
        end = end_of_short(data, _PROPERTIES_START, at)
        if end > at:
            texts = _read_texts(data, at + 5, end)
            encoded.append(EncodedSection(PROPERTIES, data[at:end], texts))
            at = end
        end = end_of_short(data, _APPLICATION_START, at)
        if end > at:
            properties, _ = DECODERS[0xC1](data, at + 4, 0)
            fields.check_names(properties)
            encoded.append(EncodedSection(APPLICATION_PROPERTIES, data[at:end], properties))
        body = _read_body(data, end)
    except UNREADABLE:
        return None
    message = Message(
        message_id=texts[0],
        to=texts[2],
        subject=texts[3],
        reply_to=texts[4],
        correlation_id=texts[5],
        content_type=texts[6],
        content_encoding=texts[7],
        session_id=texts[10],
        reply_to_session_id=texts[12],
        body=body,
        properties=properties,
        durable=header[0],
        priority=header[1],
        time_to_live=header[2],
        encoded=tuple(encoded),
    )
    if len(data) <= SHORT:  # an unchanged message is written as it was read
        cache_encoding(message, (data[:bare_at], data[bare_at:]))
    return message


def cache_encoding(message: Message, parts: tuple[bytes, ...]) -> None:
    """
    Cache the encoding. This is the only exception to "never changed": it has no visible effect, and
    `attrs.evolve` drops it.
    """
    object.__setattr__(message, "written", parts)


def end_of_short(data: bytes, start: bytes, at: int) -> int:
    """The end of the section at that position, if it has that start and a short value; or `at`."""
    return at + 5 + data[at + 4] if data.startswith(start, at) else at


def _read_texts(data: bytes, at: int, end: int) -> tuple[Any, ...]:
    """
    The properties in the list whose count is at that position.

    Raises:
        ValueError: not all of them are texts.
    """
    count = data[at]
    at += 1
    values: list[str | None] = []
    for place in range(count):
        code = data[at]
        if code == _NULL:
            at += 1
            values.append(None)
            continue
        start = at + 2
        at = start + data[at + 1]
        if code == _STRING and place in _TEXTS:
            values.append(data[start:at].decode())
        elif code == _SYMBOL and place in _SYMBOLS:
            values.append(data[start:at].decode("ascii"))
        else:
            raise ValueError("a field that is no text")
    if at != end or count > _MOST_FIELDS:
        raise ValueError("a list of another size")
    return (*values, *fields.NO_PROPERTIES[count:])


def _read_body(data: bytes, at: int) -> bytes:
    """
    The data section that begins there.

    Raises:
        ValueError: it isn't the last section, or has another size than `write_plain` would write.
    """
    start = 0
    if data.startswith(_LARGE_DATA, at):
        start = at + 8
        size = int.from_bytes(data[at + 4 : start])
    elif data.startswith(_SMALL_DATA, at):
        start = at + 5
        size = data[at + 4]
    if not start or start + size != len(data) or (size < _SMALL) is not (start == at + 5):
        raise ValueError("no plain body")
    return data[start:]


@lru_cache(maxsize=256)
def _read_header(raw: bytes) -> tuple[Any, ...]:
    """The values of that header. Most headers of a producer are equal."""
    [(_, _, _, values)] = split_sections(raw)
    return fields.read_header(values)
