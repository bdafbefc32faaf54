"""Sending, errors and rights."""

import json
from functools import partial
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.access import Right
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
    QuotaExceeded,
    SessionRequired,
    StorageFull,
    Unavailable,
    Untrusted,
)
from gateway.frontends.servicebus.rest import is_long_poll
from gateway.wire.http.messages import Headers, Request
from gateway.wire.servicebus.batch import MAX_MESSAGES
from tests.frontends.rest_client import ORDERS, Client, Scripted, broker_properties, detail, head
from tests.trace_contexts import TRACE_CONTEXT

# Sending


async def test_requests_of_others_go_on_while_a_large_batch_is_prepared(
    autojump_clock: MockClock, client: Client, nursery: trio.Nursery
) -> None:
    batch = json.dumps([{"Body": "of the batch"}] * MAX_MESSAGES).encode()
    form = "application/vnd.microsoft.servicebus.json"
    nursery.start_soon(partial(client.ask, "POST", "/orders/messages", batch, Content_Type=form))
    for _ in range(2):
        await trio.lowlevel.checkpoint()  # whichever task goes first, the batch has begun

    await client.ask("POST", "/orders/messages", b"another")
    await wait_all_tasks_blocked()

    found = await client.broker.peek(ORDERS, from_sequence=0, limit=MAX_MESSAGES + 1)
    assert len(found) == MAX_MESSAGES + 1
    assert found[0].message.body == b"another"


async def test_the_trace_context_of_a_message_stays_as_it_is(
    autojump_clock: MockClock, client: Client
) -> None:
    quoted = {name: f'"{text}"' for name, text in TRACE_CONTEXT.items()}
    fields = Headers.of([*quoted.items(), ("traceparent", "00-of-the-request")])
    request = Request(method="POST", target="/orders/messages", headers=fields, body=b"order")

    assert (await client.send(request)).status == 201
    received = await head(client)

    assert {name: received.headers.get(name) for name in TRACE_CONTEXT} == quoted


async def test_the_trace_context_of_a_request_becomes_that_of_a_message_without_one(
    autojump_clock: MockClock, client: Client
) -> None:
    request = Request(
        method="POST", target="/orders/messages", headers=Headers.of(TRACE_CONTEXT), body=b"order"
    )

    assert (await client.send(request)).status == 201
    received = await head(client)

    expected = {name: f'"{text}"' for name, text in TRACE_CONTEXT.items()}
    assert {name: received.headers.get(name) for name in TRACE_CONTEXT} == expected


async def test_message_arrives_with_its_properties(
    autojump_clock: MockClock, client: Client
) -> None:
    sent = await client.ask(
        "POST",
        "/orders/messages",
        b"\x00body\xff",
        Content_Type="text/plain",
        BrokerProperties='{"MessageId":"m-1","Label":"new","TimeToLive":60}',
        Colour='"red"',
        Size="12",
        Fresh="true",
    )
    received = await head(client)

    assert (sent.status, sent.headers.get("X-Pairgate-Accepted-By")) == (201, "primary")
    assert (received.status, received.body) == (201, b"\x00body\xff")
    assert received.headers.get("Content-Type") == "text/plain"
    assert [received.headers.get(name) for name in ("Colour", "Size", "Fresh")] == [
        '"red"',
        "12",
        "true",
    ]
    properties = broker_properties(received)
    assert (properties["MessageId"], properties["Label"]) == ("m-1", "new")
    assert (properties["DeliveryCount"], properties["TimeToLive"]) == (1, 60)


async def test_every_answer_says_that_it_is_a_pairgate(
    autojump_clock: MockClock, client: Client
) -> None:
    answers = [
        await client.ask("POST", "/orders/messages"),
        await head(client),
        await client.ask("GET", "/orders"),
        await client.ask("PATCH", "/orders"),
        await client.ask("POST", "/missing/messages"),
        client.frontend.refuse(413, "too large"),
        await client.frontend.handle(Request(method="GET", target="/orders")),
    ]

    assert [answer.headers.get("X-Pairgate") for answer in answers] == ["1"] * 7


