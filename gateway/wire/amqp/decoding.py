"""Decodes AMQP 1.0 values: the reading half of `gateway.wire.amqp.types`."""

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from gateway.domain.errors import MessageError
from gateway.domain.message import Described, Kind, Typed, Value

MAX_DEPTH: Final = 32  # nesting depth of lists, maps, arrays and described values
MAX_ZERO_WIDTH: Final = 32  # elements of an array that take no byte each, such as null

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Decodes the bytes after a type code: (data, position, depth) -> the value, and the position after
# it.
_Decoder = Callable[[bytes, int, int], tuple[Value, int]]

_u32 = struct.Struct(">I")
_size_and_count = struct.Struct(">II")


def decode(data: bytes) -> Value:
    """
    Decode the single value in `data`.

    Raises:
        MessageError: the value is malformed, or bytes follow it; the text gives the position.
    """
    value, end = decode_at(data, 0)
    if end != len(data):
        raise MessageError(f"byte {end}: {len(data) - end} bytes follow the value")
    return value


def decode_at(data: bytes, at: int) -> tuple[Value, int]:
    """
    Decode the value at byte `at`; return it and the position after it.

    Raises:
        MessageError: there is no value; the text gives the position.
    """
    try:
        return DECODERS[data[at]](data, at + 1, 0)
    except (IndexError, struct.error) as error:
        raise MessageError(f"byte {at}: the value is cut off at byte {len(data)}") from error


