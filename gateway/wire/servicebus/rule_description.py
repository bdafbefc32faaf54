"""
RuleDescription: the filter and the action of a subscription's rule, both directions.

    <RuleDescription xmlns="..." xmlns:i="...">
      <Filter i:type="SqlFilter">                     or TrueFilter, FalseFilter, CorrelationFilter
        <SqlExpression>size &gt; @p</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>
        <Parameters>                                  of SQL; a correlation filter has <Properties>
          <KeyValueOfstringanyType><Key>@p</Key>
            <Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">5</Value>
          </KeyValueOfstringanyType>
        </Parameters>
      </Filter>
      <Action i:type="SqlRuleAction">...</Action>     or EmptyRuleAction
      <CreatedAt>...</CreatedAt><Name>...</Name>
    </RuleDescription>
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element

import attrs

from gateway.domain.envelope_fields import TICKS_PER_MICROSECOND, TIMESPAN
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Kind, Properties, Typed, Value
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
from gateway.wire.servicebus.description import INSTANCE, NAMESPACE, enclosed, leaf, parsed
from gateway.wire.servicebus.management_values import (
    MAX_INT,
    date_text,
    duration_text,
    flag_text,
    parse_date,
    parse_duration,
    parse_flag,
)

ELEMENT: Final = "RuleDescription"
_TYPE: Final = f"{{{INSTANCE}}}type"
_LEVEL: Final = "<CompatibilityLevel>20</CompatibilityLevel>"
CORRELATION: Final = (  # in wire order: element, field
    ("CorrelationId", "correlation_id"),
    ("MessageId", "message_id"),
    ("To", "to"),
    ("ReplyTo", "reply_to"),
    ("Label", "label"),
    ("SessionId", "session_id"),
    ("ReplyToSessionId", "reply_to_session_id"),
    ("ContentType", "content_type"),
)


def build(rule: Rule) -> str:
    """
    Build the element, for a request and for an answer.

    Raises:
        InvalidRequest: a text that XML can't hold, or a value of a type that rules don't have.
    """
    return enclosed(ELEMENT, _content(rule))


def build_part(element: str, rule: Rule) -> str:
    """As `build`, for an element of that name within another description."""
    return f"<{element}>{_content(rule)}</{element}>"


def parse(description: Element, name: str) -> Rule:
    """
    Parse a rule with that name. Without a filter it accepts every message.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    created = _find(description, "CreatedAt")
    rule = Rule(
        name=name,
        filter=_parse_filter(_find(description, "Filter")),
        action=_parse_action(_find(description, "Action")),
        created=None if created is None else parsed("CreatedAt", parse_date, created.text or ""),
    )
    check_rule(rule)
    return rule


def _content(rule: Rule) -> str:
    action = rule.action
    return "".join(
        (
            _build_filter(rule.filter),
            '<Action i:type="EmptyRuleAction"/>'
            if action is None
            else _sql("Action", "SqlRuleAction", action.expression, action.parameters),
            "" if rule.created is None else leaf("CreatedAt", date_text(rule.created)),
            leaf("Name", rule.name),
        )
    )


# Filters and actions


def _build_filter(rule_filter: Filter) -> str:
    match rule_filter:
        case TrueFilter():
            return _sql("Filter", "TrueFilter", "1=1", {})
        case FalseFilter():
            return _sql("Filter", "FalseFilter", "1=0", {})
        case SqlFilter(expression=expression, parameters=parameters):
            return _sql("Filter", "SqlFilter", expression, parameters)
        case CorrelationFilter(properties=properties):
            fields = "".join(
                leaf(element, text)
                for element, name in CORRELATION
                if (text := getattr(rule_filter, name)) is not None
            )
            wanted = build_values("Properties", properties)
            return f'<Filter i:type="CorrelationFilter">{fields}{wanted}</Filter>'


def _sql(element: str, kind: str, expression: str, parameters: Properties) -> str:
    return (
        f'<{element} i:type="{kind}">{leaf("SqlExpression", expression)}{_LEVEL}'
        f"{build_values('Parameters', parameters)}</{element}>"
    )


def _parse_filter(element: Element | None) -> Filter:
    kind = "TrueFilter" if element is None else _type_of(element)
    if element is None or kind == "TrueFilter":
        return TrueFilter()
    match kind:
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(**_parse_sql(element))
        case "CorrelationFilter":
            texts = {name: _find(element, tag) for tag, name in CORRELATION}
            fields = {name: e.text for name, e in texts.items() if e is not None and e.text}
            return CorrelationFilter(**fields, properties=parse_values(element, "Properties"))
        case _:
            raise InvalidRequest(
                "Filter: SqlFilter, TrueFilter, FalseFilter or CorrelationFilter expected,"
                f" got {kind!r:.60}"
            )


def _parse_action(element: Element | None) -> SqlAction | None:
    kind = "EmptyRuleAction" if element is None else _type_of(element)
    if element is None or kind == "EmptyRuleAction":
        return None
    if kind != "SqlRuleAction":
        raise InvalidRequest(f"Action: SqlRuleAction or EmptyRuleAction expected, got {kind!r:.60}")
    return SqlAction(**_parse_sql(element))


def _parse_sql(element: Element) -> dict[str, Any]:
    expression = _find(element, "SqlExpression")
    return {
        "expression": "" if expression is None else expression.text or "",
        "parameters": parse_values(element, "Parameters"),
    }


def _find(parent: Element, name: str) -> Element | None:
    """A child element; an element that is xsi:nil counts as missing."""
    child = parent.find(f"{{{NAMESPACE}}}{name}")
    return None if child is None or child.get(f"{{{INSTANCE}}}nil") == "true" else child


