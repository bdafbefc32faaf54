"""Rules of subscriptions in $management: maps one way, described lists the other."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Typed
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from gateway.wire.amqp.exchange import (
    NodeRequest,
    Reply,
    build_reply,
    build_request,
    parse_reply,
    parse_request,
)
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.requests import answer_of, operation_of, reply_of, request_of
from gateway.wire.amqp.performatives import described
from tests.strategies import amqp_scalars, moments

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)

_texts = st.text("abc =1'", min_size=1, max_size=9).map(lambda text: f"x{text}")
_optional = st.none() | _texts
_FILTERS = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(SqlFilter, expression=_texts),
    st.builds(
        CorrelationFilter,
        correlation_id=_optional,
        message_id=_optional,
        to=_optional,
        reply_to=_optional,
        label=_optional,
        session_id=_optional,
        reply_to_session_id=_optional,
        content_type=_optional,
        properties=st.dictionaries(_texts, amqp_scalars(), max_size=2),
    ),
)
_RULES = st.builds(
    Rule,
    name=st.text("abc-_.1", min_size=1, max_size=9),
    filter=_FILTERS,
    action=st.none() | st.builds(SqlAction, expression=_texts),
)


@given(_RULES)
def test_a_rule_that_is_added_comes_back(rule: Rule) -> None:
    request = request_of(ops.AddRule(rule=rule), request_id="1", reply_to="here")

    assert operation_of(parse_request(build_request(request))) == ops.AddRule(rule=rule)


@given(st.lists(_RULES, max_size=3), st.none() | moments())
def test_enumerated_rules_come_back(rules: list[Rule], created: datetime | None) -> None:
    stored = tuple(
        Rule(name=rule.name, filter=rule.filter, action=rule.action, created=created)
        for rule in rules
    )
    question, answer = ops.ListRules(), ops.Rules(rules=stored)

    reply = parse_reply(build_reply(reply_of(NodeRequest(operation=""), question, answer)))

    assert answer_of(question, reply) == answer


def test_an_enumerated_rule_value_by_value() -> None:
    rule = Rule(
        name="r",
        filter=CorrelationFilter(label="l", properties={"n": Typed(Kind.INT, 1)}),
        action=SqlAction(expression="SET a = 1"),
        created=NOON,
    )

    reply = reply_of(NodeRequest(operation=""), ops.ListRules(), ops.Rules(rules=(rule,)))

    criteria = [None, None, None, None, "l", None, None, None, {"n": Typed(Kind.INT, 1)}]
    assert reply.body == {
        "rules": [
            {
                "rule-description": described(
                    0x13700000004,
                    [
                        described(0x1370000009, criteria),
                        described(0x13700000006, ["SET a = 1", Typed(Kind.INT, 20)]),
                        "r",
                        NOON,
                    ],
                )
            }
        ]
    }


def add(description: Any, name: Any = "r") -> ops.Operation:
    body = {"rule-name": name, "rule-description": description}
    return operation_of(NodeRequest(operation="com.microsoft:add-rule", body=body))


@pytest.mark.parametrize(
    ("expression", "rule_filter"),
    [("1=1", TrueFilter()), ("1=0", FalseFilter()), ("a > 1", SqlFilter(expression="a > 1"))],
)
def test_the_sql_that_is_always_true_or_false_is_a_filter_of_its_own(
    expression: str, rule_filter: Any
) -> None:
    rule = Rule(name="r", filter=rule_filter)

    assert add({"sql-filter": {"expression": expression}}) == ops.AddRule(rule=rule)


def test_nulls_are_as_if_they_were_not_there() -> None:
    """The SDK for .NET writes an action that isn't there as null."""
    description = {
        "correlation-filter": {"label": "l", "to": None},
        "sql-filter": None,
        "sql-rule-action": None,
    }

    assert add(description) == ops.AddRule(rule=Rule(name="r", filter=CorrelationFilter(label="l")))


@pytest.mark.parametrize(
    ("description", "name", "text"),
    [
        (None, "r", "rule-description: a map of strings expected"),
        ({}, "r", "rule-description: either sql-filter or correlation-filter expected"),
        (
            {"sql-filter": {"expression": "1=1"}, "correlation-filter": {}},
            "r",
            "rule-description: either",
        ),
        ({"sql-filter": {}}, "r", "expression: a string expected"),
        ({"sql-filter": "1=1"}, "r", "sql-filter: a map of strings expected"),
        ({"correlation-filter": {"label": 1}}, "r", "label: a string expected"),
        ({"sql-filter": {"expression": "1=1"}}, None, "rule-name: a string expected"),
        ({"sql-filter": {"expression": "1=1"}}, "a/b", "rule name: "),
        ({"sql-filter": {"expression": " "}}, "r", "SQL filter: "),
    ],
)
def test_a_wrong_field_is_named(description: Any, name: Any, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        add(description, name)


def test_sql_with_parameters_can_not_be_said() -> None:
    rule = Rule(name="r", filter=SqlFilter(expression="a = @p", parameters={"@p": 1}))

    with pytest.raises(MessageError, match="expression: its parameters"):
        request_of(ops.AddRule(rule=rule), request_id="1", reply_to="here")


@pytest.mark.parametrize(
    "rule",
    [
        1,
        {},
        {"rule-description": described(0x1, [])},
        {"rule-description": described(0x13700000004, [])},
        {"rule-description": described(0x13700000004, [described(0x1370000006, [])])},
    ],
)
def test_an_invalid_rule_is_refused(rule: Any) -> None:
    with pytest.raises(MessageError, match="rules: "):
        answer_of(ops.ListRules(), Reply(id="1", status=200, body={"rules": [rule]}))
