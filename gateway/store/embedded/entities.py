"""The stored form of queues, topics, subscriptions and rules."""

import json
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import attrs
import cattrs

from gateway.domain.clocks.times import MICROSECOND, to_date, to_micros
from gateway.domain.entity import QueueProperties
from gateway.domain.message import Described, Message, Properties, Value, symbol
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from gateway.domain.topics.topology import Properties as EntityProperties
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.wire.amqp.message import decode_message, encode_message

_KINDS: Final[Mapping[str, type[EntityProperties]]] = {
    "queue": QueueProperties,
    "topic": TopicProperties,
    "subscription": SubscriptionProperties,
}
_FILTERS: Final[Mapping[str, type[Filter]]] = {
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
    "sql": SqlFilter,
}

_ALL: Final = TrueFilter()  # of most subscriptions

_LOCAL_DATE: Final = symbol("pairgate:local-date")

_converter: Final = cattrs.Converter()
_converter.register_unstructure_hook(timedelta, lambda span: span // MICROSECOND)
_converter.register_structure_hook(timedelta, lambda micros, _: timedelta(microseconds=micros))


def kind_of(properties: EntityProperties) -> str:
    return next(name for name, kind in _KINDS.items() if isinstance(properties, kind))


def write_properties(properties: EntityProperties) -> str:
    return json.dumps(_converter.unstructure(properties))


def read_properties(kind: str, text: str) -> EntityProperties:
    return _converter.structure(json.loads(text), _KINDS[kind])


def write_rule(rule: Rule) -> tuple[str, bytes, bytes]:
    """The rule as JSON, and the typed values of its filter and its action."""
    texts = {
        name: value
        for name in _texts_of(type(rule.filter))
        if (value := getattr(rule.filter, name)) is not None
    }
    fields = {
        "name": rule.name,
        "created": None if rule.created is None else to_micros(rule.created),
        "kind": next(kind for kind, cls in _FILTERS.items() if isinstance(rule.filter, cls)),
        "filter": texts,
        "action": None if rule.action is None else rule.action.expression,
    }
    action_values = {} if rule.action is None else rule.action.parameters
    return json.dumps(fields), _write_values(_values_of(rule.filter)), _write_values(action_values)


def read_rule(text: str, filter_values: bytes, action_values: bytes) -> Rule:
    fields = json.loads(text)
    kind, action, created = _FILTERS[fields["kind"]], fields["action"], fields["created"]
    filter_fields: dict[str, Any] = fields["filter"]
    if (values := _values_field(kind)) is not None:
        filter_fields[values] = _read_values(filter_values)
    return Rule(
        name=sys.intern(fields["name"]),  # few names differ
        filter=_ALL if kind is TrueFilter else kind(**filter_fields),
        action=None
        if action is None
        else SqlAction(expression=action, parameters=_read_values(action_values)),
        created=None if created is None else to_date(created),
    )


def _texts_of(kind: type[Filter]) -> list[str]:
    return [field.name for field in attrs.fields(kind) if field.name != _values_field(kind)]


def _values_field(kind: type[Filter]) -> str | None:
    return {CorrelationFilter: "properties", SqlFilter: "parameters"}.get(kind)


def _values_of(rule_filter: Filter) -> Properties:
    field = _values_field(type(rule_filter))
    return {} if field is None else getattr(rule_filter, field)


def _write_values(values: Properties) -> bytes:
    """Encode values of all AMQP types as the application properties of a message without a body."""
    written = {name: _written(value) for name, value in values.items()}
    return encode_message(Message(properties=written))


def _read_values(content: bytes) -> Properties:
    found = decode_message(content).properties
    return {name: _read(value) for name, value in found.items()}


def _written(value: Value) -> Value:
    """
    Wrap a date without a time zone: AMQP has no such type, and clients want the date back
    unchanged.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        return Described(_LOCAL_DATE, value.isoformat())
    return value


def _read(value: Value) -> Value:
    if isinstance(value, Described) and value.descriptor == _LOCAL_DATE:
        return datetime.fromisoformat(value.value)
    return value