def _type_of(element: Element) -> str:
    return element.get(_TYPE, "").rpartition(":")[2]


MAX_VALUES: Final = 1000  # of one filter or action
_XSD: Final = "http://www.w3.org/2001/XMLSchema"
# Of a duration, in the answers that the SDKs have recorded; they themselves write it in XSD's.
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_MAX_LONG: Final = 2**63 - 1  # of a signed 64-bit number, .NET's long
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def build_values(element: str, values: Mapping[str, Value]) -> str:
    """
    Build the element with the values; empty without values.

    Raises:
        InvalidRequest: XML can't express a text, or a value has a type that rules don't support.
    """
    if not values:
        return ""
    return f"<{element}>{''.join(map(_build_value, values, values.values()))}</{element}>"


def _build_value(key: str, value: Value) -> str:
    kind = _type_for(key, value)
    # Clients rely on exactly this prefix.
    namespace = _SERIALIZATION if kind is _DURATION else _XSD
    attributes = f' i:type="d6p1:{kind.name}" xmlns:d6p1="{namespace}"'
    return (
        f"<KeyValueOfstringanyType>{leaf('Key', key)}"
        f"{leaf('Value', kind.render(value), attributes)}</KeyValueOfstringanyType>"
    )


def parse_values(parent: Element, element: str) -> dict[str, Value]:
    """
    Parse the values of that child.

    Raises:
        InvalidRequest: the text names the key, and what is expected.
    """
    found = parent.find(f"{{*}}{element}")
    pairs = [] if found is None else found.findall("{*}KeyValueOfstringanyType")
    if len(pairs) > MAX_VALUES:
        raise InvalidRequest(f"{element}: up to {MAX_VALUES} expected, got {len(pairs)}")
    return dict(map(_parse_value, pairs))


def _parse_value(pair: Element) -> tuple[str, Value]:
    key, value = pair.find("{*}Key"), pair.find("{*}Value")
    if key is None or not key.text or value is None:
        raise InvalidRequest("KeyValueOfstringanyType: a Key and a Value expected")
    name = value.get(f"{{{INSTANCE}}}type", "string").rpartition(":")[2]
    kind = _TYPES.get(name)
    if kind is None:
        raise InvalidRequest(
            f"{key.text:.60}: a type of {', '.join(_TYPES)} expected, got {name!r:.60}"
        )
    return key.text, parsed(key.text, kind.parse, value.text or "")


# Types


@attrs.frozen
class _ValueType:
    """A type of XML Schema: how its values are written and read."""

    name: str
    render: Callable[[Any], str]
    parse: Callable[[str], Value]


def _parse_integer(most: int, text: str) -> int:
    stripped = text.strip()
    if not _INTEGER.fullmatch(stripped) or not -most - 1 <= int(stripped) <= most:
        raise ValueError(f"a number from {-most - 1} to {most} expected")
    return int(stripped)


def _parse_int(text: str) -> Value:
    """Numbers beyond 32 bits are long: 7.15 calls every number below 2^31 an int."""
    number = _parse_integer(_MAX_LONG, text)
    return Typed(Kind.INT, number) if -MAX_INT - 1 <= number <= MAX_INT else number


def _parse_double(text: str) -> float:
    if "_" in text:  # Python accepts underscores
        raise ValueError("a number expected")
    return float(text)


def _double_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}INF"


def _parse_span(text: str) -> Described:
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    span = parse_duration(text.strip())
    if span is None:
        raise ValueError("a shorter duration expected")
    return Described(TIMESPAN, sign * (span // timedelta(microseconds=1)) * TICKS_PER_MICROSECOND)


def _span_text(value: Described) -> str:
    span = timedelta(microseconds=abs(value.value) // TICKS_PER_MICROSECOND)
    return f"{'-' if value.value < 0 else ''}{duration_text(span)}"


def _moment_text(value: datetime) -> str:
    """A date without a time zone stays so: clients expect the text that they wrote."""
    return value.isoformat() if value.tzinfo is None else date_text(value)


def _parse_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text.strip())
    return moment if moment.tzinfo is None else moment.astimezone(UTC)


_STRING: Final = _ValueType("string", str, str)
_INT: Final = _ValueType("int", lambda value: str(value.value), _parse_int)
_LONG: Final = _ValueType("long", str, partial(_parse_integer, _MAX_LONG))
_BOOLEAN: Final = _ValueType("boolean", flag_text, lambda text: parse_flag(text.strip()))
_DOUBLE: Final = _ValueType("double", _double_text, _parse_double)
_DATE: Final = _ValueType("dateTime", _moment_text, _parse_moment)
_DURATION: Final = _ValueType("duration", _span_text, _parse_span)
_TYPES: Final = {
    kind.name: kind for kind in (_STRING, _INT, _LONG, _BOOLEAN, _DOUBLE, _DATE, _DURATION)
}


_BY_TYPE: Final = {str: _STRING, bool: _BOOLEAN, int: _LONG, float: _DOUBLE, datetime: _DATE}


def _type_for(key: str, value: Value) -> _ValueType:
    match value:
        case Typed(Kind.INT, int()):
            return _INT
        case Described(descriptor, int()) if descriptor == TIMESPAN:
            return _DURATION
    kind = _BY_TYPE.get(type(value))
    if kind is None:
        raise InvalidRequest(f"{key:.60}: a value of one of {', '.join(_TYPES)} expected")
    return kind
