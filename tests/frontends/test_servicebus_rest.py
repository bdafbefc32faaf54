import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.brokers.memory import MemoryBroker
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    OutcomeUnknown,
    SessionRequired,
    Unavailable,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Leg, Message, ReceiveMode
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus_rest import RestOptions, ServiceBusRestFrontend, is_long_poll
from gateway.ports import Receiver
from gateway.wire import atom, servicebus_answers, servicebus_rest
from gateway.wire.http import Headers, Request, Response
from gateway.wire.sas import sign_sas
from gateway.wire.servicebus_operations import (
    Accepted,
    Delivered,
    Form,
    Operation,
    PeekMessages,
    ProbeEntity,
    ReceiveMessages,
    Renewed,
    RenewLock,
    SendMessages,
    SettleMessage,
)

ORDERS = EntityPath("orders")
KEY = "SAS_KEY_VALUE"
ROOT = AccessPolicy(name="RootManageSharedAccessKey", keys=(KEY,), rights=frozenset({Right.MANAGE}))
POLICIES = [
    ROOT,
    *(AccessPolicy(name=r.value, keys=(KEY,), rights=frozenset({r})) for r in Right),
]


def wall_clock() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=trio.current_time())


@attrs.define(eq=False)
class Client:
    """Signs requests and hands them to a front end, without a socket."""

    frontend: ServiceBusRestFrontend
    broker: MemoryBroker
    key_name: str = ROOT.name

    async def ask(self, method: str, target: str, body: bytes = b"", **fields: str) -> Response:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        return await self.send(
            Request(method=method, target=target, headers=Headers.of(headers), body=body)
        )

    async def send(self, request: Request) -> Response:
        expires = int(wall_clock().timestamp()) + 300
        token = sign_sas("http://localhost:8080/", self.key_name, KEY, expires)
        fields = [("Host", "localhost:8080"), ("Authorization", token), *request.headers.items]
        return await self.frontend.handle(attrs.evolve(request, headers=Headers.of(fields)))

    async def do(self, operation: Operation) -> object:
        """As a Pairgate does it to another one."""
        response = await self.send(servicebus_rest.build_request(operation))
        return servicebus_answers.parse_response(operation, response)

    async def manage(self, operation: atom.ManagementOperation) -> atom.ManagementAnswer:
        return atom.parse_response(operation, await self.send(atom.build_request(operation)))


@attrs.define(eq=False)
class Scripted:
    """A broker that fails or hangs as the test says, before or after it has done its work."""

    inner: MemoryBroker
    error: BrokerError | None = None
    hangs: bool = False

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        await self._fail()
        return await self.inner.send(entity, messages)

    async def probe(self, entity: EntityPath) -> None:
        await self._fail()

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        async with self.inner.open_receiver(entity, mode) as receiver:
            yield receiver

    async def _fail(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.error:
            raise self.error


def numbered() -> Iterator[UUID]:
    return (UUID(int=number) for number in count(1))


def frontend_of(broker: object, leases: Leases) -> ServiceBusRestFrontend:
    return ServiceBusRestFrontend(
        broker=broker,  # type: ignore[arg-type]
        leases=leases,
        authorizer=Authorizer(POLICIES, wall_clock=wall_clock, loopback=True),
        wall_clock=wall_clock,
        new_id=numbered().__next__,
        options=RestOptions(namespace="east"),
    )


@pytest.fixture
async def client(nursery: trio.Nursery) -> Client:
    broker = MemoryBroker(wall_clock, random.Random(1))
    leases = Leases(broker, wall_clock)
    await nursery.start(leases.run)
    await broker.create_queue(ORDERS, QueueProperties())
    return Client(frontend_of(broker, leases), broker)


@pytest.fixture
def scripted(client: Client) -> Scripted:
    scripted = Scripted(client.broker)
    client.frontend.broker = scripted  # type: ignore[assignment]
    return scripted


def broker_properties(response: Response) -> dict[str, object]:
    found: dict[str, object] = json.loads(response.headers.get("BrokerProperties") or "")
    return found


def detail(response: Response) -> str:
    text = response.body.decode()
    assert text.startswith(f"<Error><Code>{response.status}</Code><Detail>")
    return text


async def head(client: Client, method: str = "POST", seconds: float = 0) -> Response:
    return await client.ask(method, f"/orders/messages/head?timeout={seconds}")


# Sending


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

    assert (sent.status, sent.headers.get("X-Pairgate-Leg")) == (201, "primary")
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
    ("error", "status", "fields"),
    [
        (Unavailable("refused"), 503, {"X-Pairgate-Outcome": "not-sent", "Retry-After": None}),
        (Busy("slow down", retry_after=7.2), 503, {"Retry-After": "8"}),
        (OutcomeUnknown("cut off"), 504, {"X-Pairgate-Outcome": "unknown"}),
    ],
)
async def test_error_of_a_send_says_its_outcome(
    autojump_clock: MockClock,
    client: Client,
    scripted: Scripted,
    error: BrokerError,
    status: int,
    fields: dict[str, str | None],
) -> None:
    scripted.error = error

    answer = await client.ask("POST", "/orders/messages")

    assert answer.status == status
    assert {name: answer.headers.get(name) for name in fields} == fields


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


