"""
A subscription's rules in $management: as maps when a rule is added, as described lists when rules
are listed.

    rule-name            "r1"
    rule-description     {sql-filter: {expression} | correlation-filter: {label, ..., properties},
                          sql-rule-action: {expression}}

    [{rule-description: rule-description:list[filter:list[...], action:list[...], name, created]}]

Neither form has a place for the parameters of SQL.
"""

from datetime import datetime
from typing import Any, Final

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Described, Kind, Typed, Value
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    check_rule,
)
from gateway.wire.amqp.exchange import text_of
from gateway.wire.amqp.management.fields import (
    MAP,
    TEXT,
    Field,
    Fields,
    TypeCodec,
    fields_of,
    items_of,
)
from gateway.wire.amqp.performatives import code_of, described

# Descriptors: Microsoft's number, and the type's.
_RULE: Final = 0x13700000004
_NO_ACTION: Final = 0x13700000005
_ACTION: Final = 0x13700000006
_SQL: Final = 0x1370000006  # the filters' codes have a digit less
_TRUE: Final = 0x1370000007
_FALSE: Final = 0x1370000008
_CORRELATION: Final = 0x1370000009

_EVERYTHING: Final = "1=1"
_NOTHING: Final = "1=0"

_NAME: Final = Field("rule-name", "name", TEXT)
_DESCRIPTION: Final = Field("rule-description", "", MAP)
_SQL_FILTER: Final = Field("sql-filter", "", MAP, required=False)
_CORRELATION_FILTER: Final = Field("correlation-filter", "", MAP, required=False)
_SQL_ACTION: Final = Field("sql-rule-action", "", MAP, required=False)
_EXPRESSION: Final = Field("expression", "expression", TEXT)
_CRITERIA: Final = (  # in the order of the described list
    Field("correlation-id", "correlation_id", TEXT, required=False),
    Field("message-id", "message_id", TEXT, required=False),
    Field("to", "to", TEXT, required=False),
    Field("reply-to", "reply_to", TEXT, required=False),
    Field("label", "label", TEXT, required=False),
    Field("session-id", "session_id", TEXT, required=False),
    Field("reply-to-session-id", "reply_to_session_id", TEXT, required=False),
    Field("content-type", "content_type", TEXT, required=False),
    Field("properties", "properties", MAP, required=False),
)


def read_rule(fields: Fields) -> Rule:
    """
    The rule to be added.

    Raises:
        MessageError: the text names the field and what is expected.
    """
    description = fields_of(_DESCRIPTION.read(fields))
    action = _SQL_ACTION.read(description)
    return _checked(
        Rule(
            name=_NAME.read(fields),
            filter=_read_filter(description),
            action=None if action is None else SqlAction(expression=_EXPRESSION.read(action)),
        )
    )


def write_rule(rule: Rule) -> Fields:
    """
    The map that adds the rule.

    Raises:
        MessageError: the rule's SQL has parameters.
    """
    description: dict[str, Value] = {_NAME.name: rule.name}
    match rule.filter:
        case CorrelationFilter():
            description[_CORRELATION_FILTER.name] = {
                each.name: value
                for each in _CRITERIA
                if (value := getattr(rule.filter, each.attribute))
            }
        case _:
            description[_SQL_FILTER.name] = {_EXPRESSION.name: _expression_of(rule.filter)}
    if rule.action is not None:
        description[_SQL_ACTION.name] = {_EXPRESSION.name: _sql_of(rule.action)}
    return {_NAME.name: rule.name, _DESCRIPTION.name: description}


def _read_filter(description: Fields) -> Filter:
    sql, correlation = _SQL_FILTER.read(description), _CORRELATION_FILTER.read(description)
    if (sql is None) == (correlation is None):
        raise MessageError("rule-description: either sql-filter or correlation-filter expected")
    if sql is not None:
        return _sql_filter(_EXPRESSION.read(sql))
    return CorrelationFilter(**_criteria(correlation))


