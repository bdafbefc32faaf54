"""The sections of an encoded message, with their start and end."""

import struct
from typing import Any, Final, NamedTuple

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Typed, Value
from gateway.wire.amqp.decoding import DECODERS
from gateway.wire.amqp.types import decode_at

# Descriptors of sections (part 3, 3.2).
HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78


class _SectionKind(NamedTuple):
    name: str
    holds: type
    repeats: bool = False


_KINDS: Final = {
    HEADER: _SectionKind("header", list),
    DELIVERY_ANNOTATIONS: _SectionKind("delivery-annotations", dict),
    MESSAGE_ANNOTATIONS: _SectionKind("message-annotations", dict),
    PROPERTIES: _SectionKind("properties", list),
    APPLICATION_PROPERTIES: _SectionKind("application-properties", dict),
    DATA: _SectionKind("data", bytes, repeats=True),
    SEQUENCE: _SectionKind("amqp-sequence", list, repeats=True),
    VALUE: _SectionKind("amqp-value", object),
    FOOTER: _SectionKind("footer", dict),
}
_ANYWHERE: Final = frozenset((DELIVERY_ANNOTATIONS, FOOTER))
_HOLDS: Final = {code: kind.holds for code, kind in _KINDS.items()}
_LONG_NAMES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


# Each way to encode the descriptor of delivery annotations has one of these.
_ANNOTATION_MARKS: Final = (
    b"\x00\x53\x71",  # smallulong
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x71",  # ulong
    b"amqp:delivery-annotations:map",
)
# Bytes of a message up to which a search for these marks is faster than reading the sections again:
# in a megabyte of zeros the search takes 5 ms.
_SEARCHED: Final = 16 * 1024


# Code, start, end, and value. A plain tuple, because every message has several.
Section = tuple[int, int, int, Value]


def section_name(code: int) -> str:
    return _KINDS[code].name


def split_sections(data: bytes) -> list[Section]:
    """
    All sections but the delivery annotations, in the standard's order.

    The delivery annotations may be in any position, because azure-servicebus for Python puts them
    last. So may the footer: rhea, amqp10 and uamqp put it before the body.

    Raises:
        MessageError: the data has no sections, or a section is repeated, out of order, or of a
            wrong type.
    """
    sections: list[Section] = []
    previous = 0
    seen: dict[int, Section] = {}  # of those in any position
    at, total = 0, len(data)
    while at < total:
        start = at
        try:  # the usual form, with a smallulong as descriptor; the slow way raises the error
            if data[at] != 0 or data[at + 1] != 0x53:
                raise IndexError
            code = data[at + 2]
            holds = _HOLDS[code]
            value, at = DECODERS[data[at + 3]](data, at + 4, 0)
            if not isinstance(value, holds):
                raise IndexError
        except (LookupError, struct.error, MessageError):
            code, value, at = read_section(data, start)
        if code in _ANYWHERE:
            _check_new(seen, code, start)
            seen[code] = (code, start, at, value)
            continue
        if code <= previous or DATA <= previous < code:
            _check_order(previous, code, start)
        previous = code
        sections.append((code, start, at, value))
    if FOOTER in seen:
        sections.append(seen[FOOTER])
    return sections


def without_body(data: bytes) -> bytes:
    """An encoded message, without its body sections."""
    kept, at = list[bytes](), 0
    for code, start, end, _ in split_sections(data):
        if DATA <= code <= VALUE:
            kept.append(data[at:start])
            at = end
    return b"".join((*kept, data[at:]))


def delivery_annotations_of(data: bytes) -> dict[Value, Value]:
    """
    The delivery annotations of a message that `split_sections` has read; empty if it has none.

    A message is parsed again only if it is large or contains the bytes of such a descriptor, as
    very few do.
    """
    if len(data) <= _SEARCHED and not any(mark in data for mark in _ANNOTATION_MARKS):
        return {}
    at = 0
    while at < len(data):
        code, value, at = read_section(data, at)
        if code == DELIVERY_ANNOTATIONS:
            annotations: dict[Value, Value] = value
            return annotations
    return {}


def read_section(data: bytes, at: int) -> tuple[int, Any, int]:
    """
    The code and the value of the section that begins at that position, and its end.

    Raises:
        MessageError: no section begins there, or it is of a wrong type.
    """
    code, value_at = _descriptor(data, at)
    value, end = _value(data, code, value_at)
    return code, value, end


def _descriptor(data: bytes, at: int) -> tuple[int, int]:
    """The section's code, and the start of its value."""
    if data[at : at + 2] == b"\x00\x53" and at + 2 < len(data):  # smallulong: the usual encoding
        code, value_at = data[at + 2], at + 3
    elif data[at] != 0:
        raise MessageError(f"byte {at}: {data[at]:#04x} starts no section")
    else:
        descriptor, value_at = decode_at(data, at + 1)
        code = _code_of(descriptor)
    if code not in _KINDS:
        raise MessageError(f"byte {at}: no section of a message")
    return code, value_at


def _value(data: bytes, code: int, at: int) -> tuple[Value, int]:
    kind = _KINDS[code]
    try:
        value, end = decode_at(data, at)
    except MessageError as error:
        raise MessageError(f"{kind.name}, {error}") from error
    if not isinstance(value, kind.holds):
        raise MessageError(f"byte {at}: {kind.name} holds a {type(value).__name__}")
    return value, end


def _code_of(descriptor: Value) -> int:
    match descriptor:
        case Typed(kind=Kind.ULONG, value=int(code)):
            return code
        case Typed(kind=Kind.SYMBOL, value=name):
            return _LONG_NAMES.get(name, 0)
    return 0


def _check_new(seen: dict[int, Section], code: int, at: int) -> None:
    if code in seen:
        raise MessageError(f"byte {at}: {section_name(code)} twice")


def _check_order(previous: int, code: int, at: int) -> None:
    kind = _KINDS[code]
    if code != previous:
        raise MessageError(f"byte {at}: {kind.name} after {_KINDS[previous].name}")
    if not kind.repeats:
        raise MessageError(f"byte {at}: {kind.name} twice")
