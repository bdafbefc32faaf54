"""
The performatives that open and close things (AMQP 1.0, part 2, 2.7), as far as they are decoded
here instead of in Proton, which drops parts of them and decodes as deep as a peer nests.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.domain.errors import MessageError
from gateway.domain.message import Described, Kind, Typed, Value, symbol
from gateway.wire.amqp.events import AmqpError, Durability, Terminus
from gateway.wire.amqp.types import encode

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30

# The number of fields of each. Azure's clients before 7.15 read a frame by position.
FIELDS: Final = {
    OPEN: 10,
    BEGIN: 8,
    ATTACH: 14,
    FLOW: 11,
    TRANSFER: 11,
    DISPOSITION: 6,
    DETACH: 3,
    END: 1,
    CLOSE: 1,
}


def code_of(value: Value) -> int:
    """The number that describes `value`; 0 if it isn't described by a number."""
    match value:
        case Described(descriptor=Typed(kind=Kind.ULONG, value=int(code))):
            return code
    return 0


def fields_of(value: Value) -> list[Value]:
    """
    The fields of a described list.

    Raises:
        MessageError: the value isn't a described list.
    """
    match value:
        case Described(value=list(fields)):
            return fields
    raise MessageError("not a described list")


def described(code: int, fields: list[Value]) -> Described:
    return Described(Typed(Kind.ULONG, code), fields)


def field(fields: list[Value], index: int, kind: type, default: Any = None) -> Any:
    """
    One field; `default` if it is null or missing.

    Raises:
        MessageError: it has another type.
    """
    value = fields[index] if index < len(fields) else None
    if isinstance(value, Typed):
        value = value.value
    if value is None:
        return default
    if not isinstance(value, kind):
        raise MessageError(f"field {index} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def number(fields: list[Value], index: int) -> int:
    """
    One field, which must be a number.

    Raises:
        MessageError: it is missing, or isn't a number.
    """
    value = field(fields, index, int)
    if value is None:
        raise MessageError(f"field {index} is missing")
    return int(value)


def symbol_map(mapping: Mapping[str, Value]) -> bytes:
    """The encoded map whose keys are symbols."""
    return encode({symbol(key): value for key, value in mapping.items()})


def symbols(names: tuple[str, ...]) -> Value:
    """The array of symbols."""
    return Typed(Kind.ARRAY, tuple(symbol(name) for name in names))


def to_symbol(text: str) -> Value:
    return symbol(text)


def ubyte(number: int) -> Value:
    return Typed(Kind.UBYTE, number)


def uint(number: int) -> Value:
    return Typed(Kind.UINT, number)


def by_name(mapping: Mapping[Value, Value]) -> Mapping[str, Value]:
    """The map with its symbols as plain text. Keys of other types become text too."""
    return {
        str(key.value if isinstance(key, Typed) else key): value for key, value in mapping.items()
    }


def read_error(value: Value) -> AmqpError | None:
    """
    The error in a field (part 2, 2.8.14).

    Raises:
        MessageError: the value isn't an error.
    """
    if value is None:
        return None
    fields = fields_of(value)
    return AmqpError(
        condition=field(fields, 0, str, ""),
        description=field(fields, 1, str, ""),
        info=by_name(field(fields, 2, dict, {})),
    )


def read_terminus(value: Value) -> Terminus | None:
    """
    A source, target or coordinator; None if the value is null.

    Raises:
        MessageError: the value is none of these.
    """
    if value is None:
        return None
    code, fields = code_of(value), fields_of(value)
    if code == COORDINATOR:
        return Terminus(coordinator=True)
    if code not in (SOURCE, TARGET):
        raise MessageError(f"{code:#x} is no terminus")
    return Terminus(
        address=field(fields, 0, str),
        durable=_durability(field(fields, 1, int, 0)),
        dynamic=field(fields, 4, bool, False),
        filters=by_name(field(fields, 7, dict, {})) if code == SOURCE else {},
        capabilities=named(fields, 10 if code == SOURCE else 6),
    )


def _durability(value: int) -> Durability:
    try:
        return Durability(value)
    except ValueError as error:
        raise MessageError(f"{value} is no durability") from error


def named(fields: list[Value], index: int) -> tuple[str, ...]:
    """A field of symbols: a single symbol, or an array."""
    value = field(fields, index, object)
    if value is None:
        return ()
    if isinstance(value, tuple):
        return tuple(str(each.value if isinstance(each, Typed) else each) for each in value)
    return (str(value),)
