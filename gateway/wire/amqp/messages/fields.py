"""The fields of each section of a message (AMQP 1.0, part 3, section 3.2)."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Properties, Typed, Value, symbol
from gateway.wire.amqp.types import encode, encode_fields

MILLISECOND: Final = timedelta(milliseconds=1)
NO_HEADER: Final = (None, None, None)
NO_PROPERTIES: Final = (None,) * 13  # as many as a message has (part 3, 3.2.4)

_MAX_UINT: Final = 2**32 - 1  # of the type uint: 49.7 days, as a time to live in milliseconds
_NULL: Final = b"\x40"
_IDS: Final = (str, UUID, bytes)
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY: Final = "x-opt-partition-key"


# header: durable, priority, time to live


def write_header(values: tuple[bool | None, int | None, timedelta | None]) -> bytes:
    """The header's values; a time to live beyond the field's maximum is written as the maximum."""
    durable, priority, ttl = values
    milliseconds = None if ttl is None else life_in_header(ttl)
    return encode_fields(
        [
            encode(durable),
            _NULL if priority is None else encode(Typed(Kind.UBYTE, priority)),
            _NULL if milliseconds is None else encode(Typed(Kind.UINT, milliseconds)),
        ]
    )


def life_in_header(ttl: timedelta) -> int:
    """Whole milliseconds that fit; not zero for a shorter life, since zero is refused."""
    return min(ttl // MILLISECOND or int(ttl > timedelta(0)), _MAX_UINT)


def read_header(values: list[Value]) -> tuple[bool | None, int | None, timedelta | None]:
    """Durable, priority and time to live; first-acquirer and delivery-count are the broker's."""
    durable, priority, ttl, _, _ = _filled(values, 5)
    if durable is not None and not isinstance(durable, bool):
        raise MessageError("durable is no boolean")
    milliseconds = _read_number("ttl", ttl, Kind.UINT)
    return (
        durable,
        _read_number("priority", priority, Kind.UBYTE),
        None if milliseconds is None else timedelta(milliseconds=milliseconds),
    )


def _filled(values: list[Value], count: int) -> list[Value]:
    if len(values) > count:
        raise MessageError(f"{len(values)} fields, there are only {count}")
    return values + [None] * (count - len(values))


def _read_number(name: str, value: Value, kind: Kind) -> int | None:
    if value is None:
        return None
    if not isinstance(value, Typed) or value.kind is not kind:
        raise MessageError(f"{name} is no {kind.value}")
    number: int = value.value
    return number


# properties: thirteen fields


def _id(value: Value) -> Value:
    is_ulong = isinstance(value, Typed) and value.kind is Kind.ULONG
    if is_ulong or isinstance(value, _IDS):
        return value
    raise MessageError("is no ulong, uuid, binary or string")


def _text(value: Value) -> str:
    """Clients confuse symbols and strings here, and Python has one type for both."""
    if isinstance(value, str):
        return value
    if isinstance(value, Typed) and value.kind is Kind.SYMBOL:
        text: str = value.value
        return text
    raise MessageError("is no string")


