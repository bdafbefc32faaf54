"""Other encodings of the same message than ours: AMQP leaves the choice to the writer."""

from typing import Any
from uuid import UUID

from gateway.domain.message import Described, Kind, Typed
from gateway.wire.amqp.messages.sections import split_sections
from gateway.wire.amqp.types import encode

_NAMES = {
    0x70: b"amqp:header:list",
    0x72: b"amqp:message-annotations:map",
    0x73: b"amqp:properties:list",
    0x74: b"amqp:application-properties:map",
    0x75: b"amqp:data:binary",
    0x76: b"amqp:amqp-sequence:list",
    0x77: b"amqp:amqp-value:*",
    0x78: b"amqp:footer:map",
}


def widened(payload: bytes, *, by_name: bool) -> bytes:
    """
    The same message with the longest encoding of each value.

    Its sections are described by name, or by their number in eight bytes.
    """
    return b"".join(
        b"\0"
        + (_sized(0xB3, _NAMES[code]) if by_name else b"\x80" + code.to_bytes(8))
        + wide(value)
        for code, _, _, value in split_sections(payload)
    )


def wide(value: Any) -> bytes:
    """The longest encoding of a value."""
    match value:
        case bool():
            return b"\x56\x01" if value else b"\x56\x00"
        case int():
            return b"\x81" + value.to_bytes(8, signed=True)
        case str():
            return _sized(0xB1, value.encode())
        case bytes():
            return _sized(0xB0, value)
        case UUID():
            return b"\x98" + value.bytes
        case list():
            return _compound(0xD0, [wide(item) for item in value])
        case dict():
            return _compound(0xD1, [wide(each) for entry in value.items() for each in entry])
        case Described(descriptor, inner):
            return b"\0" + wide(descriptor) + wide(inner)
        case Typed(kind=kind, value=inner):
            return _wide_typed(kind, inner)
    return encode(value)


def _wide_typed(kind: Kind, value: Any) -> bytes:
    match kind:
        case Kind.UINT:
            return b"\x70" + value.to_bytes(4)
        case Kind.ULONG:
            return b"\x80" + value.to_bytes(8)
        case Kind.INT:
            return b"\x71" + value.to_bytes(4, signed=True)
        case Kind.SYMBOL:
            return _sized(0xB3, value.encode())
        case Kind.ARRAY:
            return _wide_array(encode(Typed(kind, value)))
    return encode(Typed(kind, value))


def _wide_array(short: bytes) -> bytes:
    """Widen the array's own size and count; its elements have one encoding together."""
    if short[0] != 0xE0:
        return short
    content = short[3:]
    return b"\xf0" + (len(content) + 4).to_bytes(4) + short[2].to_bytes(4) + content


def _sized(code: int, raw: bytes) -> bytes:
    return bytes((code,)) + len(raw).to_bytes(4) + raw


def _compound(code: int, items: list[bytes]) -> bytes:
    content = b"".join(items)
    head = (len(content) + 4).to_bytes(4) + len(items).to_bytes(4)
    return bytes((code,)) + head + content