async def test_missing_message_id_is_made_and_a_given_one_is_kept(
    autojump_clock: MockClock, client: Client
) -> None:
    body = [{"Body": "a"}, {"Body": "b", "BrokerProperties": {"MessageId": "mine"}}, {"Body": "c"}]

    sent = await client.ask(
        "POST",
        "/orders/messages",
        json.dumps(body).encode(),
        Content_Type="application/vnd.microsoft.servicebus.json",
    )

    received = [await head(client, "DELETE") for _ in range(3)]
    assert sent.status == 201
    assert [r.body for r in received] == [b"a", b"b", b"c"]
    assert [broker_properties(r)["MessageId"] for r in received] == [
        str(UUID(int=1)),
        "mine",
        str(UUID(int=2)),
    ]


async def test_send_without_an_answer_in_time_is_unknown(
    autojump_clock: MockClock, client: Client, scripted: Scripted
) -> None:
    scripted.hangs = True

    start = trio.current_time()
    answer = await client.ask("POST", "/orders/messages")

    assert trio.current_time() - start == pytest.approx(30)
    assert answer.status == 504
    assert answer.headers.get("X-Pairgate-Outcome") == "unknown"


async def test_client_says_how_long_it_waits_for_a_send(
    autojump_clock: MockClock, client: Client, scripted: Scripted
) -> None:
    scripted.hangs = True

    start = trio.current_time()
    answer = await client.ask("POST", "/orders/messages?timeout=5")

    assert (answer.status, trio.current_time() - start) == (504, pytest.approx(5))


@pytest.mark.parametrize(
    ("bound", "query", "status", "seconds"),
    [
        (30.0, "", 201, 31),
        (30.0, "?timeout=60", 201, 31),
        (30.0, "?timeout=29", 504, 29),
        (30.1, "", 504, 30),
    ],
)
async def test_a_send_that_ends_by_itself_gets_no_deadline_but_an_earlier_one(
    autojump_clock: MockClock,
    client: Client,
    scripted: Scripted,
    bound: float,
    query: str,
    status: int,
    seconds: float,
) -> None:
    scripted.bound = bound
    scripted.takes = 31.0  # a little late, to see which side ends it

    start = trio.current_time()
    answer = await client.ask("POST", f"/orders/messages{query}")

    assert (answer.status, trio.current_time() - start) == (status, pytest.approx(seconds))


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (Unavailable("refused"), 503, "not-sent"),
        (StorageFull("no space left"), 507, "not-sent"),
        (OutcomeUnknown("cut off"), 504, "unknown"),
        (Busy("slow down", retry_after=7.2), 503, "not-sent"),
        (QuotaExceeded("full"), 403, None),
        (NotAuthorized("wrong key"), 401, None),
        (Untrusted("self-signed"), 502, "not-sent"),
        (EntityNotFound("no queue"), 404, None),
        (EntityDisabled("switched off"), 403, None),
        (MessageTooLarge("above the limit"), 413, None),
        (InvalidRequest("bad field"), 400, None),
        (SessionRequired("no session"), 400, None),
        (NotSupported("not here"), 501, "not-sent"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BrokerError) else "",
)
async def test_error_of_a_send_says_its_outcome(
    autojump_clock: MockClock,
    client: Client,
    scripted: Scripted,
    error: BrokerError,
    status: int,
    outcome: str | None,
) -> None:
    scripted.error = error

    answer = await client.ask("POST", "/orders/messages")

    assert (answer.status, answer.headers.get("X-Pairgate-Outcome")) == (status, outcome)
    assert answer.headers.get("X-Pairgate-Accepted-By") is None
    assert str(error) in detail(answer)


@pytest.mark.parametrize(
    ("error", "wait"), [(Busy(retry_after=7.2), "8"), (Unavailable("refused"), "1")]
)
async def test_an_answer_that_is_503_says_how_long_to_wait(
    autojump_clock: MockClock,
    client: Client,
    scripted: Scripted,
    error: BrokerError,
    wait: str,
) -> None:
    scripted.error = error

    answer = await client.ask("POST", "/orders/messages")

    assert (answer.status, answer.headers.get("Retry-After")) == (503, wait)


async def test_error_is_service_buss_xml_with_tracking(
    autojump_clock: MockClock, client: Client
) -> None:
    answer = await client.ask("POST", "/missing/messages")

    assert answer.status == 404
    assert answer.headers.get("Content-Type") == "application/xml; charset=utf-8"
    assert "TrackingId:00000000-0000-0000-0000-00000000000" in detail(answer)
    assert ", SystemTracker:east, Timestamp:2026-01-0" in detail(answer)


