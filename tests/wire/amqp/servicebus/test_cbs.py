"""Tokens for $cbs."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Typed
from gateway.wire.amqp.exchange import (
    NodeRequest,
    Reply,
    ReplyDialect,
    build_reply,
    build_request,
    parse_reply,
    parse_request,
)
from gateway.wire.amqp.message import decode_message
from gateway.wire.amqp.servicebus.cbs import PutToken, put_token_of, request_of
from tests.wire.amqp.recorded import RECORDED

AUDIENCE = "sb://127.0.0.1:5672/q1"
TOKEN = "SharedAccessSignature sr=x&sig=y&se=1&skn=k"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_requests_of_azure_servicebus_for_python_are_parsed() -> None:
    request = parse_request(RECORDED["put-token"])

    assert put_token_of(request) == PutToken(audience=AUDIENCE, token=TOKEN, type="jwt")
    assert request.id == UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert request.reply_to is None


def test_a_token_comes_back() -> None:
    put = PutToken(audience=AUDIENCE, token=TOKEN, expires=NOON)
    request = request_of(put, request_id=Typed(Kind.ULONG, 1), reply_to="cbs-1")

    back = parse_request(build_request(request))

    assert (back.id, back.reply_to, put_token_of(back)) == (request.id, "cbs-1", put)


def test_another_operation_is_none_of_ours() -> None:
    assert put_token_of(NodeRequest(operation="delete-token")) is None


@pytest.mark.parametrize(
    ("properties", "body", "text"),
    [
        ({}, TOKEN, "name: the URI of an entity expected"),
        ({"name": 1}, TOKEN, "name: the URI of an entity expected"),
        ({"name": "sb://h/".ljust(4097, "a")}, TOKEN, "of at most 4096 characters"),
        ({"name": AUDIENCE}, None, "body: a token expected"),
        ({"name": AUDIENCE}, b"x", "body: a token expected"),
    ],
)
def test_a_missing_part_is_named(properties: dict[str, Any], body: Any, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        put_token_of(NodeRequest(operation="put-token", properties=properties, body=body))


def test_a_token_is_in_no_log() -> None:
    assert "sig" not in repr(PutToken(audience=AUDIENCE, token=TOKEN))


def test_a_reply_names_its_parts() -> None:
    reply = Reply(id="1", status=202, description="Accepted")

    payload = build_reply(reply, ReplyDialect.CBS)

    assert decode_message(payload).properties == {
        "status-code": Typed(Kind.INT, 202),
        "status-description": "Accepted",
    }
    assert parse_reply(payload) == reply
