"""How queues, topics, subscriptions and rules are written down."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import attrs
import cattrs

from gateway.domain.entity import QueueProperties
from gateway.domain.message import Message, Properties
from gateway.domain.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from gateway.domain.stored import MICROSECOND, to_date, to_micros
from gateway.domain.topology import Properties as EntityProperties
from gateway.domain.topology import SubscriptionProperties, TopicProperties
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
    """The rule as JSON, and the values of its filter and its action with their types."""
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
        name=fields["name"],
        filter=kind(**filter_fields),
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
    """Values of every AMQP type, as the application properties of a message without a body."""
    return encode_message(Message(properties=values))


def _read_values(content: bytes) -> Properties:
    return decode_message(content).properties
