"""
The header of a message's content in AMQP 0-9-1: basic properties and field tables (4.2.5, 4.2.6).

Table types are those that RabbitMQ supports. Encoded values are decoded to the same values:
integers use 64 bits, floats are double.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, Final

import attrs

from gateway.domain.bounded import Bounded
from gateway.domain.errors import MessageError

BASIC: Final = 60  # the class of messages
MAX_SHORT: Final = 255  # bytes of a short string: a property, a header's name
MAX_DEPTH: Final = 32  # of tables and arrays, as of AMQP 1.0's values
_LONG_STRING: Final = ord("S")
_INT64: Final = 2**63  # beyond the type `l` of a table
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MORE_FLAGS: Final = 1  # the last bit: another 16 flags follow (AMQP 0-9-1, 4.2.6.1)

# In the standard's order; the first property has the highest flag.
_TEXTS: Final = frozenset(
    {
        "content_type",
        "content_encoding",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "type",
        "user_id",
        "app_id",
        "cluster_id",
    }
)
_ORDER: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_FLAGS: Final = {name: 1 << (15 - number) for number, name in enumerate(_ORDER)}


def write_content_header(size: int, properties: Mapping[str, Any], table: bytes) -> bytes:
    """
    The payload of a content header frame for a body of `size` bytes.

    `properties` have the standard's names, and their texts are known to fit; `table` has the
    encoded entries of `headers`.
    """
    flags, before, after = _writers_of(tuple(properties))
    parts = [_start.pack(BASIC, 0, size, flags)]
    parts += [write(properties[name]) for name, write in before]
    parts += (_length.pack(len(table)), table)
    parts += [write(properties[name]) for name, write in after]
    return b"".join(parts)


def write_entry(name: str, value: Any) -> bytes:
    """Write an entry of a table: None, bool, int of 64 bits, float, str or bytes."""
    return _short(name) + _write_value(value)


def read_content_header(data: bytes) -> dict[str, Any]:
    """
    The properties in the payload of a content header frame.

    Raises:
        MessageError: the payload is malformed.
    """
    try:
        (flags,) = _flags.unpack_from(data, 12)  # after class, weight and the body's size
        found = {}
        at = 14
        for name, decoder in _decoders_of(flags):
            found[name], at = decoder(data, at, 0)
    except (struct.error, IndexError) as error:
        raise MessageError(f"the content header ends too early ({error})") from error
    except UnicodeDecodeError as error:
        raise MessageError(
            f"the content header has a text that isn't UTF-8 ({error.reason})"
        ) from error
    return found


def split_content_header(data: bytes) -> tuple[dict[str, Any], bytes]:
    """
    The properties in the payload of a content header frame, without the headers; and the encoded
    entries of the headers, as they are.

    Raises:
        MessageError: the payload is malformed.
    """
    properties = read_content_header(data)  # also judges the headers
    if properties.pop("headers", None) is None:
        return properties, b""
    at = 14
    for name in _ORDER[: _ORDER.index("headers")]:  # short strings
        if name in properties:
            at += 1 + data[at]
    start, end = _bounds(data, at, 0)
    return properties, data[start:end]


def fits_short(text: str) -> bool:
    """
    True if the text fits a property or the name of a header.

    Raises:
        UnicodeEncodeError: it has half a surrogate pair.
    """
    return len(text) <= MAX_SHORT and len(text.encode()) <= MAX_SHORT


def fits_table(value: Any) -> bool:
    """True if a table can express exactly this value; Erlang has neither NaN nor infinity."""
    kind = type(value)
    if kind is int:
        return bool(-_INT64 <= value < _INT64)
    if kind is float:
        return isfinite(value)
    return value is None or kind in (bool, str, bytes)


def _short(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes() + data


_Writers = tuple[tuple[str, Callable[[Any], bytes]], ...]


@lru_cache(maxsize=64)  # as `_decoders_of`
def _writers_of(names: tuple[str, ...]) -> tuple[int, _Writers, _Writers]:
    """
    The flags of these properties and of the headers, and how each property is written, in the
    standard's order: those before the headers, and those after them.
    """
    place = _ORDER.index("headers")
    flags = sum(_FLAGS[name] for name in (*names, "headers"))
    return flags, _writers(names, _ORDER[:place]), _writers(names, _ORDER[place:])


def _writers(names: Sequence[str], order: Sequence[str]) -> _Writers:
    others: dict[str, Callable[[Any], bytes]] = {"timestamp": lambda value: value.to_bytes(8)}
    return tuple(
        (name, _short if name in _TEXTS else others.get(name, int.to_bytes))
        for name in order
        if name in names
    )


def _write_value(value: Any) -> bytes:
    match value:
        case str():  # the most frequent type
            data = value.encode()
            return b"S" + len(data).to_bytes(4) + data
        case None:
            return b"V"
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            return struct.pack(">cq", b"l", value)
        case float():
            return struct.pack(">cd", b"d", value)
    return b"x" + len(value).to_bytes(4) + bytes(value)


# Decoders: (data, position, depth) -> the value, and the position after it. Slices are checked,
# because Python doesn't.
_Decoder = Callable[[bytes, int, int], tuple[Any, int]]

_start: Final = struct.Struct(">HHQH")
_flags: Final = struct.Struct(">H")
_length: Final = struct.Struct(">I")


@lru_cache(maxsize=64)  # a producer sets the same properties each time
def _decoders_of(flags: int) -> tuple[tuple[str, _Decoder], ...]:
    if flags & _MORE_FLAGS:
        raise MessageError("the content header has more flags than properties exist")
    others = {"headers": _decode_headers, "timestamp": _fixed(">Q")}
    octet = _fixed(">B")
    return tuple(
        (name, _decode_short if name in _TEXTS else others.get(name, octet))
        for name in _ORDER
        if flags & _FLAGS[name]
    )


def _fixed(layout: str, convert: Callable[[Any], Any] | None = None) -> _Decoder:
    shape = struct.Struct(layout)
    size, unpack = shape.size, shape.unpack_from
    if convert is None:
        return lambda data, at, _: (unpack(data, at)[0], at + size)
    return lambda data, at, _: (convert(unpack(data, at)[0]), at + size)


def _decode_short(data: bytes, at: int, _: int) -> tuple[str, int]:
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise _cut_off(start, end)
    return data[start:end].decode(), end


def _decode_bytes(data: bytes, at: int, _: int) -> tuple[bytes, int]:
    start = at + 4
    end = start + _length.unpack_from(data, at)[0]
    if end > len(data):
        raise _cut_off(start, end)
    return data[start:end], end


def _decode_text(data: bytes, at: int, _: int) -> tuple[str | bytes, int]:
    """A long string is any bytes; UTF-8 counts as text. Messages have many of them."""
    start = at + 4
    end = start + _length.unpack_from(data, at)[0]
    if end > len(data):
        raise _cut_off(start, end)
    raw = data[start:end]
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end


_Unpack = Callable[[bytes, int], tuple[bytes, ...]]


@attrs.frozen
class _Template:
    """
    A table in which only some values vary from message to message. A single call of `struct` splits
    it into the constant parts and the values that vary, in turn.
    """

    table: dict[str, Any]
    constants: tuple[bytes, ...]
    varying: tuple[str, ...]  # names
    unpack: _Unpack

    @classmethod
    def of(
        cls, names: Sequence[str], pieces: Sequence[bytes], varying: set[str], table: dict[str, Any]
    ) -> "_Template":
        """The template of a table that consists of these heads and values in turn."""
        constants, sizes = [b""], list[int]()
        for name, head, value in zip(names, pieces[::2], pieces[1::2], strict=True):
            constants[-1] += head
            if name in varying:
                sizes.append(len(value))
                constants.append(b"")
            else:
                constants[-1] += value
        layout = [f"{len(constants[0])}s"]
        for size, constant in zip(sizes, constants[1:], strict=True):
            layout.append(f"{size}s{len(constant)}s")
        unpack = struct.Struct("".join(layout)).unpack_from
        in_order = tuple(name for name in names if name in varying)
        return cls(dict(table), tuple(constants), in_order, unpack)

    def read(self, data: bytes, at: int) -> dict[str, Any] | None:
        """
        The table at that position; None: another value varies.

        Raises:
            UnicodeDecodeError: a value isn't UTF-8.
        """
        pieces = self.unpack(data, at)
        if pieces[::2] != self.constants:
            return None
        table = self.table.copy()
        for name, value in zip(self.varying, pieces[1::2], strict=True):
            table[name] = value.decode()
        return table


@attrs.define(eq=False)
class _TableShape:
    """
    The names and lengths in a table, all of whose values are long strings. Most messages of a queue
    have the same, and most of the values too.
    """

    names: tuple[str, ...]
    heads: tuple[bytes, ...]  # before each value: its name, type and length
    _unpack: _Unpack  # heads and values in turn
    _template: _Template | None = None

    @classmethod
    def of(cls, data: bytes, at: int, end: int) -> "_TableShape | None":
        """The shape of the well-formed table from `at` to `end`; None: not all are strings."""
        names, heads, layout = [], [], []
        while at < end:
            kind = at + 1 + data[at]
            if data[kind] != _LONG_STRING:
                return None
            start = kind + 5
            names.append(_name(data[at + 1 : kind]))
            heads.append(data[at:start])
            size = _length.unpack_from(data, kind + 1)[0]
            layout.append(f"{start - at}s{size}s")
            at = start + size
        if len(set(names)) < len(names):
            return None
        return cls(tuple(names), tuple(heads), struct.Struct("".join(layout)).unpack_from)

    def read(self, data: bytes, at: int) -> dict[str, Any] | None:
        """The table at that position; None: it has another shape, or a value that isn't UTF-8."""
        try:
            table = None if self._template is None else self._template.read(data, at)
            return self._read_all(data, at) if table is None else table
        except UnicodeDecodeError:
            return None

    def _read_all(self, data: bytes, at: int) -> dict[str, Any] | None:
        """
        As `read`, value by value. A value that differs from the last table's counts as varying from
        now on.
        """
        pieces = self._unpack(data, at)
        if pieces[::2] != self.heads:
            return None
        table = dict(zip(self.names, map(bytes.decode, pieces[1::2]), strict=True))
        last, varying = self._template, set[str]()
        if last is not None:
            changed = {name for name, value in table.items() if value != last.table[name]}
            varying = changed.union(last.varying)
        self._template = _Template.of(self.names, pieces, varying, table)
        return table


