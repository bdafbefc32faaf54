"""
Performatives (AMQP 1.0, part 2, 2.7) as lists of fields, and the composite values within them:
errors (part 2, 2.8.14), sources, targets and coordinators (part 3, 3.5).
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.domain.errors import MessageError
from gateway.domain.message import Described, Kind, Typed, Value, symbol
from gateway.wire.amqp.events import AmqpError, Durability, ReceiverSettles, SenderSettles, Terminus

# Descriptors of performatives (part 2, 2.7).
OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

# Descriptors of terminuses, and of transactions' types (part 3, 3.5; part 4, 4.5).
SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30
DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
DECLARED: Final = 0x33
TRANSACTIONAL_STATE: Final = 0x34

MAX_UINT: Final = 0xFFFFFFFF  # of the type uint (part 1, 1.6)

ADDRESS: Final = 0  # the place of the address among the fields of a source or target
CAPABILITIES: Final = 0  # the place of the capabilities among the fields of a coordinator
FILTERS: Final = 7  # the place of the filters among the fields of a source

_ERROR: Final = 0x1D  # the descriptor of an error (part 2, 2.8.14)

# azure-servicebus for Python reads an error's info by position, and one of its callbacks swallows
# the IndexError and waits for ever. So no error is written without info.
SOME_INFO: Final[Mapping[str, Any]] = {"server": "pairgate"}

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


# Each type has a symbol beside its number, and a peer may write either (part 1, 1.4).
_SYMBOLS: Final = {
    f"amqp:{name}:list": code
    for name, code in {
        "open": OPEN,
        "begin": BEGIN,
        "attach": ATTACH,
        "flow": FLOW,
        "transfer": TRANSFER,
        "disposition": DISPOSITION,
        "detach": DETACH,
        "end": END,
        "close": CLOSE,
        "received": 0x23,
        "accepted": 0x24,
        "rejected": 0x25,
        "released": 0x26,
        "modified": 0x27,
        "source": SOURCE,
        "target": TARGET,
        "coordinator": COORDINATOR,
        "declare": DECLARE,
        "discharge": DISCHARGE,
        "declared": DECLARED,
        "transactional-state": TRANSACTIONAL_STATE,
        "sasl-mechanisms": 0x40,
        "sasl-init": 0x41,
        "sasl-outcome": 0x44,
    }.items()
}


def code_of(value: Value) -> int:
    """The number that describes `value`, or stands for its symbol; 0: none that is known."""
    match value:
        case Described(descriptor=Typed(kind=Kind.ULONG, value=int(code))):
            return code
        case Described(descriptor=Typed(kind=Kind.SYMBOL, value=str(name))):
            return _SYMBOLS.get(name, 0)
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
    Return a field; `default` if it is null or missing.

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
    Return a field, which must be a number.

    Raises:
        MessageError: it is missing, or isn't a number.
    """
    value = field(fields, index, int)
    if value is None:
        raise MessageError(f"field {index} is missing")
    return int(value)


def uint_in(fields: list[Value], index: int, default: int | None = None) -> int:
    """
    Return a field, a uint. A number of another type counts as its last 32 bits.

    Raises:
        MessageError: it isn't a number; or it is missing, and there is no default.
    """
    value = field(fields, index, int, default)
    if value is None:
        raise MessageError(f"field {index} is missing")
    return int(value) & MAX_UINT


def symbols(names: tuple[str, ...]) -> Value:
    """The array of symbols."""
    return Typed(Kind.ARRAY, tuple(symbol(name) for name in names))


def to_symbol(text: str) -> Value:
    return symbol(text)


def ubyte(number: int) -> Value:
    return Typed(Kind.UBYTE, number)


def ushort(number: int) -> Value:
    return Typed(Kind.USHORT, number)


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


def write_error(error: AmqpError | None) -> Value:
    """The field for an error; null for None."""
    if error is None:
        return None
    # A condition that came from a peer may not be ASCII, as a symbol must be.
    condition = error.condition.encode("ascii", "replace").decode()
    info = symbols_or_null(error.info or SOME_INFO)
    return described(_ERROR, [symbol(condition), error.description, info])


def symbols_or_null(mapping: Mapping[str, Value]) -> Value:
    """The map whose keys are symbols, but for keys that can't be; null if it is empty."""
    return {symbol(key) if key.isascii() else key: value for key, value in mapping.items()} or None


_COPY: Final = "copy"  # a distribution mode (part 3, 3.5.7)


def write_terminus(terminus: Terminus | None, code: int) -> Value:
    """The field for a source or target, as `code` says; null for None."""
    if terminus is None:
        return None
    capabilities = symbols(terminus.capabilities) if terminus.capabilities else None
    if terminus.coordinator:
        return described(COORDINATOR, [capabilities])
    durable = uint(int(terminus.durable))
    fields = [terminus.address, durable, None, None, terminus.dynamic, None]
    if code == SOURCE:
        mode = symbol(_COPY) if terminus.copies else None
        fields += [mode, symbols_or_null(terminus.filters), None, None]
    return described(code, [*fields, capabilities])


def echo_terminus(value: Value, changes: Mapping[int, Value]) -> Value:
    """The peer's source or target with some fields changed, by their places; null stays null."""
    if value is None or not changes:
        return value
    fields = list(fields_of(value))
    for place, change in changes.items():
        fields += [None] * (place + 1 - len(fields))
        fields[place] = change
    return Described(value.descriptor, fields)


def read_terminus(value: Value) -> Terminus | None:
    """
    A source, target or coordinator; None if the value is null.

    Raises:
        MessageError: the value has another type.
    """
    if value is None:
        return None
    code, fields = code_of(value), fields_of(value)
    if code == COORDINATOR:
        return Terminus(coordinator=True, capabilities=named(fields, CAPABILITIES))
    if code not in (SOURCE, TARGET):
        raise MessageError(f"{code:#x} is no terminus")
    return Terminus(
        address=field(fields, 0, str),
        durable=_durability(field(fields, 1, int, 0)),
        dynamic=field(fields, 4, bool, False),
        copies=code == SOURCE and named(fields, 6) == (_COPY,),
        filters=by_name(field(fields, 7, dict, {})) if code == SOURCE else {},
        capabilities=named(fields, 10 if code == SOURCE else 6),
    )


def read_settle_modes(fields: list[Value]) -> tuple[SenderSettles, ReceiverSettles]:
    """
    The settle modes of an attach frame; a number that isn't a mode counts as the nearest mode.

    Raises:
        MessageError: one of both isn't a number.
    """
    sender = field(fields, 3, int, SenderSettles.MIXED)
    receiver = field(fields, 4, int, ReceiverSettles.FIRST)
    return SenderSettles(max(0, min(sender, 2))), ReceiverSettles(max(0, min(receiver, 1)))


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
