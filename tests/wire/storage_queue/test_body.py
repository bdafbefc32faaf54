"""Messages as texts of Storage Queue: nothing is lost, and a plain text stays one."""

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest, MessageTooLarge
from gateway.domain.message import Message, ValueBody
from gateway.wire.http.hardened_xml import is_legal
from gateway.wire.storage_queue.body import MAX_ENCODED, build_body, build_put, parse_item
from gateway.wire.storage_queue.operations import (
    MAX_BODY,
    MAX_MESSAGE,
    MAX_VISIBILITY,
    NEVER,
    QueueMessage,
)
from gateway.wire.storage_queue.xml import build_text, parse_text
from tests.strategies import messages

NOW = datetime(2026, 11, 22, 10, tzinfo=UTC)
GUID = "0d8b1f4e-0a3f-4c5e-9d1c-0123456789ab"
MADE = Message(message_id=GUID, creation_time=NOW, body=b"hello")


def item_of(body: bytes, **fields: Any) -> QueueMessage:
    """Return a message with that body as the service hands it out."""
    arrived = parse_text(build_text(body))
    return QueueMessage(message_id="theirs", inserted=NOW, body=arrived, **fields)


def read(body: bytes) -> Message:
    return parse_item(item_of(body)).message


@given(messages())
def test_each_message_with_an_id_of_its_own_comes_back_whole(message: Message) -> None:
    message = attrs.evolve(message, message_id="mine")
    text = build_body(message, NOW)
    found = parse_item(item_of(text))

    assert found.message == message
    assert found.expires == NOW
    assert is_legal(text.decode())


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.binary(max_size=40))
def test_every_body_comes_back(body: Any) -> None:
    data = body.encode() if isinstance(body, str) else body

    assert read(build_body(Message(body=data), None)).body == data


@pytest.mark.parametrize("text", ["", "hello", "a <b> & ü \U0001f600", "two\nlines", '{"a":1}'])
@pytest.mark.parametrize("life", [None, timedelta(days=7), timedelta(minutes=59.99)])
def test_a_text_as_the_endpoint_makes_it_stays_one(text: str, life: timedelta | None) -> None:
    message = attrs.evolve(MADE, body=text.encode(), time_to_live=life)

    assert build_body(message, None) == text.encode()
    assert build_body(attrs.evolve(message, message_id=None), None) == text.encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": {"a": 1}},
        {"session_id": "s"},
        {"subject": "s"},
        {"content_type": "text/plain"},
        {"scheduled": NOW},
        {"annotations": {"x-opt-a": 1}},
        {"body": ValueBody("hello")},
        {"body": b"\xff"},
        {"body": b"\x00"},
        {"body": b"a\r\nb"},
        {"body": b" hello"},
        {"body": b"hello\n"},
        {"body": b'{"pairgate":1,"amqp":""}'},
        {"message_id": "mine"},
        {"message_id": GUID.upper()},
        {"creation_time": None},
    ],
    ids=repr,
)
def test_a_message_that_is_more_than_a_text_has_the_form(changes: dict[str, Any]) -> None:
    message = attrs.evolve(MADE, **changes)
    text = build_body(message, None)

    assert json.loads(text)["pairgate"] == 1
    assert read(text) == message


def test_without_ids_a_text_with_nothing_else_is_bare() -> None:
    message = Message(message_id="mine", body=b"hello")

    assert build_body(message, None, keep_ids=False) == b"hello"
    assert build_body(attrs.evolve(message, subject="s"), None, keep_ids=False) != b"hello"


def test_somebody_s_text_is_a_body() -> None:
    found = parse_item(item_of(b"hello", expires=NOW + timedelta(minutes=1)))

    assert found.message == Message(
        message_id="theirs", body=b"hello", time_to_live=timedelta(minutes=1)
    )
    assert found.expires is None


def test_a_message_that_ended_before_it_began_says_nothing_of_its_life() -> None:
    found = parse_item(item_of(b"hello", expires=NOW - timedelta(minutes=1)))

    assert found.message.time_to_live is None


def test_the_end_of_a_life_is_told_in_utc() -> None:
    ours = build_body(Message(body=b"\x00"), NOW)
    there = NOW.astimezone(timezone(timedelta(hours=-9)))
    text = ours.replace(NOW.isoformat().encode(), there.isoformat().encode())
    expires = parse_item(item_of(text)).expires

    assert (expires, expires.tzinfo) == (NOW, UTC)


