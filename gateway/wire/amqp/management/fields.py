"""The entries in the maps of requests to $management and of their replies."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import attrs

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Message, ReceiveMode, Typed, Value
from gateway.wire.amqp.exchange import number_of, text_of
from gateway.wire.amqp.message import decode_message, encode_message

Fields = Mapping[str, Value]

# Of the types int and long (part 1, 1.6).
_MOST_INT: Final = 2**31 - 1
_MOST_LONG: Final = 2**63 - 1
_MODES: Final = {0: ReceiveMode.RECEIVE_AND_DELETE, 1: ReceiveMode.PEEK_LOCK}


@attrs.frozen
class TypeCodec:
    """
    A type: its name for errors, its reader (which returns None for other types), and its writer.
    """

    expected: str
    read: Callable[[Value], Any]
    write: Callable[[Any], Value]


@attrs.frozen
class Field:
    """An entry of a map, and the attribute whose value it has."""

    name: str  # on the wire
    attribute: str
    codec: TypeCodec
    required: bool = True
    null: bool = False  # None is written too, as null

    def read(self, fields: Fields) -> Any:
        """
        The field's value.

        Raises:
            MessageError: the text names the field and what is expected.
        """
        value = fields.get(self.name)
        if value is None and not self.required:
            return None
        try:
            read = None if value is None else self.codec.read(value)
        except MessageError as error:
            raise MessageError(f"{self.name}: {error}") from error
        if read is None:
            raise MessageError(f"{self.name}: {self.codec.expected} expected")
        return read


def fields_of(body: Value) -> Fields:
    """
    The entries of a map, whose keys are strings (or symbols). A missing body is an empty map.

    Raises:
        MessageError: the body isn't a map.
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise MessageError("body: a map expected, in an amqp-value")
    return {name: value for key, value in body.items() if (name := text_of(key)) is not None}


def items_of(value: Value) -> list[Value] | None:
    """The elements of an array or list; None for all other values."""
    if isinstance(value, Typed) and value.kind is Kind.ARRAY:
        return list(value.value)
    return value if isinstance(value, list) else None


def array_of(codec: TypeCodec) -> TypeCodec:
    """Arrays, which may also be encoded as lists."""

    def read(value: Value) -> tuple[Any, ...] | None:
        items = items_of(value)
        if items is None:
            return None
        found = tuple(map(codec.read, items))
        return None if None in found else found

    def write(values: tuple[Any, ...]) -> Value:
        return Typed(Kind.ARRAY, tuple(map(codec.write, values)))

    return TypeCodec(f"an array, each {codec.expected},", read, write)


def _typed(kind: Kind) -> Callable[[Any], Value]:
    return lambda value: Typed(kind, value)


def _same(value: Any) -> Any:
    return value


def _read_uuid(value: Value) -> str | None:
    return str(value) if isinstance(value, UUID) else None


def _read_moment(value: Value) -> datetime | None:
    """Clients express "never" by dates beyond the range of datetime."""
    if isinstance(value, Typed) and value.kind is Kind.TIMESTAMP:
        return datetime.max.replace(tzinfo=UTC) if value.value > 0 else None
    return value if isinstance(value, datetime) else None


def _read_mode(value: Value) -> ReceiveMode | None:
    number = number_of(value)
    return None if number is None else _MODES.get(number)


def _write_mode(mode: ReceiveMode) -> Value:
    return Typed(Kind.UINT, int(mode is ReceiveMode.PEEK_LOCK))


def _read_count(value: Value) -> int | None:
    number = number_of(value)
    return number if number is not None and 0 <= number <= _MOST_INT else None


def _read_long(value: Value) -> int | None:
    number = number_of(value)
    return number if number is not None and abs(number) <= _MOST_LONG else None


def _read_texts(value: Value) -> tuple[str, ...] | None:
    items = items_of(value)
    texts = tuple(text_of(item) for item in items or ())
    return None if items is None or None in texts else texts  # type: ignore[return-value]


def _read_map(value: Value) -> dict[str, Value] | None:
    if not isinstance(value, dict):
        return None
    named = {text_of(key): each for key, each in value.items()}
    return None if None in named else named  # type: ignore[return-value]


def _read_scheduled(value: Value) -> tuple[Message, ...] | None:
    items = items_of(value)
    if not items:
        return None
    return tuple(decode_message(_MESSAGE.read(fields_of(item))) for item in items)


def _write_scheduled(messages: tuple[Message, ...]) -> Value:
    """
    The entries beside the message repeat its properties, for brokers that don't decode the message.
    """
    items = []
    for message in messages:
        item = {"message-id": message.message_id, "message": encode_message(message)}
        if message.session_id is not None:
            item["session-id"] = message.session_id
        if message.partition_key is not None:
            item["partition-key"] = message.partition_key
        items.append(item)
    return items


TEXT: Final = TypeCodec("a string", text_of, _same)
LONG: Final = TypeCodec("a long", _read_long, _same)
COUNT: Final = TypeCodec("a number from 0 on", _read_count, _typed(Kind.INT))
FLAG: Final = TypeCodec("a boolean", lambda v: v if isinstance(v, bool) else None, _same)
BINARY: Final = TypeCodec("a binary", lambda v: v if isinstance(v, bytes) else None, _same)
UUIDS: Final = array_of(TypeCodec("a uuid", _read_uuid, UUID))
LONGS: Final = array_of(LONG)
MOMENT: Final = TypeCodec("a timestamp", _read_moment, _same)
MOMENTS: Final = array_of(MOMENT)
MODE: Final = TypeCodec("0 or 1", _read_mode, _write_mode)
TEXTS: Final = TypeCodec(
    "an array of strings", _read_texts, lambda texts: Typed(Kind.ARRAY, tuple(texts))
)
MAP: Final = TypeCodec("a map of strings", _read_map, dict)
_MESSAGE: Final = Field("message", "", BINARY)
SCHEDULED: Final = TypeCodec("a list of messages", _read_scheduled, _write_scheduled)
