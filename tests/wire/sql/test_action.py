"""Actions of rules on messages: values, types, and statements that fail."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from gateway.domain.envelope_fields import TIMESPAN
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Described, Kind, Message, Typed, symbol
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.sql.action import compile_action
from tests.strategies import messages

ID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def changed(expression: str, message: Message, **parameters: Any) -> Message:
    return compile_action(expression, parameters, lambda: ID)(message)


def after(expression: str, **properties: Any) -> dict[str, Any]:
    """The application properties of a message with these properties, after the action."""
    return dict(changed(expression, Message(properties=properties)).properties)


@pytest.mark.parametrize(
    ("expression", "before", "expected"),
    [
        ("SET color = 'red'", {}, {"color": "red"}),
        ("SET color = 'red'", {"color": "blue", "n": 1}, {"color": "red", "n": 1}),
        ("SET COLOR = 'red'", {"Color": "blue"}, {"Color": "red"}),
        ("SET n = n + 1; SET n = n * 2", {"n": 1}, {"n": 4}),
        ("SET [a b] = 1.5", {}, {"a b": 1.5}),
        ("SET a = TRUE, SET b = NULL", {}, {"a": True, "b": None}),
        ("SET a = missing", {"a": 1}, {"a": None}),
        ("SET a = missing + 1", {"a": 1}, {"a": None}),
        ("SET a = newid()", {}, {"a": UUID(ID)}),
        ("SET a = property('b')", {"b": 1}, {"a": 1, "b": 1}),
        ("SET a = property(b)", {"b": 1}, {"a": None, "b": 1}),
        ("REMOVE color", {"Color": 1, "COLOR": 2, "n": 3}, {"n": 3}),
        ("REMOVE missing", {"n": 3}, {"n": 3}),
        ("SET a = 1 REMOVE a", {}, {}),
        ("REMOVE n SET a = n", {"n": 1}, {"a": None}),
        ("SET aB = 1 SET AB = Ab SET ab = 2", {}, {"aB": 2}),
        ("SET aB = 1 SET Ab = ab + 1", {"AB": 0}, {"AB": 2}),
        ("SET c = ab SET d = Ab", {"aB": 1, "Ab": 2}, {"aB": 1, "Ab": 2, "c": 2, "d": 2}),
        ("SET AB = 3 SET c = ab", {"aB": 1, "Ab": 2}, {"aB": 1, "Ab": 3, "c": 3}),
        ("REMOVE ab SET AB = 1 SET c = aB", {"ab": 0, "Ab": 2}, {"AB": 1, "c": 1}),
    ],
)
def test_statements_change_properties_in_their_order(
    expression: str, before: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert after(expression, **before) == expected


class Name(str):
    """Counts how often a name is read without its case."""

    lowered = 0

    def lower(self) -> str:
        Name.lowered += 1
        return str.lower(self)


def test_names_are_read_once_for_all_statements() -> None:
    before: dict[str, Any] = {Name(f"n{number}"): number for number in range(1000)}

    there = changed(
        "; ".join(["SET a = B", "REMOVE c", "SET sys.Label = D"] * 10), Message(properties=before)
    )

    assert there.properties == {**before, "a": None}
    assert Name.lowered == 1000


@pytest.mark.parametrize(
    ("old", "value", "expected"),
    [
        (Typed(Kind.INT, 1), "7", Typed(Kind.INT, 7)),
        (Typed(Kind.UBYTE, 1), "255", Typed(Kind.UBYTE, 255)),
        (Typed(Kind.UBYTE, 1), "256", 256),
        (Typed(Kind.UBYTE, 1), "-1", -1),
        (Typed(Kind.INT, 1), "1.5", 1.5),
        (Typed(Kind.FLOAT, 1.0), "2", Typed(Kind.FLOAT, 2.0)),
        (1.5, "2", 2.0),
        (1, "2.5", 2.5),
        (symbol("x"), "'y'", symbol("y")),
        (symbol("x"), "1", 1),
        ("x", "1", 1),
        (True, "1", 1),
    ],
)
def test_a_value_keeps_the_type_of_the_property_that_it_replaces_if_that_loses_nothing(
    old: Any, value: str, expected: Any
) -> None:
    new = after(f"SET a = {value}", a=old)["a"]

    assert (new, type(new)) == (expected, type(expected))


@pytest.mark.parametrize("value", [Typed(Kind.DECIMAL64, b"\0" * 8), [1, "2"], symbol("s"), b"x"])
def test_a_copied_property_keeps_its_type(value: Any) -> None:
    assert after("SET b = a", a=value)["b"] == value
    assert after("SET b = property('A')", a=value)["b"] == value


def test_a_duration_is_written_as_the_timespan_of_net() -> None:
    message = changed("SET took = sys.TimeToLive", Message(time_to_live=timedelta(seconds=2)))

    assert message.properties["took"] == Described(TIMESPAN, 20_000_000)


def test_system_properties_are_set_and_removed() -> None:
    message = changed(
        "SET sys.Label = 'l', SET sys.To = user.n SET sys.MessageId = newid() SET sys.label = "
        "sys.Label + '2' REMOVE sys.CorrelationId SET sys.SessionId = 's' SET sys.ReplyTo = NULL "
        "SET sys.TimeToLive = @life SET sys.PartitionKey = p SET sys.ContentType = "
        "missing",
        Message(
            correlation_id="c",
            reply_to="r",
            content_type="t",
            properties={"n": Typed(Kind.UINT, 5), "p": symbol("part")},
        ),
        life=timedelta(minutes=1),
    )

    assert (message.subject, message.to, message.message_id) == ("l2", "5", ID)
    assert (message.correlation_id, message.reply_to, message.content_type) == (None, None, None)
    assert (message.session_id, message.partition_key) == ("s", "part")
    assert message.time_to_live == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("SET sys.Label = TRUE", "sys.Label: a text expected, got True"),
        ("SET sys.To = 1.5", "sys.To: a text expected"),
        ("SET sys.SessionId = l", "sys.SessionId: a text expected"),
        ("SET sys.MessageId = long", "message id: at most 128"),
        ("SET sys.TimeToLive = 5", "sys.TimeToLive: a duration above zero expected"),
        ("SET sys.TimeToLive = sys.TimeToLive - sys.TimeToLive", "a duration above zero"),
    ],
)
def test_a_system_property_never_gets_a_value_that_it_cannot_have(
    expression: str, error: str
) -> None:
    message = Message(
        properties={"l": [1], "long": "x" * 129}, time_to_live=timedelta(days=1), subject="s"
    )

    with pytest.raises(InvalidRequest, match=error):
        changed(expression, message)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("SET sys.ScheduledEnqueueTimeUtc = @d", "position 5: a property that an action can chang"),
        ("REMOVE sys.scheduledEnqueueTimeUtc", "position 8: a property that an action can change"),
        ("SET sys.SequenceNumber = 1", "position 9: one of ContentType"),
        ("SET a = @missing", "position 9: a parameter that has a value"),
    ],
)
def test_an_action_that_can_never_run_is_refused(expression: str, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        compile_action(expression, {"d": datetime(2026, 1, 1, tzinfo=UTC)}, lambda: ID)


@given(messages())
def test_the_rest_of_a_message_stays_as_it_is(message: Message) -> None:
    before = decode_message(encode_message(message))
    there = changed("SET pairgate_a = 'x' REMOVE pairgate_a", before)

    assert there == before


@given(messages())
def test_a_changed_message_is_encoded_with_its_changes(message: Message) -> None:
    before = decode_message(encode_message(message))
    there = decode_message(encode_message(changed("SET pairgate_a = 'x'", before)))

    assert there.properties == {**before.properties, "pairgate_a": "x"}
    assert (there.body, there.message_id) == (before.body, before.message_id)
