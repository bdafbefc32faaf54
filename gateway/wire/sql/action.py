"""
SQL actions of subscription rules: a text is compiled once to a function that changes messages.

Statements run in their order, each on the result of those before. An unknown value, as of a missing
property, is stored as null; a system property without a value is removed.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import attrs

from gateway.domain.envelope_fields import TICKS_PER_MICROSECOND, TIMESPAN
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Kind, Message, Typed, Value, derive_message, symbol
from gateway.domain.topics.property_values import MessageReader, check_message_id, plain
from gateway.wire.sql.filter import compile_expression, system_field
from gateway.wire.sql.parser import parse_action
from gateway.wire.sql.tree import Lookup, NewId, Property, Remove, Scope, Set

_Change = Callable[[Message], Message]
_Step = Callable[["_Draft"], None]

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
        draft = _Draft(message)
        for step in steps:
            step(draft)
        return derive_message(draft.message, properties=draft.properties)

    return change


@attrs.define(eq=False)
class _Draft(MessageReader):
    """
    A message on its way through the statements: `message` has its fields, `properties` its
    application properties. They are copied once, as there may be 100,000 of them.
    """

    properties: dict[str, Value] = attrs.field(init=False)
    _keys: dict[str, list[str]] | None = attrs.field(default=None, init=False)  # by folded name

    def __attrs_post_init__(self) -> None:
        self.properties = dict(self.message.properties)

    def get(self, name: str, absent: Any = None) -> Value:
        """As `MessageReader.get`."""
        return self.properties.get(self._key_of(name), absent)

    def set(self, name: str, value: Any) -> None:
        """Set the property that `get` finds under that name; else a new one."""
        key = self._key_of(name)
        if key not in self.properties:
            self._same(name).append(key)
        self.properties[key] = _typed_as(self.properties.get(key), value)

    def remove(self, name: str) -> None:
        """Remove all properties with that name, without regard to case."""
        same = self._same(name)
        for key in same:
            del self.properties[key]
        same.clear()

    def _key_of(self, name: str) -> str:
        if name in self.properties:
            return name
        same = self._same(name)
        return same[-1] if same else name

    def _same(self, name: str) -> list[str]:
        """The keys that differ from the name in case only, in the order of the properties."""
        if self._keys is None:
            self._keys = {}
            for key in self.properties:
                self._keys.setdefault(key.lower(), []).append(key)
        return self._keys.setdefault(name.lower(), [])


def _compiled(statement: Set | Remove, new_id: Callable[[], str]) -> _Step:
    target = statement.property
    if isinstance(statement, Set):
        value = _value_of(statement, new_id)
        if target.scope is Scope.SYSTEM:
            return _system_setter(target.name, value)
        return _user_setter(target.name, value)
    if target.scope is Scope.SYSTEM:
        return _system_setter(target.name, lambda _draft: None)
    return _user_remover(target.name)


def _value_of(statement: Set, new_id: Callable[[], str]) -> Callable[[_Draft], Value]:
    """A copied property keeps the AMQP type that it has; other values are plain."""
    node = statement.value
    if isinstance(node, Property) and node.scope is Scope.USER:
        copied = node.name
        return lambda draft: draft.get(copied)
    if isinstance(node, NewId):
        return lambda _draft: UUID(new_id())
    if isinstance(node, Lookup):
        computed = compile_expression(node.name)

        def look_up(draft: _Draft) -> Value:
            name = computed(draft)
            return draft.get(name) if isinstance(name, str) else None

        return look_up
    return compile_expression(node)


# Application properties


def _user_setter(name: str, value: Callable[[_Draft], Value]) -> _Step:
    return lambda draft: draft.set(name, value(draft))


def _user_remover(name: str) -> _Step:
    return lambda draft: draft.remove(name)


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


def _system_setter(name: str, value: Callable[[_Draft], Value]) -> _Step:
    field = system_field(name)
    convert = _CONVERTERS.get(field, _text)

    def set_field(draft: _Draft) -> None:
        draft.message = derive_message(draft.message, **{field: convert(name, value(draft))})

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
