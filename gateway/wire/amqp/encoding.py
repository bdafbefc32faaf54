"""Encodes AMQP 1.0 values: the writing half of `gateway.wire.amqp.types`."""

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from gateway.domain.errors import MessageError
from gateway.domain.message import Described, Kind, Typed, Value
from gateway.wire.amqp.decoding import MAX_DEPTH, MAX_ZERO_WIDTH

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Encoder = Callable[[Any, int], bytes]  # (value, depth)

_u32 = struct.Struct(">I")
_size_and_count = struct.Struct(">II")


def encode(value: Value) -> bytes:
    """
    The shortest encoding of `value`. Timestamps are truncated to milliseconds.

    Raises:
        MessageError: AMQP can't express the value; the text names the type.
    """
    return _encode(value, 0)


def encode_fields(fields: list[bytes]) -> bytes:
    """A composite type's list of encoded fields, without trailing nulls (part 1, 1.4)."""
    while fields and fields[-1] == b"\x40":
        fields.pop()
    return _compound(0xC0, len(fields), b"".join(fields)) if fields else b"\x45"


def encode_entries(pieces: list[bytes]) -> bytes:
    """The map of these keys and values, which are already encoded and alternate."""
    return _compound(0xC1, len(pieces), b"".join(pieces))


def to_milliseconds(moment: datetime) -> int:
    """
    Milliseconds since 1970, truncated.

    Raises:
        MessageError: the date has no time zone.
    """
    if moment.tzinfo is None:
        raise MessageError("a timestamp needs a time zone")
    since = moment - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def _encode(value: Value, depth: int) -> bytes:
    encoder = _ENCODERS.get(type(value)) or _encoder_of_base(value)
    return encoder(value, depth)


def _encoder_of_base(value: Value) -> _Encoder:
    for base in type(value).__mro__:
        if base in _ENCODERS:
            return _ENCODERS[base]
    raise MessageError(f"AMQP has no type for {type(value).__name__}")


def _sized(code: int) -> Callable[[bytes], bytes]:
    """Encodes binary, string or symbol: the type code with a size of 1 byte or of 4."""
    short = tuple(bytes((code, size)) for size in range(256))
    long = bytes((code | 0x10,))

    def encode_sized(raw: bytes) -> bytes:
        size = len(raw)
        return short[size] + raw if size < 256 else long + _u32.pack(size) + raw

    return encode_sized


_binary = _sized(0xA0)
_string = _sized(0xA1)
_symbolic = _sized(0xA3)


def _encode_string(text: str, _: int) -> bytes:
    try:
        return _string(text.encode())
    except UnicodeEncodeError as error:
        raise MessageError("a string with half a surrogate pair") from error


def _packed(code: int, layout: str) -> Callable[[Any], bytes]:
    pack = struct.Struct(">B" + layout).pack
    return lambda value: pack(code, value)


_long = _packed(0x81, "q")
_double = _packed(0x82, "d")
_timestamp = _packed(0x83, "q")


def _encode_long(value: int, _: int) -> bytes:
    if -128 <= value < 128:
        return bytes((0x55, value & 0xFF))
    try:
        return _long(value)
    except struct.error as error:
        raise MessageError("an integer beyond 64 bits") from error


def _compound(code: int, count: int, content: bytes) -> bytes:
    size = len(content)
    if size < 255 and count < 256:
        return bytes((code, size + 1, count)) + content
    return bytes((code | 0x10,)) + _size_and_count.pack(size + 4, count) + content


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise MessageError(f"nested deeper than {MAX_DEPTH}")


def _encode_list(items: list[Value], depth: int) -> bytes:
    _check_depth(depth)
    if not items:
        return b"\x45"
    return _compound(0xC0, len(items), b"".join([_encode(item, depth + 1) for item in items]))


def _encode_map(entries: dict[Value, Value], depth: int) -> bytes:
    _check_depth(depth)
    parts = [_encode(each, depth + 1) for entry in entries.items() for each in entry]
    return _compound(0xC1, len(parts), b"".join(parts))


def _encode_described(value: Described, depth: int) -> bytes:
    _check_depth(depth)
    return b"\0" + _encode(value.descriptor, depth + 1) + _encode(value.value, depth + 1)