def _criteria(fields: Fields) -> dict[str, Any]:
    found = {each.attribute: each.read(fields) for each in _CRITERIA}
    return {name: value for name, value in found.items() if value is not None}


def _sql_filter(expression: str) -> Filter:
    """
    Service Bus expresses a true and a false filter in SQL, and no client can tell the difference.
    """
    if expression == _EVERYTHING:
        return TrueFilter()
    return FalseFilter() if expression == _NOTHING else SqlFilter(expression=expression)


def _expression_of(rule_filter: TrueFilter | FalseFilter | SqlFilter) -> str:
    match rule_filter:
        case TrueFilter():
            return _EVERYTHING
        case FalseFilter():
            return _NOTHING
        case SqlFilter():
            return _sql_of(rule_filter)


def _sql_of(sql: SqlFilter | SqlAction) -> str:
    if sql.parameters:
        raise MessageError("expression: its parameters can't be expressed in AMQP")
    return sql.expression


def _checked(rule: Rule) -> Rule:
    try:
        check_rule(rule)
    except InvalidRequest as error:
        raise MessageError(str(error)) from error
    return rule


# Enumerated


def _described_rule(rule: Rule) -> Value:
    fields = [
        _described_filter(rule.filter),
        described(_NO_ACTION, [])
        if rule.action is None
        else described(_ACTION, [rule.action.expression, Typed(Kind.INT, 20)]),
        rule.name,
        rule.created,
    ]
    return {_DESCRIPTION.name: described(_RULE, fields)}


def _described_filter(rule_filter: Filter) -> Described:
    match rule_filter:
        case TrueFilter():
            return described(_TRUE, [])
        case FalseFilter():
            return described(_FALSE, [])
        case SqlFilter(expression=expression):
            return described(_SQL, [expression, Typed(Kind.INT, 20)])
        case CorrelationFilter():
            criteria = [getattr(rule_filter, each.attribute) for each in _CRITERIA[:-1]]
            return described(_CORRELATION, [*criteria, dict(rule_filter.properties)])


def _read_rules(value: Value) -> tuple[Rule, ...] | None:
    items = items_of(value)
    return None if items is None else tuple(map(_read_described, items))


def _read_described(item: Value) -> Rule:
    rule = fields_of(item).get(_DESCRIPTION.name)
    rule_filter, action, name, created = _four(_list_of(rule, _RULE))
    return Rule(
        name=TEXT.read(name) or "",
        filter=_filter_of(rule_filter),
        action=_action_of(action),
        created=created if isinstance(created, datetime) else None,
    )


def _filter_of(value: Value) -> Filter:
    match code_of(value):
        case code if code == _TRUE:
            return TrueFilter()
        case code if code == _FALSE:
            return FalseFilter()
        case code if code == _SQL:
            return SqlFilter(expression=_first(_list_of(value, _SQL)))
    criteria = zip((each.name for each in _CRITERIA), _list_of(value, _CORRELATION), strict=False)
    return CorrelationFilter(**_criteria(dict(criteria)))


def _action_of(value: Value) -> SqlAction | None:
    if value is None or code_of(value) == _NO_ACTION:
        return None
    return SqlAction(expression=_first(_list_of(value, _ACTION)))


def _list_of(value: Value, code: int) -> list[Value]:
    if isinstance(value, Described) and code_of(value) == code and isinstance(value.value, list):
        return value.value
    raise MessageError(f"a list described by {code:#x} expected")


def _four(fields: list[Value]) -> list[Value]:
    return (fields + [None] * 4)[:4]


def _first(fields: list[Value]) -> str:
    expression = text_of(fields[0]) if fields else None
    if expression is None:
        raise MessageError("an expression expected")
    return expression


RULES: Final = TypeCodec(
    "a list of rules", _read_rules, lambda rules: [_described_rule(rule) for rule in rules]
)