@pytest.mark.parametrize(
    "text",
    [
        b'{"pairgate":1,',
        b'{"pairgate":1,"amqp":1}',
        b'{"pairgate":1,"amqp":"-"}',
        b'{"pairgate":1,"amqp":"AAAA"}',
        b'{"pairgate":1,"expires":"soon","amqp":""}',
        b'{"pairgate":1,"expires":"2026-11-22T10:00:00","amqp":""}',
        b'{"pairgate":1,"expires":"0001-01-01T00:00:00+14:00","amqp":""}',
        b'{"pairgate":1,"expires":"9999-12-31T23:59:59-14:00","amqp":""}',
        b'{"pairgate":1,"expires":20261122,"amqp":""}',
        b'{"pairgate":1,"amqp":"","amqp":""}',
        b'{"pairgate":2,"amqp":""}',
    ],
)
def test_a_text_that_only_looks_like_the_form_is_a_body(text: bytes) -> None:
    assert read(text).body == text


def test_the_form_is_as_documented() -> None:
    text = build_body(Message(message_id="1", body=b"x"), NOW + timedelta(seconds=0.5))
    found = json.loads(text)

    assert text.startswith(b'{"pairgate":1,"expires":"2026-11-22T10:00:00.500000+00:00","amqp":"')
    assert base64.b64decode(found["amqp"]).endswith(b"x")


# --- how it's put


@pytest.mark.parametrize(
    ("scheduled", "life", "hidden", "lives"),
    [
        (None, None, 0, NEVER),
        (None, 0.5, 0, 1),
        (None, 60, 0, 60),
        (-5, 60, 0, 60),
        (1.5, None, 2, NEVER),
        (10, 60, 10, 70),
        (MAX_VISIBILITY + 9, 60, MAX_VISIBILITY, MAX_VISIBILITY + 69),
        (None, 2**31, 0, NEVER),
    ],
)
def test_a_scheduled_message_is_hidden_until_due_and_lives_from_then_on(
    scheduled: float | None, life: float | None, hidden: int, lives: int
) -> None:
    message = Message(
        message_id="1",
        scheduled=None if scheduled is None else NOW + timedelta(seconds=scheduled),
        time_to_live=None if life is None else timedelta(seconds=life),
    )
    put = build_put("orders", message, NOW)

    assert (put.visibility, put.time_to_live) == (hidden, lives)


def test_a_message_expires_to_the_microsecond() -> None:
    message = Message(
        message_id="1",
        scheduled=NOW + timedelta(seconds=10),
        time_to_live=timedelta(seconds=0.25),
    )
    put = build_put("orders", message, NOW)

    assert parse_item(item_of(put.body)).expires == NOW + timedelta(seconds=10.25)


def test_an_endless_life_has_no_end() -> None:
    put = build_put("orders", Message(message_id="1", time_to_live=timedelta.max), NOW)

    assert put.time_to_live == NEVER
    assert parse_item(item_of(put.body)).expires is None


# --- how large it may be


def test_the_largest_message_fits_and_a_larger_one_is_refused_with_the_limit() -> None:
    body = b"\xff" * (MAX_ENCODED - 300)
    large = Message(message_id="1", body=body, time_to_live=timedelta(days=1))
    text = build_body(large, datetime.max.replace(tzinfo=UTC))

    assert len(text) <= MAX_MESSAGE
    with pytest.raises(MessageTooLarge, match=str(MAX_ENCODED)):
        build_body(attrs.evolve(large, body=b"\xff" * (MAX_ENCODED + 1)), None)


def test_a_bare_text_may_have_as_much_as_the_service_takes() -> None:
    message = attrs.evolve(MADE, body=b"x" * MAX_MESSAGE)

    assert build_body(message, None) == message.body
    with pytest.raises(MessageTooLarge):
        build_body(attrs.evolve(message, body=b"x" * (MAX_MESSAGE + 1)), None)


def test_a_text_that_grows_in_xml_above_a_request_has_the_form() -> None:
    message = attrs.evolve(MADE, body=b"&" * 40_000)
    text = build_body(message, None)

    assert len(build_text(text)) <= MAX_BODY
    assert read(text) == message


def test_a_value_that_amqp_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        build_body(Message(message_id="1", properties={"a": object()}), None)
