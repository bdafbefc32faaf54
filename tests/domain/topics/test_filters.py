import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Kind, Message, Typed, symbol
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    check_rule,
    matches,
)
from gateway.domain.topics.property_values import ORDERED, MessageReader, alike, equatable, plain

ID = UUID("12345678-1234-5678-1234-567812345678")
ORDER = Message(
    message_id="m1",
    correlation_id="Contoso",
    to="warehouse",
    reply_to="johndoe@contoso.com",
    subject="Important",
    session_id="s1",
    reply_to_session_id="s2",
    content_type="text/plain",
    properties={"color": "Red", "size": Typed(Kind.INT, 5), "fresh": True, "none": None},
)


def takes(rule_filter: TrueFilter | FalseFilter | CorrelationFilter, message: Message) -> bool:
    return matches(rule_filter, MessageReader(message))


def test_true_filter_takes_all_and_false_filter_none() -> None:
    assert takes(TrueFilter(), Message())
    assert not takes(FalseFilter(), ORDER)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("correlation_id", "Contoso"),
        ("message_id", "m1"),
        ("to", "warehouse"),
        ("reply_to", "johndoe@contoso.com"),
        ("label", "Important"),
        ("session_id", "s1"),
        ("reply_to_session_id", "s2"),
        ("content_type", "text/plain"),
    ],
)
def test_each_condition_is_compared_with_its_case(field: str, value: str) -> None:
    conditions: dict[str, Any] = {field: value}
    others: dict[str, Any] = {field: value.upper()}

    assert takes(CorrelationFilter(**conditions), ORDER)
    assert not takes(CorrelationFilter(**others), ORDER)
    assert not takes(CorrelationFilter(**conditions), Message())


def test_all_conditions_must_match() -> None:
    documented = CorrelationFilter(
        label="Important", reply_to="johndoe@contoso.com", properties={"color": "Red"}
    )
    one_wrong = CorrelationFilter(label="Important", properties={"color": "Red", "size": 6})

    assert takes(documented, ORDER)
    assert not takes(one_wrong, ORDER)


def test_no_condition_asks_for_nothing() -> None:
    assert takes(CorrelationFilter(), Message())


@pytest.mark.parametrize(
    ("name", "value", "matched"),
    [
        ("size", 5, True),
        ("size", 5.0, True),
        ("size", "5", False),
        ("SIZE", 5, True),
        ("fresh", True, True),
        ("fresh", 1, False),
        ("color", symbol("Red"), True),
        ("color", "red", False),
        ("none", None, False),
        ("missing", None, False),
        ("missing", "", False),
    ],
)
def test_properties_are_compared_by_value(name: str, value: Any, matched: bool) -> None:
    assert takes(CorrelationFilter(properties={name: value}), ORDER) is matched


@pytest.mark.parametrize(("value", "text"), [(ID, str(ID)), (Typed(Kind.ULONG, 7), "7")])
def test_ids_that_are_no_text_are_compared_as_text(value: Any, text: str) -> None:
    message = Message(message_id=value, correlation_id=value)

    assert takes(CorrelationFilter(message_id=text, correlation_id=text), message)


def test_binary_id_equals_no_text() -> None:
    assert not takes(CorrelationFilter(message_id="b'm'"), Message(message_id=b"m"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Described(symbol("com.microsoft:timespan"), 10_000_000), timedelta(seconds=1)),
        (Described(symbol("com.microsoft:timespan"), "soon"), None),
        (Described(symbol("com.microsoft:timespan"), 2**90), None),
        (Described(symbol("com.microsoft:timespan"), math.nan), None),
        (Described(symbol("com.microsoft:datetime-offset"), math.inf), None),
        (Described(symbol("com.microsoft:uri"), "sb://host"), "sb://host"),
        (
            Described(symbol("com.microsoft:datetime-offset"), 0),
            datetime(1, 1, 1, tzinfo=UTC),
        ),
        (Described(symbol("com.microsoft:datetime-offset"), -1), None),
        (Described("my own", 1), None),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),
        (Typed(Kind.DECIMAL32, b"\x00" * 4), None),
        ([1], None),
    ],
)
def test_plain_values_know_the_types_of_dotnet(value: Any, expected: Any) -> None:
    assert plain(value) == expected


@pytest.mark.parametrize(
    "kind",
    [Kind.UBYTE, Kind.USHORT, Kind.UINT, Kind.ULONG, Kind.BYTE, Kind.SHORT, Kind.INT, Kind.FLOAT],
    ids=lambda kind: kind.name,
)
def test_a_number_is_a_number_whatever_its_width(kind: Kind) -> None:
    assert plain(Typed(kind, 5)) == 5
    assert takes(CorrelationFilter(properties={"n": 5}), Message(properties={"n": Typed(kind, 5)}))


def test_a_character_is_a_text() -> None:
    assert plain(Typed(Kind.CHAR, "a")) == "a"


@pytest.mark.parametrize(
    ("value", "has_order"),
    [
        ("a", True),
        (datetime(2026, 1, 1, tzinfo=UTC), True),
        (timedelta(seconds=1), True),
        (ID, False),
        (b"a", False),
        (True, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_one_kind_can_be_compared(value: Any, has_order: bool) -> None:
    assert equatable(value, value)
    assert alike(value, value, ORDERED) is has_order
    assert takes(CorrelationFilter(properties={"v": value}), Message(properties={"v": value}))


def test_name_as_written_wins_over_one_that_differs_in_case() -> None:
    reader = MessageReader(Message(properties={"Color": 1, "color": 2, "COLOR": 3}))

    assert [reader.get(name) for name in ("Color", "color", "cOLOR")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (Rule(name=""), "rule name"),
        (Rule(name="r" * 51), "1 to 50"),
        (Rule(name="a/b"), "rule name"),
        (Rule(name="r", filter=SqlFilter(expression="a" * 1025)), "SQL filter: 1 to 1024"),
        (Rule(name="r", filter=SqlFilter(expression=" ")), "SQL filter"),
        (Rule(name="r", action=SqlAction(expression="")), "SQL action"),
    ],
)
def test_a_part_over_its_limit_is_refused_by_name(rule: Rule, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        check_rule(rule)


def test_longest_rule_is_taken() -> None:
    check_rule(Rule(name="$Default"))
    check_rule(
        Rule(
            name="r" * 50,
            filter=SqlFilter(expression="a" * 1024),
            action=SqlAction(expression="a" * 1024),
        )
    )
