"""
The header of a message's content in AMQP 0-9-1: basic properties and field tables (4.2.5, 4.2.6).

Types of a table are those that RabbitMQ knows. What is written is read again as the same value:
integers as 64 bits, floats as double.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from gateway.domain.errors import MessageError

BASIC: Final = 60  # the class of messages
MAX_SHORT: Final = 255  # bytes of a short string: a property, a header's name
MAX_DEPTH: Final = 32
_INT64: Final = 2**63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MORE_FLAGS: Final = 1

# In the order of the standard; the first has the highest flag.
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

    `properties` are by the standard's names, texts already known to fit; `table` are the encoded
    entries of `headers`.
    """
    flags = _FLAGS["headers"]
    parts = []
    for name in _ORDER:
        if name == "headers":
            parts.append(len(table).to_bytes(4) + table)
            continue
        value = properties.get(name)
        if value is None:
            continue
        flags |= _FLAGS[name]
        if name in _TEXTS:
            parts.append(_short(value))
        else:
            parts.append(value.to_bytes(8 if name == "timestamp" else 1))
    return struct.pack(">HHQH", BASIC, 0, size, flags) + b"".join(parts)


def write_entry(name: str, value: Any) -> bytes:
    """One entry of a table: None, bool, int of 64 bits, float, str or bytes."""
    return _short(name) + _write_value(value)


def read_content_header(data: bytes) -> dict[str, Any]:
    """
    The properties in the payload of a content header frame, of whoever wrote it.

    Raises:
        MessageError: it isn't well-formed.
    """
    try:
        return _Reader(data).properties()
    except (struct.error, IndexError) as error:
        raise MessageError(f"content header: it ends too early ({error})") from error
    except UnicodeDecodeError as error:
        raise MessageError(f"content header: a text isn't UTF-8 ({error.reason})") from error


def fits_short(text: str) -> bool:
    """
    Whether it can be a property or the name of a header.

    Raises:
        UnicodeEncodeError: it has half a surrogate pair.
    """
    return len(text) <= MAX_SHORT and len(text.encode()) <= MAX_SHORT


def fits_table(value: Any) -> bool:
    """Whether a table says this value, and exactly this; Erlang knows neither NaN nor infinity."""
    kind = type(value)
    if kind is int:
        return bool(-_INT64 <= value < _INT64)
    if kind is float:
        return isfinite(value)
    return value is None or kind in (bool, str, bytes)


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def _write_value(value: Any) -> bytes:
    match value:
        case None:
            return b"V"
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            return struct.pack(">cq", b"l", value)
        case float():
            return struct.pack(">cd", b"d", value)
        case str():
            data = value.encode()
            return b"S" + len(data).to_bytes(4) + data
    return b"x" + len(value).to_bytes(4) + bytes(value)


class _Reader:
    """Reads one payload from its begin to its end; slices are checked, since Python's aren't."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 12  # after class, weight and the body's size

    def properties(self) -> dict[str, Any]:
        flags = self._number(">H")
        if flags & _MORE_FLAGS:
            raise MessageError("content header: more flags than there are properties")
        found: dict[str, Any] = {}
        for name in _ORDER:
            if not flags & _FLAGS[name]:
                continue
            if name == "headers":
                found[name] = self._table(0)
            elif name == "timestamp":
                found[name] = self._number(">Q")
            elif name in _TEXTS:
                found[name] = self._take(self._number(">B")).decode()
            else:
                found[name] = self._number(">B")
        return found

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise IndexError(f"{size} bytes expected at {start}")
        return self._data[start : self._at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _table(self, depth: int) -> dict[str, Any]:
        end = self._end_of_nested(depth)
        table = {}
        while self._at < end:
            name = self._take(self._number(">B")).decode("utf-8", "replace")
            table[name] = self._value(depth)
        return table

    def _list(self, depth: int) -> list[Any]:
        end = self._end_of_nested(depth)
        values = []
        while self._at < end:
            values.append(self._value(depth))
        return values

    def _end_of_nested(self, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise MessageError(f"content header: nested deeper than {MAX_DEPTH}")
        size: int = self._number(">I")
        return self._at + size

    def _value(self, depth: int) -> Any:
        code = self._take(1)
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        if code == b"F":
            return self._table(depth + 1)
        if code == b"A":
            return self._list(depth + 1)
        reader = _OTHERS.get(code)
        if reader is None:
            raise MessageError(f"content header: type {code!r} isn't known")
        return reader(self)

    def read_bytes(self) -> bytes:
        return self._take(self._number(">I"))

    def read_text(self) -> str | bytes:
        """A long string is any bytes; what is UTF-8 is taken for text."""
        data = self.read_bytes()
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data

    def read_bool(self) -> bool:
        return bool(self._number(">B"))

    def read_decimal(self) -> str:
        """No type of AMQP 1.0 is this one: its digits."""
        scale = self._number(">B")
        return str(Decimal(self._number(">i")).scaleb(-scale))

    def read_timestamp(self) -> datetime | int:
        """The seconds themselves, where no date can say them."""
        seconds = self._number(">Q")
        try:
            return _EPOCH + timedelta(seconds=seconds)
        except OverflowError:
            return min(int(seconds), _INT64 - 1)


_NUMBERS: Final = {
    b"b": ">b",
    b"B": ">B",
    b"s": ">h",
    b"u": ">H",
    b"I": ">i",
    b"i": ">I",
    b"l": ">q",
    b"f": ">f",
    b"d": ">d",
}
_OTHERS: Final[dict[bytes, Callable[[_Reader], Any]]] = {
    b"t": _Reader.read_bool,
    b"S": _Reader.read_text,
    b"x": _Reader.read_bytes,
    b"D": _Reader.read_decimal,
    b"T": _Reader.read_timestamp,
    b"V": lambda _: None,
}
