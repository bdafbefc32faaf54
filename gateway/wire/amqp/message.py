"""
Encodes and decodes messages (AMQP 1.0, part 3, section 3.2).

Sections that weren't changed are sent byte for byte as received: `Message.encoded` keeps each
section's bytes, and they are written again as long as the message still has the same values.
Delivery annotations are for one hop only (3.2.2): they are read in any position, and dropped. A
footer is read in any position, and written at the end.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter, is_
from typing import Any, Final

import attrs

from gateway.domain.errors import MessageError
from gateway.domain.message import (
    Body,
    DataBody,
    Described,
    EncodedSection,
    Kind,
    Message,
    SequenceBody,
    Typed,
    Value,
    ValueBody,
)
from gateway.wire.amqp.messages import fields
from gateway.wire.amqp.messages.plain import (
    SHORT,
    cache_encoding,
    properties_of,
    read_plain,
    write_plain,
)
from gateway.wire.amqp.messages.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Section,
    section_name,
    split_sections,
)
from gateway.wire.amqp.types import (
    MAX_DEPTH,
    encode,
    encode_entries,
    from_milliseconds,
    to_milliseconds,
)

_BODY: Final = DATA  # the key of a body's sections in `Message.encoded`

_FLAT: Final = frozenset({str, int, float, bool, bytes, datetime, type(None)})
_SHORT_HEADER: Final = 32  # bytes: a longer one isn't remembered

_MAX_TTL: Final = 2**32 - 1  # milliseconds, the maximum in a header: 49.7 days
BEYOND_HEADER: Final = timedelta(milliseconds=_MAX_TTL + 1)
_FAR: Final = 253_402_214_400_000  # 9999-12-31: the expiry of a message without a creation time


def encode_message(message: Message) -> bytes:
    """
    The encoded message; sections that weren't changed are as received.

    The time to live is truncated to milliseconds. A time to live of more than 2^32-1 ms is
    expressed as the SDKs of Service Bus do: the header has the maximum, and the difference between
    absolute-expiry-time and creation-time counts. The SDKs take the current time for a missing
    creation time; here the creation time is chosen so that the expiry is at the end of the year
    9999, and decoding removes it. A producer's own absolute expiry stays.

    Raises:
        MessageError: AMQP can't express a field; the text names the section.
    """
    return b"".join(_parts(message))


def bare_parts(message: Message) -> tuple[bytes, ...]:
    """
    The encoded message without header and message annotations, which a broker writes itself.

    Raises:
        MessageError: as `encode_message`.
    """
    return _parts(message)[1:]


def encoded_size(message: Message) -> int:
    """The number of bytes of `encode_message`, without copying the body. Raises as it does."""
    return sum(map(len, _parts(message)))


def encode_sorted(value: Value) -> bytes:
    """
    The bytes of a section's value, equal for equal values.

    The keys of maps are sorted at every depth: a codec or broker that keeps types and reorders keys
    changes no byte.

    Raises:
        MessageError: AMQP can't express the value.
    """
    if type(value) is dict and _FLAT.issuperset(map(type, value.values())):
        # As most application properties are: written at once.
        entries = sorted([(encode(_sorted(key, 1)), encode(each)) for key, each in value.items()])
        return encode_entries([piece for entry in entries for piece in entry])
    return encode(_sorted(value, 0))


def decode_message(data: bytes) -> Message:
    """
    The message in `data`. Without a body section, the body is empty.

    If absolute-expiry-time and creation-time are further apart than a header can express, and the
    header says its maximum or the rest, their difference is the time to live, and `absolute_expiry`
    is None.

    Raises:
        MessageError: the data isn't a message; the text names the section and the position.
    """
    return read_plain(data) or decode_by_sections(data)


def decode_by_sections(data: bytes) -> Message:
    """Any message, as `decode_message`."""
    values: dict[int, Any] = {}
    encoded: list[EncodedSection] = []
    body_sections: list[Section] = []
    size = bare_at = end = 0
    for section in split_sections(data):
        code, start, end, value = section
        size += end - start
        if code < PROPERTIES:
            bare_at = end
        if DATA <= code <= VALUE:
            body_sections.append(section)
        else:
            raw = data[start:end]
            values[code] = value = _read(code, value, raw)
            encoded.append(EncodedSection(code, raw, value))
    durable, priority, ttl = values.get(HEADER, fields.NO_HEADER)
    properties = values.get(PROPERTIES, fields.NO_PROPERTIES)
    expiry, creation = properties[8], properties[9]
    if ttl is not None and expiry is not None and creation is not None:
        ttl, expiry, creation = _long_life(ttl, expiry, creation)
        encoded[0] = attrs.evolve(encoded[0], value=(durable, priority, ttl))
    scheduled, partition_key, annotations = values.get(MESSAGE_ANNOTATIONS, (None, None, {}))
    body, of_body = _read_body(data, body_sections)
    encoded += of_body
    message = Message(
        message_id=properties[0],
        user_id=properties[1],
        to=properties[2],
        subject=properties[3],
        reply_to=properties[4],
        correlation_id=properties[5],
        content_type=properties[6],
        content_encoding=properties[7],
        absolute_expiry=expiry,
        creation_time=creation,
        session_id=properties[10],
        group_sequence=properties[11],
        reply_to_session_id=properties[12],
        body=body,
        properties=values.get(APPLICATION_PROPERTIES, {}),
        time_to_live=ttl,
        durable=durable,
        priority=priority,
        scheduled=scheduled,
        partition_key=partition_key,
        annotations=annotations,
        footer=values.get(FOOTER, {}),
        encoded=tuple(encoded),
    )
    # An unchanged message is written as it was read, unless its footer came early.
    if size == end == len(data) <= SHORT:
        cache_encoding(message, (data[:bare_at], data[bare_at:]))
    return message


# The sections


def _properties_with_expiry(message: Message) -> tuple[Any, ...]:
    values = properties_of(message)
    ttl = message.time_to_live
    if ttl is None or ttl < BEYOND_HEADER or message.absolute_expiry is not None:
        return values
    if not isinstance(message.creation_time, datetime | Typed | None):
        return values  # refused later, as it is without a time to live
    milliseconds = ttl // fields.MILLISECOND
    creation = message.creation_time
    if creation is None:
        creation = from_milliseconds(_FAR - milliseconds)
    expiry = from_milliseconds(_milliseconds(creation) + milliseconds)
    return (*values[:8], expiry, creation, *values[10:])


def _long_life(ttl: timedelta, expiry: Value, creation: Value) -> tuple[timedelta, Value, Value]:
    """Undo `_properties_with_expiry`: the time to live, absolute expiry and creation time."""
    expires = _milliseconds(expiry)
    apart = expires - _milliseconds(creation)
    said = ttl // fields.MILLISECOND
    # The full header, or the lower 32 bits of the legacy .NET client, but for the dates' rounding.
    cut = said == _MAX_TTL or (apart - said + 1) % (_MAX_TTL + 1) <= 2
    if apart <= _MAX_TTL or not cut or apart > timedelta.max // fields.MILLISECOND:
        return ttl, expiry, creation
    return timedelta(milliseconds=apart), None, None if expires == _FAR else creation


def _milliseconds(moment: datetime | Typed) -> int:
    return moment.value if isinstance(moment, Typed) else to_milliseconds(moment)


@attrs.frozen
class _SectionCodec:
    """
    The values of one section, with their writer and reader; a section equal to `nothing` is
    omitted.
    """

    nothing: Any
    of: Callable[[Message], Any]
    write: Callable[[Any], bytes]
    read: Callable[[Any], Any]


_CODECS: Final = {
    HEADER: _SectionCodec(
        fields.NO_HEADER,
        attrgetter("durable", "priority", "time_to_live"),
        fields.write_header,
        fields.read_header,
    ),
    MESSAGE_ANNOTATIONS: _SectionCodec(
        (None, None, {}),
        attrgetter("scheduled", "partition_key", "annotations"),
        fields.write_message_annotations,
        fields.read_message_annotations,
    ),
    PROPERTIES: _SectionCodec(
        fields.NO_PROPERTIES,
        _properties_with_expiry,
        fields.write_properties,
        fields.read_properties,
    ),
    APPLICATION_PROPERTIES: _SectionCodec(
        {},
        attrgetter("properties"),
        fields.write_application_properties,
        fields.read_application_properties,
    ),
    FOOTER: _SectionCodec(
        {}, attrgetter("footer"), fields.write_annotations, fields.read_annotations
    ),
}


def _read(code: int, value: Value, raw: bytes) -> Any:
    """The values of the section that holds `value` and has these bytes."""
    if code == HEADER and len(raw) <= _SHORT_HEADER:
        return _read_header(raw)
    return _read_value(code, value)


@lru_cache(maxsize=256)
def _read_header(raw: bytes) -> Any:
    """Most messages of a producer have the same header."""
    [(code, _, _, value)] = split_sections(raw)
    return _read_value(code, value)


def _read_value(code: int, value: Value) -> Any:
    try:
        return _CODECS[code].read(value)
    except MessageError as error:
        raise MessageError(f"{section_name(code)}: {error}") from error


def _write(code: int, value: Any) -> bytes:
    """The section with its descriptor; empty if the section would be empty."""
    codec = _CODECS[code]
    if value == codec.nothing:
        return b""
    try:
        content = codec.write(value)
    except MessageError as error:
        raise MessageError(f"{section_name(code)}: {error}") from error
    return _start(code) + content


def _start(code: int) -> bytes:
    return bytes((0x00, 0x53, code))


def _parts(message: Message) -> tuple[bytes, ...]:
    """The encoded message in pieces: header and message annotations, then the bare message."""
    if message.written is None:
        cache_encoding(message, write_plain(message) or write_by_sections(message))
    assert message.written is not None
    return message.written


def write_by_sections(message: Message) -> tuple[bytes, ...]:
    """
    Any encoded message, as `Message.written`.

    The body is a piece of its own, which isn't copied. The footer counts as part of the bare
    message.

    Raises:
        MessageError: as `encode_message`.
    """
    kept = {section.code: section for section in message.encoded}
    parts = [b"".join(_sections(message, kept, (HEADER, MESSAGE_ANNOTATIONS)))]
    parts += _sections(message, kept, (PROPERTIES, APPLICATION_PROPERTIES))
    parts += _body_parts(message.body, kept.get(_BODY))
    if message.footer or FOOTER in kept:
        parts.append(_section(FOOTER, message.footer, kept.get(FOOTER)))
    return tuple(parts)


def _sections(
    message: Message, kept: dict[int, EncodedSection], codes: tuple[int, ...]
) -> list[bytes]:
    parts = []
    for code in codes:
        codec, section = _CODECS[code], kept.get(code)
        value = codec.of(message)
        if section is not None or value != codec.nothing:
            parts.append(_section(code, value, section))
    return parts


def _section(code: int, value: Any, kept: EncodedSection | None) -> bytes:
    if kept is None:
        return _write(code, value)
    if _is_same(value, kept.value):
        return kept.raw
    # Python's == treats 1, 1.0 and true as equal. Their encodings differ.
    written = _write(code, value)
    return kept.raw if written == _write(code, kept.value) else written


def _is_same(one: Any, other: Any) -> bool:
    """True if both are the very same objects, as they are in an unchanged message."""
    return one is other or (type(one) is type(other) is tuple and all(map(is_, one, other)))


def _sorted(value: Value, depth: int) -> Value:
    """The value with the keys of its maps in the order of their encodings."""
    if depth > MAX_DEPTH:
        raise MessageError(f"nested deeper than {MAX_DEPTH}")
    if type(value) is str:  # the most frequent type
        return value
    match value:
        case dict():
            entries = sorted(value.items(), key=lambda entry: encode(_sorted(entry[0], depth + 1)))
            return {key: _sorted(each, depth + 1) for key, each in entries}
        case list():
            return [_sorted(each, depth + 1) for each in value]
        case Described():
            return Described(value.descriptor, _sorted(value.value, depth + 1))
        case Typed(kind=Kind.ARRAY):
            return Typed(Kind.ARRAY, tuple(_sorted(each, depth + 1) for each in value.value))
    return value


# The body


def _body_parts(body: Body, kept: EncodedSection | None) -> list[bytes]:
    if kept is not None and body is kept.value:
        return [kept.raw]
    written = _write_body(body)
    if kept is not None and written == _write_body(kept.value):
        return [kept.raw]
    return written


def _write_body(body: Body) -> list[bytes]:
    try:
        return _body_pieces(body)
    except MessageError as error:
        raise MessageError(f"body: {error}") from error


def _body_pieces(body: Body) -> list[bytes]:
    match body:
        case bytes():
            return [_data_prefix(len(body)), body]
        case DataBody(parts) if parts:
            return [piece for part in parts for piece in (_data_prefix(len(part)), part)]
        case SequenceBody(sequences) if sequences:
            return [_start(SEQUENCE) + encode(list(sequence)) for sequence in sequences]
        case ValueBody(value):
            return [_start(VALUE) + encode(value)]
    raise MessageError(f"a {type(body).__name__} without any section")


def _data_prefix(size: int) -> bytes:
    if size < 256:
        return bytes((0x00, 0x53, DATA, 0xA0, size))
    return b"\x00\x53\x75\xb0" + size.to_bytes(4)


def _read_body(data: bytes, sections: list[Section]) -> tuple[Body, list[EncodedSection]]:
    """The body, and its bytes as received if encoding it would give others."""
    if not sections:
        return b"", [EncodedSection(_BODY, b"", b"")]
    code, start, end, value = sections[0]
    if len(sections) == 1 and code == DATA:
        body: Body = value
        if end - start == len(value) + (5 if len(value) < 256 else 8):
            return body, []  # of all descriptors and sizes, only `_data_prefix` is that short
    else:
        body = _body_of(code, [value for _, _, _, value in sections])
    raw = b"".join([data[start:end] for _, start, end, _ in sections])
    return body, [EncodedSection(_BODY, raw, body)]


def _body_of(code: int, values: list[Value]) -> Body:
    if code == VALUE:
        return ValueBody(values[0])
    if code == SEQUENCE:
        return SequenceBody(tuple(tuple(value) for value in values))
    return DataBody(tuple(values))