def _encode_array(items: tuple[Value, ...], depth: int) -> bytes:
    _check_depth(depth)
    if not items:
        return b"\xe0\x02\x00\x40"
    elements = [_split_described(item, depth + 1) for item in items]
    wide = any(encoded[0] >= 0xB0 and encoded[0] & 0x10 for _, encoded in elements)
    constructors, payloads = set(), []
    for descriptors, encoded in elements:
        code, payload = _element(encoded, wide)
        constructors.add(descriptors + bytes((code,)))
        payloads.append(payload)
    if len(constructors) > 1:
        raise MessageError("an array's elements must be of one type")
    if len(items) > MAX_ZERO_WIDTH and not payloads[0]:
        raise MessageError(f"an array of more than {MAX_ZERO_WIDTH} nulls")
    return _compound(0xE0, len(items), constructors.pop() + b"".join(payloads))


def _split_described(value: Value, depth: int) -> tuple[bytes, bytes]:
    """The encoded descriptors around a value, and the encoded value inside of them."""
    descriptors = b""
    while isinstance(value, Described):
        _check_depth(depth)
        depth += 1
        descriptors += b"\0" + _encode(value.descriptor, depth)
        value = value.value
    return descriptors, _encode(value, depth)


# Encodings that have the value in the type code, or in fewer bytes than the type: an array has one
# type code for all of its elements.
_IN_CODE: Final = {
    0x41: (0x56, b"\1"),
    0x42: (0x56, b"\0"),
    0x43: (0x70, bytes(4)),
    0x44: (0x80, bytes(8)),
    0x45: (0xC0, b"\1\0"),
}
_IN_ONE_BYTE: Final = {0x52: (0x70, 4), 0x53: (0x80, 8), 0x54: (0x71, 4), 0x55: (0x81, 8)}


def _element(encoded: bytes, wide: bool) -> tuple[int, bytes]:
    """The type code and payload of a value in an array; `wide`: with a size of 4 bytes."""
    code = encoded[0]
    payload = encoded[1:]
    if code in _IN_ONE_BYTE:
        code, width = _IN_ONE_BYTE[code]
        signed = code & 1 == 1
        return code, int.from_bytes(payload, signed=signed).to_bytes(width, signed=signed)
    code, payload = _IN_CODE.get(code, (code, payload))
    if not wide or code < 0xA0 or code & 0x10:
        return code, payload
    if code < 0xC0:
        return code | 0x10, _u32.pack(payload[0]) + payload[1:]
    return code | 0x10, _size_and_count.pack(payload[0] + 3, payload[1]) + payload[2:]


def _encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if 0 < value < 256 else struct.pack(">BI", 0x70, value)


def _encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if 0 < value < 256 else struct.pack(">BQ", 0x80, value)


def _encode_int(value: int) -> bytes:
    small = -128 <= value < 128
    return bytes((0x54, value & 0xFF)) if small else struct.pack(">Bi", 0x71, value)


def _opaque(code: int, size: int) -> Callable[[bytes], bytes]:
    def encode_opaque(raw: bytes) -> bytes:
        if len(raw) != size:
            raise ValueError(f"{size} bytes, not {len(raw)}")
        return bytes((code,)) + raw

    return encode_opaque


_char = _opaque(0x73, 4)

_KINDS: Final[dict[Kind, Callable[[Any], bytes]]] = {
    Kind.UBYTE: _packed(0x50, "B"),
    Kind.USHORT: _packed(0x60, "H"),
    Kind.UINT: _encode_uint,
    Kind.ULONG: _encode_ulong,
    Kind.BYTE: _packed(0x51, "b"),
    Kind.SHORT: _packed(0x61, "h"),
    Kind.INT: _encode_int,
    Kind.FLOAT: _packed(0x72, "f"),
    Kind.DECIMAL32: _opaque(0x74, 4),
    Kind.DECIMAL64: _opaque(0x84, 8),
    Kind.DECIMAL128: _opaque(0x94, 16),
    Kind.CHAR: lambda text: _char(text.encode("utf-32-be")),
    Kind.SYMBOL: lambda text: _symbolic(text.encode("ascii")),
    Kind.TIMESTAMP: _timestamp,
}


def _encode_typed(typed: Typed, depth: int) -> bytes:
    if typed.kind is Kind.ARRAY:
        return _encode_array(typed.value, depth)
    try:
        return _KINDS[typed.kind](typed.value)
    except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise MessageError(f"no {typed.kind.value}: {error}") from error


_ENCODERS: Final[dict[type, _Encoder]] = {
    type(None): lambda _value, _depth: b"\x40",
    bool: lambda value, _: b"\x41" if value else b"\x42",
    int: _encode_long,
    float: lambda value, _: _double(value),
    str: _encode_string,
    bytes: lambda value, _: _binary(value),
    UUID: lambda value, _: b"\x98" + value.bytes,
    datetime: lambda value, _: _timestamp(to_milliseconds(value)),
    list: _encode_list,
    dict: _encode_map,
    Typed: _encode_typed,
    Described: _encode_described,
}
