"""
SQL actions of subscription rules: a text is compiled once to a function that changes messages.

Statements run in their order, each on the result of those before. An unknown value, as of a missing
property, is stored as null; a system property without a value is removed.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from gateway.domain.envelope_fields import TICKS_PER_MICROSECOND, TIMESPAN
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Kind, Message, Typed, Value, derive_message, symbol
from gateway.domain.topics.property_values import MessageReader, check_message_id, plain
from gateway.wire.sql.filter import compile_expression, system_field
from gateway.wire.sql.parser import parse_action
from gateway.wire.sql.tree import Lookup, NewId, Property, Remove, Scope, Set

_Change = Callable[[Message], Message]

_LARGEST: Final = {
    Kind.UBYTE: (0, 2**8 - 1),
    Kind.USHORT: (0, 2**16 - 1),
    Kind.UINT: (0, 2**32 - 1),
    Kind.ULONG: (0, 2**64 - 1),
    Kind.BYTE: (-(2**7), 2**7 - 1),
    Kind.SHORT: (-(2**15), 2**15 - 1),
    Kind.INT: (-(2**31), 2**31 - 1),
}


def compile_action(
    expression: str, parameters: Mapping[str, Any], new_id: Callable[[], str]
) -> _Change:
    """
    Compile the function that changes a message. `new_id` returns the text of a new UUID each time,
    for `newid()`.

    The function raises `InvalidRequest` if a statement can't be applied to a message: a system
    property would get a value that it can't have.

    Raises:
        InvalidRequest: the text has the position in the expression and what is expected there.
    """
    action = parse_action(expression, parameters)
    steps = [_compiled(statement, new_id) for statement in action.statements]

    def change(message: Message) -> Message:
        for step in steps:
            message = step(message)
        return message

    return change


def _compiled(statement: Set | Remove, new_id: Callable[[], str]) -> _Change:
    target = statement.property
    if isinstance(statement, Set):
        value = _value_of(statement, new_id)
        if target.scope is Scope.SYSTEM:
            return _system_setter(target.name, value)
        return _user_setter(target.name, value)
    if target.scope is Scope.SYSTEM:
        return _system_setter(target.name, lambda _message: None)
    return _user_remover(target.name)


def _value_of(statement: Set, new_id: Callable[[], str]) -> Callable[[Message], Value]:
    """A copied property keeps the AMQP type that it has; other values are plain."""
    node = statement.value
    if isinstance(node, Property) and node.scope is Scope.USER:
        copied = node.name
        return lambda message: MessageReader(message).get(copied)
    if isinstance(node, NewId):
        return lambda _message: UUID(new_id())
    if isinstance(node, Lookup):
        computed = compile_expression(node.name)

        def look_up(message: Message) -> Value:
            name = computed(MessageReader(message))
            return MessageReader(message).get(name) if isinstance(name, str) else None

        return look_up
    evaluate = compile_expression(node)
    return lambda message: evaluate(MessageReader(message))


# Application properties


def _user_setter(name: str, value: Callable[[Message], Value]) -> _Change:
    def set_property(message: Message) -> Message:
        properties = dict(message.properties)
        key = _key_of(properties, name)
        properties[key] = _typed_as(properties.get(key), value(message))
        return derive_message(message, properties=properties)

    return set_property


def _user_remover(name: str) -> _Change:
    folded = name.lower()

    def remove(message: Message) -> Message:
        kept = {key: each for key, each in message.properties.items() if key.lower() != folded}
        return derive_message(message, properties=kept)

    return remove


def _key_of(properties: Mapping[str, Value], name: str) -> str:
    """The key that `MessageReader.get` finds under that name; else the name itself."""
    if name in properties:
        return name
    folded = name.lower()
    return next((key for key in reversed([*properties]) if key.lower() == folded), name)


def _typed_as(old: Value, new: Any) -> Value:
    """
    The value in the AMQP type of the property that it replaces, if that loses nothing; otherwise in
    the type that the expression has.
    """
    if new.__class__ is timedelta:
        return Described(TIMESPAN, new // timedelta(microseconds=1) * TICKS_PER_MICROSECOND)
    if new.__class__ is int and old.__class__ is float:
        return float(new)
    if not isinstance(old, Typed):
        return new
    if new.__class__ is int and old.kind in _LARGEST:
        least, most = _LARGEST[old.kind]
        return Typed(old.kind, new) if least <= new <= most else new
    if new.__class__ in {int, float} and old.kind is Kind.FLOAT:
        return Typed(Kind.FLOAT, float(new))
    return symbol(new) if new.__class__ is str and old.kind is Kind.SYMBOL else new


# System properties


def _system_setter(name: str, value: Callable[[Message], Value]) -> _Change:
    field = system_field(name)
    convert = _CONVERTERS.get(field, _text)

    def set_field(message: Message) -> Message:
        return derive_message(message, **{field: convert(name, value(message))})

    return set_field


def _text(name: str, value: Value) -> str | None:
    text = plain(value)
    if value is None:
        return None
    if isinstance(text, str):
        return text
    if text.__class__ in {int, UUID}:
        return str(text)
    raise InvalidRequest(f"SQL action, sys.{name}: a text expected, got {value!r:.60}")


def _id(name: str, value: Value) -> str | None:
    text = _text(name, value)
    check_message_id(text)
    return text


def _life(name: str, value: Value) -> timedelta | None:
    span = plain(value)
    if value is None:
        return None
    if isinstance(span, timedelta) and span > timedelta():
        return span
    raise InvalidRequest(f"SQL action, sys.{name}: a duration above zero expected")


_CONVERTERS: Final[Mapping[str, Callable[[str, Value], Value]]] = {
    "message_id": _id,
    "time_to_live": _life,
}
