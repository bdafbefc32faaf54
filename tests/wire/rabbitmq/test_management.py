"""The questions to RabbitMQ's management, and its answers, byte by byte."""

import json
from typing import Any

import pytest

from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    OutcomeUnknown,
    Unavailable,
)
from gateway.wire.http.messages import Response
from gateway.wire.rabbitmq.management import (
    ManagedQueue,
    ManagementLogin,
    ask_for_page,
    ask_for_queue,
    page_in,
    queue_in,
)

LOGIN = ManagementLogin(user="me", password="hush", vhost="/")
QUEUE = {
    "name": "orders",
    "type": "quorum",
    "arguments": {"x-max-length": 5},
    "policy": "p",
    "operator_policy": None,
    "effective_policy_definition": {"overflow": "drop-head"},
    "messages": 3,
}


def answered(body: Any, status: int = 200) -> Response:
    return Response(status=status, body=json.dumps(body).encode())


def test_a_queue_is_asked_for_by_name() -> None:
    request = ask_for_queue(LOGIN, "a/b c")

    assert request.method == "GET"
    assert request.target.startswith("/api/queues/%2F/a%2Fb%20c?columns=name%2C")
    assert request.headers.get("Authorization") == "Basic bWU6aHVzaA=="


def test_a_prefix_is_text_and_no_pattern() -> None:
    query = ask_for_page(LOGIN, "a.b/(", "[a-z]+", 2).query

    assert query["name"] == r"^(?=(?i:a\.b\/\())[a-z]+$"
    assert (query["page"], query["page_size"], query["sort"]) == ("2", "500", "name")


def test_a_login_does_not_show_its_password() -> None:
    assert "hush" not in repr(LOGIN)


def test_a_queue_has_its_settings() -> None:
    assert queue_in(answered(QUEUE)) == ManagedQueue(
        name="orders",
        kind="quorum",
        arguments={"x-max-length": 5},
        policy={"overflow": "drop-head"},
        policies=("p",),
        messages=3,
    )


def test_a_queue_without_statistics_has_unknown_policies() -> None:
    found = queue_in(answered({"name": "orders", "type": "quorum", "arguments": {}}))

    assert (found.policy, found.policies, found.messages) == (None, (), None)


def test_an_empty_mapping_may_be_a_list() -> None:
    found = queue_in(answered(QUEUE | {"arguments": [], "effective_policy_definition": []}))

    assert (found.arguments, found.policy) == ({}, {})


def test_a_page_says_whether_it_is_the_last() -> None:
    page = {"items": [QUEUE], "page": 1, "page_count": 2}

    assert page_in(answered(page))[1] is False
    assert page_in(answered(page | {"page": 2}))[1] is True
    assert page_in(answered({"items": [], "page": 1, "page_count": 0})) == ([], True)


def test_a_page_beyond_the_last_is_empty() -> None:
    assert page_in(answered({"error": "page_out_of_range"}, 400)) == ((), True)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequest),
        (401, NotAuthorized),
        (403, NotAuthorized),
        (404, EntityNotFound),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_a_refusal_says_why(status: int, error: type[BrokerError]) -> None:
    with pytest.raises(error, match=f"the reason.*{status}"):
        queue_in(answered({"reason": "the reason"}, status))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"name": 1, "type": "quorum"}', b'{"name": "a"}', b"\xff"],
)
def test_an_invalid_answer_tells_nothing(body: bytes) -> None:
    with pytest.raises(OutcomeUnknown, match="RabbitMQ's management"):
        queue_in(Response(status=200, body=body))