# A shape takes some 30 times the memory of its table: only small tables have one, so that
# senders of ever new tables can't fill the process.
_LARGEST_SHAPE: Final = 2048  # bytes of a table
_shapes: Final[Bounded[int, _TableShape | None]] = Bounded(128)  # by the bytes of their tables


def _decode_headers(data: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """As `_decode_table`, for the table of a message."""
    start, end = _bounds(data, at, depth)
    shape = _shapes.get(end - start)
    table = None if shape is None else shape.read(data, start)
    if table is not None:
        return table, end
    table, after = _decode_table(data, at, depth)
    if after == end and end - start <= _LARGEST_SHAPE and end - start not in _shapes:
        _shapes[end - start] = _TableShape.of(data, start, end)
    return table, after


def _decode_table(data: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    at, end = _bounds(data, at, depth)
    table = {}
    while at < end:
        start = at + 1
        at = start + data[at]
        name = _name(data[start:at])
        table[name], at = _DECODERS[data[at]](data, at + 1, depth + 1)
    return table, at


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _decode_list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    at, end = _bounds(data, at, depth)
    values = []
    while at < end:
        value, at = _DECODERS[data[at]](data, at + 1, depth + 1)
        values.append(value)
    return values, at


def _bounds(data: bytes, at: int, depth: int) -> tuple[int, int]:
    if depth > MAX_DEPTH:
        raise MessageError(f"the content header is nested deeper than {MAX_DEPTH} levels")
    start = at + 4
    end = start + int.from_bytes(data[at:start])
    if end > len(data):
        raise _cut_off(start, end)
    return start, end


def _decode_decimal(data: bytes, at: int, _: int) -> tuple[str, int]:
    """AMQP 1.0 has no such type: the digits as text."""
    scale, digits = struct.unpack_from(">Bi", data, at)
    return str(Decimal(digits).scaleb(-scale)), at + 5


def _date_of(seconds: int) -> datetime | int:
    """The date; the seconds themselves if they are outside the range of dates."""
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return min(seconds, _INT64 - 1)


def _unknown(data: bytes, at: int, _: int) -> tuple[Any, int]:
    raise MessageError(f"the content header has a value of the unknown type {data[at - 1 : at]!r}")


def _cut_off(start: int, end: int) -> IndexError:
    return IndexError(f"{end - start} bytes expected at {start}")


_CODES: Final[dict[bytes, _Decoder]] = {
    b"b": _fixed(">b"),
    b"B": _fixed(">B"),
    b"s": _fixed(">h"),
    b"u": _fixed(">H"),
    b"I": _fixed(">i"),
    b"i": _fixed(">I"),
    b"l": _fixed(">q"),
    b"f": _fixed(">f"),
    b"d": _fixed(">d"),
    b"t": _fixed(">B", bool),
    b"S": _decode_text,
    b"x": _decode_bytes,
    b"D": _decode_decimal,
    b"T": _fixed(">Q", _date_of),
    b"V": lambda _data, at, _depth: (None, at),
    b"F": _decode_table,
    b"A": _decode_list,
}
_DECODERS: Final = tuple(_CODES.get(bytes((code,)), _unknown) for code in range(256))