# Receiving and settling


async def test_location_names_the_clients_own_host(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages")

    received = await head(client)

    properties = broker_properties(received)
    assert received.headers.get("Location") == (
        f"http://localhost:8080/orders/messages/{properties['SequenceNumber']}"
        f"/{properties['LockToken']}"
    )


async def locked_target(client: Client) -> str:
    """Where the lock of the next message is settled."""
    received = await head(client)
    assert received.status == 201
    return (received.headers.get("Location") or "").removeprefix("http://localhost:8080")


async def test_completed_message_is_gone(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)

    statuses = [(await client.ask("DELETE", target)).status for _ in range(2)]

    assert statuses == [200, 404]
    await trio.sleep(100)
    assert (await head(client)).status == 204


async def test_abandoned_message_comes_again_at_once(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages")

    answer = await client.ask("PUT", await locked_target(client))

    assert answer.status == 200
    assert broker_properties(await head(client))["DeliveryCount"] == 2


async def test_lock_that_ran_out_is_404_and_the_message_comes_again(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)

    await trio.sleep(61)

    answer = await client.ask("DELETE", target)
    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (404, "lock-lost")
    assert (await head(client)).status == 201


async def test_renewed_lock_holds_on(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)
    await trio.sleep(50)

    renewed = await client.ask("POST", target)

    await trio.sleep(50)
    assert renewed.status == 200
    assert (await client.ask("DELETE", target)).status == 200


async def test_message_id_may_stand_for_the_sequence_number(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages", BrokerProperties='{"MessageId":"a b"}')
    token = (await locked_target(client)).rpartition("/")[2]

    assert (await client.ask("DELETE", f"/orders/messages/a%20b/{token}")).status == 200


async def test_destructive_receive_takes_the_message_away(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages", b"once")

    received = await head(client, "DELETE")

    assert (received.status, received.body) == (200, b"once")
    assert received.headers.get("Location") is None
    assert not {"LockToken", "LockedUntilUtc"} & broker_properties(received).keys()
    await trio.sleep(100)
    assert (await head(client)).status == 204


async def test_destructive_receive_that_cannot_delete_hands_out_nothing(
    autojump_clock: MockClock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.ask("POST", "/orders/messages", b"once")

    async def settle(*_: object) -> None:
        raise Unavailable("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(Leases, "settle", settle)
        refused = await head(client, "DELETE")

    assert refused.status == 204
    await trio.sleep(61)
    assert (await head(client, "DELETE")).body == b"once"


async def test_destructive_receive_with_unknown_outcome_hands_the_message_out(
    autojump_clock: MockClock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.ask("POST", "/orders/messages", b"once")

    async def settle(*_: object) -> None:
        raise OutcomeUnknown("cut off")

    monkeypatch.setattr(Leases, "settle", settle)

    assert (await head(client, "DELETE")).body == b"once"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_empty_queue_is_204_after_the_clients_wait(
    autojump_clock: MockClock, client: Client, method: str
) -> None:
    start = trio.current_time()

    answer = await head(client, method, 7)

    assert (answer.status, answer.body) == (204, b"")
    assert trio.current_time() - start == pytest.approx(7)


async def test_wait_is_60_seconds_unless_the_client_says_another_and_never_above_the_cap(
    autojump_clock: MockClock, client: Client
) -> None:
    start = trio.current_time()
    await client.ask("POST", "/orders/messages/head")
    default = trio.current_time() - start
    await head(client, seconds=1000)

    assert default == pytest.approx(60)
    assert trio.current_time() - start - default == pytest.approx(240)


async def test_waiting_receive_gets_what_arrives(
    autojump_clock: MockClock, client: Client, nursery: trio.Nursery
) -> None:
    answers: list[Response] = []

    async def wait() -> None:
        answers.append(await head(client, seconds=60))

    async with trio.open_nursery() as requests:
        requests.start_soon(wait)
        await wait_all_tasks_blocked()
        await client.ask("POST", "/orders/messages", b"late")

    assert [answer.body for answer in answers] == [b"late"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_client_that_goes_away_while_waiting_loses_nothing(
    autojump_clock: MockClock, client: Client, method: str
) -> None:
    async with trio.open_nursery() as requests:
        requests.start_soon(head, client, method, 60)
        await wait_all_tasks_blocked()
        requests.cancel_scope.cancel()

    await client.ask("POST", "/orders/messages", b"kept")

    assert (await head(client)).body == b"kept"


async def test_receive_from_a_missing_queue_is_404(
    autojump_clock: MockClock, client: Client
) -> None:
    answer = await client.ask("POST", "/missing/messages/head?timeout=5")

    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (404, "entity-not-found")


async def test_queue_that_requires_sessions_has_no_rest_receiver(
    autojump_clock: MockClock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def receive(*_: object) -> None:
        raise SessionRequired("the queue requires sessions")

    monkeypatch.setattr(Leases, "receive", receive)

    answer = await head(client)

    assert answer.status == 405
    assert "requires sessions" in detail(answer)


# Between Pairgates


async def test_encoded_messages_keep_what_rest_has_no_words_for(
    autojump_clock: MockClock, client: Client
) -> None:
    message = Message(message_id="m", body=b"x", properties={"id": UUID(int=7), "big": 2**62})

    accepted = await client.do(SendMessages(entity=ORDERS, messages=(message,), form=Form.AMQP))
    delivered = await client.do(ReceiveMessages(entity=ORDERS, timeout=0, limit=10))

    assert accepted == Accepted(leg=Leg.PRIMARY)
    assert isinstance(delivered, Delivered)
    assert [d.message.properties for d in delivered.deliveries] == [message.properties]


async def test_batch_is_received_settled_and_dead_lettered(
    autojump_clock: MockClock, client: Client
) -> None:
    messages = tuple(Message(message_id=str(n), body=b"x") for n in range(3))
    await client.do(SendMessages(entity=ORDERS, messages=messages, form=Form.AMQP))

    delivered = await client.do(ReceiveMessages(entity=ORDERS, timeout=0, limit=10))
    assert isinstance(delivered, Delivered)
    for delivery, settlement in zip(
        delivered.deliveries,
        (Complete(), Abandon(), DeadLetter(reason="bad", description="very")),
        strict=True,
    ):
        await client.do(
            SettleMessage(
                entity=ORDERS,
                message=str(delivery.sequence_number),
                lock_token=delivery.lock_token or "",
                settlement=settlement,
            )
        )

    again = await client.do(ReceiveMessages(entity=ORDERS, timeout=0, limit=10))
    dead = await client.do(ReceiveMessages(entity=ORDERS.dead_letter, timeout=0, limit=10))
    assert isinstance(again, Delivered)
    assert isinstance(dead, Delivered)
    assert [d.message.message_id for d in again.deliveries] == ["1"]
    assert [d.message.properties["DeadLetterReason"] for d in dead.deliveries] == ["bad"]


async def test_destructive_batch_keeps_its_order(autojump_clock: MockClock, client: Client) -> None:
    messages = tuple(Message(message_id=str(n), body=b"x") for n in range(20))
    await client.do(SendMessages(entity=ORDERS, messages=messages, form=Form.AMQP))

    delivered = await client.do(
        ReceiveMessages(entity=ORDERS, mode=ReceiveMode.RECEIVE_AND_DELETE, timeout=0, limit=50)
    )

    assert isinstance(delivered, Delivered)
    assert [d.message.message_id for d in delivered.deliveries] == [str(n) for n in range(20)]


async def test_renewal_tells_until_when(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages")
    *_, message, token = (await locked_target(client)).split("/")

    renewed = await client.do(RenewLock(entity=ORDERS, message=message, lock_token=token))

    assert renewed == Renewed(locked_until=wall_clock() + timedelta(seconds=60))


async def test_peek_shows_and_takes_nothing(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages", b"seen")

    peeked = await client.do(PeekMessages(entity=ORDERS, limit=5))

    assert isinstance(peeked, Delivered)
    assert [(d.message.body, d.lock_token) for d in peeked.deliveries] == [(b"seen", None)]
    assert (await head(client)).body == b"seen"


async def test_namespace_that_cannot_peek_says_so(
    autojump_clock: MockClock, client: Client, scripted: Scripted
) -> None:
    answer = await client.ask("GET", "/orders/messages")

    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (501, "not-supported")


async def test_probe_asks_whether_one_could_send(
    autojump_clock: MockClock, client: Client, scripted: Scripted
) -> None:
    await client.do(ProbeEntity(entity=ORDERS))
    scripted.error = Unavailable("refused")

    answer = await client.ask("HEAD", "/orders/messages")

    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (503, "unavailable")


# Management


async def test_queue_is_created_told_listed_and_deleted(
    autojump_clock: MockClock, client: Client
) -> None:
    bills = EntityPath("eu/Bills")
    properties = QueueProperties(max_delivery_count=3, lock_duration=timedelta(seconds=30))

    created = await client.send(
        atom.build_request(atom.PutQueue(entity=bills, properties=properties))
    )
    told = await client.manage(atom.GetQueue(entity=bills))
    listed = await client.manage(atom.ListQueues())
    await client.manage(atom.DeleteQueue(entity=bills))

    assert created.status == 201
    assert told is not None
    assert not isinstance(told, str | tuple)
    assert (told.path.name, told.properties.max_delivery_count) == ("eu/Bills", 3)
    assert isinstance(listed, tuple)
    assert [info.path.name for info in listed] == ["eu/Bills", "orders"]
    assert await client.manage(atom.GetQueue(entity=bills)) is None


async def test_queue_that_exists_is_409_and_stays(
    autojump_clock: MockClock, client: Client
) -> None:
    request = atom.build_request(
        atom.PutQueue(entity=ORDERS, properties=QueueProperties(max_delivery_count=3))
    )

    assert (await client.send(request)).status == 409
    assert (await client.broker.inspect(ORDERS)).properties.max_delivery_count == 10


async def test_missing_queue_is_an_empty_feed_to_tell_and_404_to_delete(
    autojump_clock: MockClock, client: Client
) -> None:
    told = await client.ask("GET", "/missing")
    deleted = await client.ask("DELETE", "/missing")

    assert (told.status, b"<feed" in told.body, b"<entry" in told.body) == (200, True, False)
    assert deleted.status == 404


async def test_update_that_changes_nothing_is_fine_and_any_other_is_refused(
    autojump_clock: MockClock, client: Client
) -> None:
    same = atom.PutQueue(entity=ORDERS, properties=QueueProperties(), update=True)
    other = attrs.evolve(same, properties=QueueProperties(max_delivery_count=3))
    missing = attrs.evolve(same, entity=EntityPath("missing"))

    statuses = [
        (await client.send(atom.build_request(operation))).status
        for operation in (same, other, missing)
    ]

    assert statuses == [200, 501, 404]


async def test_list_comes_in_pages(autojump_clock: MockClock, client: Client) -> None:
    for name in ("a", "b"):
        await client.broker.create_queue(EntityPath(name), QueueProperties())

    first = await client.ask("GET", "/$Resources/Queues?$skip=0&$top=2")
    second = await client.ask("GET", "/$Resources/Queues?$skip=2&$top=2")

    assert (first.body.count(b"<entry"), b'rel="next"' in first.body) == (2, True)
    assert (second.body.count(b"<entry"), b'rel="next"' in second.body) == (1, False)


async def test_namespace_tells_its_name(autojump_clock: MockClock, client: Client) -> None:
    assert await client.manage(atom.GetNamespace()) == "east"


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
            assert f"'{right.value}' claim is required" in detail(answer)
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