@pytest.mark.parametrize(
    ("method", "target", "fields", "text"),
    [
        ("POST", "/orders/messages?timeout=soon", {}, "timeout"),
        ("POST", "/orders/messages?timeout=0", {}, "timeout"),
        ("POST", "/orders/messages/head?timeout=-1", {}, "timeout"),
        ("POST", "/orders/messages", {"BrokerProperties": "{"}, "BrokerProperties"),
        ("POST", "/orders/messages", {"BrokerProperties": '{"TimeToLive":"x"}'}, "TimeToLive"),
        ("POST", "/orders/messages", {"BrokerProperties": '{"TimeToLive":0}'}, "time to live"),
        (
            "POST",
            "/orders/messages",
            {"BrokerProperties": '{"TimeToLiveTimeSpan":"0.00:00:00"}'},
            "time to live",
        ),
        ("POST", "/%C3%A4pfel/messages", {}, "entity name"),
        ("POST", "/a//b/messages", {}, "entity name"),
        ("PATCH", "/orders/messages", {}, "PATCH"),
        ("PUT", "/%C3%A4pfel", {}, "entity name"),
        ("GET", "/%C3%A4pfel", {}, "entity name"),
        ("GET", "/$Resources/Queues?$top=many", {}, "$top"),
    ],
)
async def test_bad_input_is_400_and_names_the_field(
    autojump_clock: MockClock,
    client: Client,
    method: str,
    target: str,
    fields: dict[str, str],
    text: str,
) -> None:
    answer = await client.ask(method, target, **fields)

    assert answer.status == 400
    assert text in detail(answer)


async def test_message_above_the_limit_is_413_and_names_it(
    autojump_clock: MockClock, client: Client
) -> None:
    answer = await client.ask("POST", "/orders/messages", b"x" * (1024 * 1024 + 1))

    assert answer.status == 413
    assert "1048576" in detail(answer)


# Rights


@pytest.mark.parametrize(
    ("method", "target", "right"),
    [
        ("POST", "/orders/messages", Right.SEND),
        ("HEAD", "/orders/messages", Right.SEND),
        ("GET", "/orders/messages", Right.LISTEN),
        ("POST", "/orders/messages/head?timeout=0", Right.LISTEN),
        ("DELETE", "/orders/messages/head?timeout=0", Right.LISTEN),
        ("DELETE", "/orders/messages/1/token", Right.LISTEN),
        ("PUT", "/orders/messages/1/token", Right.LISTEN),
        ("POST", "/orders/messages/1/token", Right.LISTEN),
        ("GET", "/orders", Right.MANAGE),
        ("DELETE", "/other", Right.MANAGE),
        ("GET", "/$Resources/Queues", Right.MANAGE),
        ("GET", "/$namespaceinfo", Right.MANAGE),
    ],
)
async def test_each_operation_wants_its_right(
    autojump_clock: MockClock, client: Client, method: str, target: str, right: Right
) -> None:
    refused = []
    for owned in Right:
        client.key_name = owned.value
        answer = await client.ask(method, target)
        if answer.status == 401:
            assert f"'{right.value}' claim(s) are required" in detail(answer)
            refused.append(owned)

    assert refused == [owned for owned in Right if owned not in {right, Right.MANAGE}]


async def test_without_a_token_not_even_the_body_is_read(
    autojump_clock: MockClock, client: Client
) -> None:
    broken = Headers.of({"Content-Type": "application/vnd.microsoft.servicebus.json"})

    answer = await client.frontend.handle(
        Request(method="POST", target="/orders/messages", headers=broken, body=b"{")
    )

    assert answer.status == 401
    assert "no token" in detail(answer)
    assert answer.headers.get("WWW-Authenticate") == 'SharedAccessSignature realm="pairgate"'


async def test_refusal_of_the_server_has_the_same_form(
    autojump_clock: MockClock, client: Client
) -> None:
    answer = client.frontend.refuse(413, "body: at most 1048576 bytes expected")

    assert answer.status == 413
    assert "at most 1048576 bytes" in detail(answer)
    assert "TrackingId:" in detail(answer)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/orders/messages/head", True),
        ("/orders/Messages/HEAD?timeout=3", True),
        ("/orders/messages", False),
        ("/orders/messages/1/head2", False),
        ("/orders", False),
    ],
)
def test_only_receives_end_with_their_client(target: str, expected: bool) -> None:
    assert is_long_poll(Request(method="POST", target=target)) is expected
