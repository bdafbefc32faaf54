from datetime import UTC, datetime

import pytest

from gateway.domain.message import Delivery, Message, ValueBody
from gateway.wire.http.cloud_events import (
    HandlerAnswer,
    HandlerVerdict,
    build_request,
    parse_answer,
)
from gateway.wire.http.messages import Headers, Request, Response

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def request_of(message: Message, account: str = "", **fields: object) -> Request:
    delivery = Delivery(message=message, sequence_number=7, **fields)  # type: ignore[arg-type]
    return build_request(delivery, queue="orders", account=account, target="/work?a=b")


def answer_of(status: int, **headers: str) -> HandlerAnswer:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse_answer(Response(status=status, headers=Headers.of(fields)), NOW)


def test_attributes_are_headers() -> None:
    message = Message(message_id="m1", subject="tea", body=b"{}", content_type="application/json")
    request = request_of(message, "acme", enqueued=NOW, delivery_count=3)

    assert (request.method, request.target, request.body) == ("POST", "/work?a=b", b"{}")
    wanted = {
        "ce-specversion": "1.0",
        "ce-id": "m1",
        "ce-source": "/acme/orders",
        "ce-type": "pairgate.message",
        "ce-time": "2026-01-02T00:00:00Z",
        "ce-subject": "tea",
        "ce-attempt": "3",
        "Content-Type": "application/json",
    }
    assert {name: request.headers.get(name) for name in wanted} == wanted


def test_a_message_without_an_id_has_its_number() -> None:
    assert request_of(Message()).headers.get("ce-id") == "7"


def test_a_value_that_a_header_cannot_hold_is_percent_encoded() -> None:
    request = request_of(Message(message_id='é "%\r\n~'))

    assert request.headers.get("ce-id") == "%C3%A9%20%22%25%0D%0A~"


def test_properties_are_headers_of_their_own() -> None:
    request = request_of(Message(properties={"colour": "red", "ce-id": "forged"}, message_id="m1"))

    assert request.headers.get("colour") == '"red"'
    assert request.headers.all("ce-id") == ["m1"]
    assert '"SequenceNumber"' in (request.headers.get("BrokerProperties") or "")


def test_a_text_is_its_bytes() -> None:
    assert request_of(Message(body=ValueBody("é"))).body == "é".encode()


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, HandlerVerdict.DONE),
        (204, HandlerVerdict.DONE),
        (304, HandlerVerdict.DOWN),
        (400, HandlerVerdict.POISON),
        (401, HandlerVerdict.DOWN),
        (404, HandlerVerdict.POISON),
        (408, HandlerVerdict.DOWN),
        (429, HandlerVerdict.DOWN),
        (500, HandlerVerdict.FAILED),
        (502, HandlerVerdict.DOWN),
        (503, HandlerVerdict.DOWN),
        (504, HandlerVerdict.DOWN),
        (599, HandlerVerdict.FAILED),
    ],
)
def test_a_status_says_what_becomes_of_the_message(status: int, verdict: HandlerVerdict) -> None:
    assert answer_of(status).verdict is verdict


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("Fri, 02 Jan 2026 00:00:09 GMT", 9.0),
        ("Thu, 01 Jan 2026 00:00:00 GMT", 0.0),
        ("999999999999999999999", 3600.0),
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
def test_the_pause_is_what_the_endpoint_asks_for(text: str, seconds: float | None) -> None:
    assert answer_of(503, Retry_After=text) == HandlerAnswer(
        verdict=HandlerVerdict.DOWN, retry_after=seconds
    )
