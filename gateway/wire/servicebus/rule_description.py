"""
RuleDescription: the filter and the action of a subscription's rule, both directions.

    <RuleDescription xmlns="..." xmlns:i="...">
      <Filter i:type="SqlFilter">                     or TrueFilter, FalseFilter, CorrelationFilter
        <SqlExpression>size &gt; @p</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>
        <Parameters>...</Parameters>                  see `rule_values`
      </Filter>
      <Action i:type="SqlRuleAction">...</Action>     or EmptyRuleAction
      <CreatedAt>...</CreatedAt><Name>...</Name>
    </RuleDescription>
"""

from typing import Any, Final
from xml.etree.ElementTree import Element

from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Properties
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
from gateway.wire.servicebus.management_values import date_text, parse_date
from gateway.wire.servicebus.rule_values import build_values, parse_values

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