def _binary(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    raise MessageError("is no binary")


def _moment(value: Value) -> Value:
    is_far = isinstance(value, Typed) and value.kind is Kind.TIMESTAMP
    if is_far or isinstance(value, datetime):
        return value
    raise MessageError("is no timestamp")


def _sequence(value: Value) -> int:
    number = _read_number("it", value, Kind.UINT)
    if number is None:
        raise MessageError("is no uint")
    return number


_Check = Callable[[Value], Value]

# Name, conversion from an AMQP value, and conversion to an AMQP value.
_PROPERTIES: Final[tuple[tuple[str, _Check, _Check], ...]] = (
    ("message-id", _id, _id),
    ("user-id", _binary, _binary),
    ("to", _text, _text),
    ("subject", _text, _text),
    ("reply-to", _text, _text),
    ("correlation-id", _id, _id),
    ("content-type", _text, symbol),
    ("content-encoding", _text, symbol),
    ("absolute-expiry-time", _moment, _moment),
    ("creation-time", _moment, _moment),
    ("group-id", _text, _text),
    ("group-sequence", _sequence, lambda number: Typed(Kind.UINT, number)),
    ("reply-to-group-id", _text, _text),
)
_NO_TEXTS: Final = frozenset((1, 8, 9, 11))  # places of the fields that can't be strings
_NO_STRINGS: Final = _NO_TEXTS | {6, 7}  # nor are these written as strings, but as symbols


def write_properties(values: tuple[Value, ...]) -> bytes:
    encoded: list[bytes] = []
    for place, value in enumerate(values):
        if value is None:
            continue
        encoded += [_NULL] * (place - len(encoded))
        name, _, check = _PROPERTIES[place]
        is_plain = type(value) is str and place not in _NO_STRINGS  # mostly
        try:
            encoded.append(encode(value if is_plain else check(value)))
        except MessageError as error:
            raise MessageError(f"{name}: {error}") from error
    return encode_fields(encoded)


def read_properties(values: list[Value]) -> tuple[Value, ...]:
    if len(values) > 13:
        raise MessageError(f"{len(values)} fields, there are only 13")
    read = values
    for place, value in enumerate(values):
        if value is None or (type(value) is str and place not in _NO_TEXTS):
            continue  # mostly, and `check` would return the value itself
        name, check, _ = _PROPERTIES[place]
        try:
            checked = check(value)
        except MessageError as error:
            raise MessageError(f"{name} {error}") from error
        if checked is not value:
            read = [*read[:place], checked, *read[place + 1 :]]
    return (*read, *NO_PROPERTIES[len(read) :])


# application-properties


def write_application_properties(properties: Properties) -> bytes:
    check_names(properties)
    return encode(dict(properties))


def read_application_properties(properties: dict[Value, Value]) -> dict[str, Value]:
    check_names(properties)
    return properties


def check_names(properties: Iterable[Value]) -> None:
    """
    Return if all names of application properties are strings (3.2.5).

    Raises:
        MessageError: a key isn't a string.
    """
    for name in properties:
        if not isinstance(name, str):
            raise MessageError(f"a key is a {type(name).__name__}, not a string")


# Annotations (and footer): keys are symbols, here plain strings; ulongs stay ulongs


def write_annotations(annotations: Properties) -> bytes:
    return encode(_with_symbols(annotations))


def read_annotations(annotations: dict[Value, Value]) -> dict[Value, Value]:
    read = {_read_key(key): value for key, value in annotations.items()}
    if len(read) != len(annotations):
        raise MessageError("a key stands there as symbol and as string")
    return read


def write_message_annotations(values: tuple[datetime | None, str | None, Properties]) -> bytes:
    scheduled, partition_key, others = values
    annotations = dict(others)
    if partition_key is not None:
        annotations[_PARTITION_KEY] = partition_key
    if scheduled is not None:
        annotations[_SCHEDULED] = scheduled
    return write_annotations(annotations)


def read_message_annotations(
    annotations: dict[Value, Value],
) -> tuple[datetime | None, str | None, Properties]:
    """
    Scheduled date, partition key, and all other annotations; a value of a wrong type counts among
    the others.
    """
    others = read_annotations(annotations)
    scheduled, partition_key = others.get(_SCHEDULED), others.get(_PARTITION_KEY)
    if isinstance(scheduled, datetime):
        del others[_SCHEDULED]
    if isinstance(partition_key, str):
        del others[_PARTITION_KEY]
    return (
        scheduled if isinstance(scheduled, datetime) else None,
        partition_key if isinstance(partition_key, str) else None,
        others,
    )


def _with_symbols(annotations: Properties) -> dict[Value, Value]:
    return {
        symbol(key) if isinstance(key, str) else _ulong(key): value
        for key, value in annotations.items()
    }


def _read_key(key: Value) -> Value:
    if isinstance(key, Typed) and key.kind is Kind.SYMBOL:
        return key.value
    return key if isinstance(key, str) else _ulong(key)


def _ulong(key: Value) -> Typed:
    if isinstance(key, Typed) and key.kind is Kind.ULONG:
        return key
    raise MessageError("a key is no symbol")