def from_milliseconds(milliseconds: int) -> Value:
    """A UTC datetime, or Typed(TIMESTAMP, milliseconds) outside of the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return Typed(Kind.TIMESTAMP, milliseconds)


def _unknown(data: bytes, at: int, _: int) -> tuple[Value, int]:
    raise MessageError(f"byte {at - 1}: {data[at - 1]:#04x} starts no value")


def _constant(value: Value) -> _Decoder:
    return lambda _data, at, _depth: (value, at)


def _fixed(layout: str, convert: Callable[[Any], Value] | None = None) -> _Decoder:
    shape = struct.Struct(layout)
    size, unpack = shape.size, shape.unpack_from
    if convert is None:
        return lambda data, at, _: (unpack(data, at)[0], at + size)
    return lambda data, at, _: (convert(unpack(data, at)[0]), at + size)


def _typed(layout: str, kind: Kind) -> _Decoder:
    return _fixed(layout, lambda value: Typed(kind, value))


def _decode_boolean(data: bytes, at: int, _: int) -> tuple[Value, int]:
    if data[at] > 1:
        raise MessageError(f"byte {at}: {data[at]} is no boolean")
    return data[at] == 1, at + 1


def _decode_char(data: bytes, at: int, _: int) -> tuple[Value, int]:
    point = _u32.unpack_from(data, at)[0]
    if point > 0x10FFFF or 0xD800 <= point < 0xE000:
        raise MessageError(f"byte {at}: {point:#x} is no character")
    return Typed(Kind.CHAR, chr(point)), at + 4


def _symbol(raw: bytes) -> Typed:
    return Typed(Kind.SYMBOL, raw.decode("ascii"))


# Symbols come from small vocabularies. Only those of at most 255 bytes are cached.
_short_symbol = lru_cache(maxsize=1024)(_symbol)


def _decode_short_string(data: bytes, at: int, _: int) -> tuple[Value, int]:
    """As `_variable(1, bytes.decode)`, at half the cost: most of a message is short strings."""
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise _too_short(data, at, start, end)
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise _bad_text(start, error) from error


def _variable(width: int, convert: Callable[[bytes], Value]) -> _Decoder:
    def decode_variable(data: bytes, at: int, _: int) -> tuple[Value, int]:
        start = at + width
        end = start + (data[at] if width == 1 else _u32.unpack_from(data, at)[0])
        if end > len(data):
            raise _too_short(data, at, start, end)
        try:
            return convert(data[start:end]), end
        except UnicodeDecodeError as error:
            raise _bad_text(start, error) from error

    return decode_variable


def _too_short(data: bytes, at: int, start: int, end: int) -> MessageError:
    return MessageError(f"byte {at}: {end - start} bytes declared, {len(data) - start} left")


def _bad_text(start: int, error: UnicodeDecodeError) -> MessageError:
    return MessageError(f"byte {start + error.start}: not {error.encoding}")


def _bounds(data: bytes, at: int, width: int, depth: int) -> tuple[int, int, int]:
    """The start and end of the content of a list, map or array, and its count."""
    if depth >= MAX_DEPTH:
        raise MessageError(f"byte {at}: nested deeper than {MAX_DEPTH}")
    size, count = (data[at], data[at + 1]) if width == 1 else _size_and_count.unpack_from(data, at)
    end = at + width + size
    if end > len(data):
        raise _too_short(data, at, at + width, end)
    if size < width:
        raise MessageError(f"byte {at}: a size of {size} has no room for the count")
    return at + 2 * width, end, count


def _list(width: int) -> _Decoder:
    def decode_list(data: bytes, at: int, depth: int) -> tuple[Value, int]:
        position, end, count = _bounds(data, at, width, depth)
        _check_count(count, end - position, at)
        items = []
        decoders, inside = DECODERS, depth + 1
        for _ in range(count):
            item, position = decoders[data[position]](data, position + 1, inside)
            items.append(item)
        _check_end(position, end)
        return items, end

    return decode_list


def _map(width: int) -> _Decoder:
    def decode_map(data: bytes, at: int, depth: int) -> tuple[Value, int]:
        position, end, count = _bounds(data, at, width, depth)
        _check_count(count, end - position, at)
        entries: dict[Value, Value] = {}
        decoders, inside = DECODERS, depth + 1
        for _ in range(count // 2):
            start = position
            key, position = decoders[data[start]](data, start + 1, inside)
            value, position = decoders[data[position]](data, position + 1, inside)
            try:
                entries[key] = value
            except TypeError as error:
                raise MessageError(f"byte {start}: a list or map can't be a key") from error
        _check_end(position, end)
        # Python treats 1, 1.0 and true as one key: no message is better than one that has lost a
        # value.
        if 2 * len(entries) != count:
            raise MessageError(f"byte {at}: {count} keys and values, of {len(entries)} keys")
        return entries, end

    return decode_map


def _array(width: int) -> _Decoder:
    def decode_array(data: bytes, at: int, depth: int) -> tuple[Value, int]:
        position, end, count = _bounds(data, at, width, depth)
        if count == 0:  # the constructor, if any, has no effect
            return Typed(Kind.ARRAY, ()), end
        element, position = _constructor(data, position, depth + 1)
        _check_count(count, max(end - position, MAX_ZERO_WIDTH), at)
        items = []
        for _ in range(count):
            item, position = element(data, position, depth + 1)
            items.append(item)
        _check_end(position, end)
        return Typed(Kind.ARRAY, tuple(items)), end

    return decode_array


def _constructor(data: bytes, at: int, depth: int) -> tuple[_Decoder, int]:
    """
    The constructor that an array has once for all elements: a type code, with descriptors before
    it.
    """
    if data[at] != 0:
        return DECODERS[data[at]], at + 1
    if depth >= MAX_DEPTH:
        raise MessageError(f"byte {at}: nested deeper than {MAX_DEPTH}")
    descriptor, at = DECODERS[data[at + 1]](data, at + 2, depth + 1)
    inner, at = _constructor(data, at, depth + 1)

    def decode_element(data: bytes, at: int, depth: int) -> tuple[Value, int]:
        value, at = inner(data, at, depth + 1)
        return Described(descriptor, value), at

    return decode_element, at


def _decode_described(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    if depth >= MAX_DEPTH:
        raise MessageError(f"byte {at}: nested deeper than {MAX_DEPTH}")
    descriptor, at = DECODERS[data[at]](data, at + 1, depth + 1)
    value, at = DECODERS[data[at]](data, at + 1, depth + 1)
    return Described(descriptor, value), at


def _check_count(count: int, most: int, at: int) -> None:
    if count > most:
        raise MessageError(f"byte {at}: {count} values declared, room for {most}")


def _check_end(position: int, end: int) -> None:
    if position != end:
        raise MessageError(f"byte {position}: the values should end at byte {end}")


_CODES: Final[dict[int, _Decoder]] = {
    0x00: _decode_described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(Typed(Kind.UINT, 0)),
    0x44: _constant(Typed(Kind.ULONG, 0)),
    0x45: lambda _data, at, _depth: ([], at),
    0x50: _typed(">B", Kind.UBYTE),
    0x51: _typed(">b", Kind.BYTE),
    0x52: _typed(">B", Kind.UINT),
    0x53: _typed(">B", Kind.ULONG),
    0x54: _typed(">b", Kind.INT),
    0x55: _fixed(">b"),
    0x56: _decode_boolean,
    0x60: _typed(">H", Kind.USHORT),
    0x61: _typed(">h", Kind.SHORT),
    0x70: _typed(">I", Kind.UINT),
    0x71: _typed(">i", Kind.INT),
    0x72: _typed(">f", Kind.FLOAT),
    0x73: _decode_char,
    0x74: _typed(">4s", Kind.DECIMAL32),
    0x80: _typed(">Q", Kind.ULONG),
    0x81: _fixed(">q"),
    0x82: _fixed(">d"),
    0x83: _fixed(">q", from_milliseconds),
    0x84: _typed(">8s", Kind.DECIMAL64),
    0x94: _typed(">16s", Kind.DECIMAL128),
    0x98: _fixed(">16s", lambda raw: UUID(bytes=raw)),
    0xA0: _variable(1, bytes),
    0xA1: _decode_short_string,
    0xA3: _variable(1, _short_symbol),
    0xB0: _variable(4, bytes),
    0xB1: _variable(4, bytes.decode),
    0xB3: _variable(4, _symbol),
    0xC0: _list(1),
    0xC1: _map(1),
    0xD0: _list(4),
    0xD1: _map(4),
    0xE0: _array(1),
    0xF0: _array(4),
}
DECODERS: Final = tuple(_CODES.get(code, _unknown) for code in range(256))
