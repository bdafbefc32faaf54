"""
Rules of a subscription: which messages of the topic it gets, and how these are changed.

A SQL filter is only text here; `wire/sql` parses it. `store/engine/topic_routing.py` applies the
rules to a message: it looks them up by the exact value of one field first, so a change to how a
field matches belongs in both files.
"""

import re
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Message, Properties
from gateway.domain.topics.property_values import MessageReader, equatable, id_text, plain

DEFAULT_RULE: Final = "$Default"  # the rule of a new subscription, with a TrueFilter
MAX_RULE_NAME_LENGTH: Final = 50
MAX_EXPRESSION_LENGTH: Final = 1024  # characters, of a filter and of an action
_NAME: Final = re.compile(r"[A-Za-z0-9._~$-]+", re.ASCII)


@attrs.frozen
class TrueFilter:
    """Matches every message."""


@attrs.frozen
class FalseFilter:
    """Matches no message."""


@attrs.frozen(kw_only=True)
class CorrelationFilter:
    """Matches messages with equal values in all fields that aren't None, and in all properties."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None  # the message's subject
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Properties = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class SqlFilter:
    """Matches messages for which the expression is true. `parameters`: values of its `@names`."""

    expression: str
    parameters: Properties = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class SqlAction:
    """Statements that change a copy of the message. `parameters`: values of their `@names`."""

    expression: str
    parameters: Properties = attrs.field(factory=dict)


Filter = TrueFilter | FalseFilter | CorrelationFilter | SqlFilter


@attrs.frozen(kw_only=True)
class Rule:
    name: str
    filter: Filter = TrueFilter()
    action: SqlAction | None = None
    created: datetime | None = None


def check_rule(rule: Rule) -> None:
    """
    Check the name and the lengths. Expressions are checked by their parser.

    Raises:
        InvalidRequest: names the field and the limit.
    """
    if len(rule.name) > MAX_RULE_NAME_LENGTH or not _NAME.fullmatch(rule.name):
        raise InvalidRequest(
            f"rule name: 1 to {MAX_RULE_NAME_LENGTH} letters, digits, '.', '-', '_', '~', '$'"
            " expected"
        )
    if isinstance(rule.filter, SqlFilter):
        check_expression("SQL filter", rule.filter.expression)
    if rule.action is not None:
        check_expression("SQL action", rule.action.expression)


def check_expression(what: str, expression: str) -> None:
    """
    Check the length of an expression.

    Raises:
        InvalidRequest: names `what` and the limit.
    """
    if not expression.strip() or len(expression) > MAX_EXPRESSION_LENGTH:
        raise InvalidRequest(
            f"{what}: 1 to {MAX_EXPRESSION_LENGTH} characters expected, got {len(expression)}"
        )


def matches(
    rule_filter: TrueFilter | FalseFilter | CorrelationFilter, subject: MessageReader
) -> bool:
    """
    True if the filter matches the message.

    Texts are compared with case, numbers by value, and names of properties without case.
    """
    if isinstance(rule_filter, CorrelationFilter):
        return _has_fields(rule_filter, subject.message) and _has_properties(rule_filter, subject)
    return isinstance(rule_filter, TrueFilter)


def _has_fields(wanted: CorrelationFilter, message: Message) -> bool:
    pairs = (
        (wanted.to, message.to),
        (wanted.reply_to, message.reply_to),
        (wanted.label, message.subject),
        (wanted.session_id, message.session_id),
        (wanted.reply_to_session_id, message.reply_to_session_id),
        (wanted.content_type, message.content_type),
        (wanted.correlation_id, id_text(message.correlation_id)),
        (wanted.message_id, id_text(message.message_id)),
    )
    return all(text is None or text == found for text, found in pairs)


def _has_properties(wanted: CorrelationFilter, reader: MessageReader) -> bool:
    pairs = ((plain(value), plain(reader.get(name))) for name, value in wanted.properties.items())
    return all(equatable(value, found) and value == found for value, found in pairs)
