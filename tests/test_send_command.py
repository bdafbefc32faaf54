"""`pairgate send` with types, properties, schedule and time to live, as `peek` shows them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.app.failure import Failure
from gateway.app.operations.typed_message import parse_schedule
from tests.command_line import PAIR, pairgate
from tests.stores import make_stores

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "shop.ordered"}


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    file = tmp_path / "pairgate.toml"
    file.write_text(PAIR)
    make_stores(file)
    return file


def sent(pair: Path, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    """Send a message with these arguments; return it as `peek` shows it."""
    result = pairgate("send", "orders", *arguments, "--config", pair, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    seen: dict[str, Any] = json.loads(pairgate("peek", "orders", "--json", "--config", pair).stdout)
    return seen


@pytest.mark.parametrize(
    ("kind", "body", "content_type"),
    [
        ("text", "schön", "text/plain; charset=utf-8"),
        ("json", '{"a": [1, null]}', "application/json"),
        ("cloudevents", json.dumps(EVENT), "application/cloudevents+json"),
        ("bytes", "anything", None),
    ],
)
def test_a_body_of_a_type_is_sent_as_it_is_with_its_content_type(
    kind: str, body: str, content_type: str | None, pair: Path
) -> None:
    seen = sent(pair, body, "--type", kind)

    assert seen["body"] == body
    assert seen["content_type"] == content_type


def test_bytes_come_from_standard_input(pair: Path) -> None:
    assert sent(pair, stdin=b"\x00\xff")["body_base64"] == "AP8="


def test_an_own_content_type_counts_more_than_that_of_the_type(pair: Path) -> None:
    seen = sent(pair, "{}", "--type", "json", "--content-type", "application/vnd.shop+json")

    assert seen["content_type"] == "application/vnd.shop+json"


def test_an_events_id_is_the_messages_unless_another_is_given(pair: Path) -> None:
    assert sent(pair, json.dumps(EVENT), "--type", "cloudevents")["message_id"] == "7"
    other = pairgate(
        *("send", "orders", json.dumps(EVENT), "--type", "cloudevents", "--id", "8", "--json"),
        *("--config", pair),
    )

    assert json.loads(other.stdout)["message_id"] == "8"


@pytest.mark.parametrize(
    ("body", "data", "kind"),
    [('{"a": 1}', {"a": 1}, "application/json"), ("hello", "hello", "text/plain")],
)
def test_an_event_is_made_around_its_data(body: str, data: object, kind: str, pair: Path) -> None:
    names = ("--event-type", "shop.ordered", "--event-source", "/shop", "--subject", "cart")

    seen = sent(pair, body, *names)
    event = json.loads(seen["body"])

    assert seen["content_type"] == "application/cloudevents+json"
    assert (event["data"], event["datacontenttype"]) == (data, kind)
    assert (event["type"], event["source"], event["subject"]) == ("shop.ordered", "/shop", "cart")
    assert event["id"] == seen["message_id"]
    assert datetime.fromisoformat(event["time"]).tzinfo is not None


def test_properties_have_types(pair: Path) -> None:
    given = ["a=5", "b:=5", "c:=true", "d:=1.5", 'e:="x"', "f=", "g=h=i"]
    options = [option for each in given for option in ("--property", each)]

    seen = sent(pair, "x", *options)

    assert seen["properties"] == {
        "a": "5",
        "b": 5,
        "c": True,
        "d": 1.5,
        "e": "x",
        "f": "",
        "g": "h=i",
    }


def test_the_other_fields_are_sent_too(pair: Path) -> None:
    options = ["--subject", "cart", "--correlation-id", "c1", "--reply-to", "answers"]

    seen = sent(pair, "x", *options, "--ttl", "5m")

    assert seen["subject"] == "cart"
    assert seen["correlation_id"] == "c1"
    assert seen["reply_to"] == "answers"
    lives = datetime.fromisoformat(seen["expires"]) - datetime.fromisoformat(seen["enqueued"])
    assert lives == timedelta(minutes=5)


def test_a_scheduled_message_waits(pair: Path) -> None:
    before = datetime.now(UTC)
    seen = sent(pair, "x", "--schedule", "1h")
    taken = pairgate("receive", "orders", "--wait", "50ms", "--config", pair)

    assert taken.exit_code == 1
    due = datetime.fromisoformat(seen["scheduled"]) - before
    # A date of AMQP has milliseconds: the rest is cut off.
    assert timedelta(hours=1) - timedelta(milliseconds=1) < due < timedelta(hours=2)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("90s", NOW + timedelta(seconds=90)),
        ("2026-11-25T13:00:00Z", NOW + timedelta(hours=1)),
        ("2026-11-25T13:00:00+01:00", None),
        ("2026-11-26", None),
        ("tomorrow", None),
    ],
)
def test_a_schedule_is_a_duration_or_a_date_to_come(text: str, date: datetime | None) -> None:
    if date is None:
        with pytest.raises(Failure, match="--schedule"):
            parse_schedule(text, NOW)
    else:
        assert parse_schedule(text, NOW) == date


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{", "--type", "json"], "the body"),
        (["[1]", "--type", "cloudevents"], "a CloudEvent is a JSON object"),
        (['{"id": "7"}', "--type", "cloudevents"], "needs a text for source, specversion, type"),
        ([json.dumps({**EVENT, "specversion": "2"}), "--type", "cloudevents"], "'1.0' expected"),
        (["x", "--event-type", "a"], "--event-type and --event-source are given together"),
        (["x", "--property", "a:=[1]"], "a number, true, false or a text expected"),
        (["x", "--property", "a:=x"], "JSON expected after ':='"),
        (["x", "--property", "a:=99999999999999999999"], "a number, true, false or a text"),
        (["x", "--property", "a=1", "--property", "a=2"], "'a' is given twice"),
        (["x", "--schedule", "2020-01-01T00:00:00Z"], "has passed"),
        (["x", "--type", "xml"], "xml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_message_that_is_not_as_it_says_is_not_sent(
    arguments: list[str], text: str, pair: Path
) -> None:
    result = pairgate("send", "orders", *arguments, "--config", pair)

    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert pairgate("peek", "orders", "--config", pair).stdout == ""


def test_a_text_must_be_utf_8(pair: Path) -> None:
    result = pairgate("send", "orders", "--type", "text", "--config", pair, stdin=b"\xff")

    assert result.exit_code == 2
    assert "isn't UTF-8" in result.stderr
