"""Health, and how much work a queue has: asked without a socket."""

import json
import random
from base64 import b64encode
from collections.abc import Iterable
from contextlib import aclosing
from datetime import timedelta

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from gateway.domain.access import Access, AccessPolicy, TokenClaim
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.message import Message
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.auth import Authorizer
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.sas import sign_sas
from tests.frontends.rest_client import KEY, ORDERS, POLICIES, wall_clock
from tests.harness.faults import FaultyBroker, Hang
from tests.harness.retained import entries


@pytest.fixture
async def broker() -> MemoryBroker:
    broker = MemoryBroker(wall_clock, random.Random(1))
    await broker.create_queue(ORDERS, QueueProperties())
    return broker


def frontend_of(
    broker: Broker, policies: Iterable[AccessPolicy] = (), *, accepts_well_known_key: bool = True
) -> AdminFrontend:
    authorizer = Authorizer(
        policies, wall_clock=wall_clock, accepts_well_known_key=accepts_well_known_key
    )
    return AdminFrontend(broker=broker, authorizer=authorizer, wall_clock=wall_clock)


async def ask(
    frontend: AdminFrontend,
    target: str,
    authorization: str | None = None,
    *,
    accept: str | None = None,
) -> Response:
    given = {"Authorization": authorization, "Accept": accept}
    fields = {name: value for name, value in given.items() if value is not None}
    return await frontend.handle(Request(method="GET", target=target, headers=Headers.of(fields)))


def basic(name: str, key: str) -> str:
    return f"Basic {b64encode(f'{name}:{key}'.encode()).decode()}"


def figures(response: Response) -> dict[str, object]:
    assert response.status == 200
    read: dict[str, object] = json.loads(response.body)
    return read


async def test_a_gateway_is_ready_until_it_drains_and_lives_on(broker: MemoryBroker) -> None:
    frontend = frontend_of(broker, POLICIES)

    before = [(await ask(frontend, path)).status for path in ("/livez", "/readyz")]
    frontend.readiness.end("draining: SIGTERM")
    after = [(await ask(frontend, path)).status for path in ("/livez", "/readyz")]

    assert before == [200, 200]
    assert after == [200, 503]


async def test_depth_and_age_of_the_oldest_message_are_told(
    broker: MemoryBroker, autojump_clock: MockClock
) -> None:
    await broker.send(ORDERS, [Message()])
    await trio.sleep(90)
    await broker.send(ORDERS, [Message()])

    told = figures(await ask(frontend_of(broker), "/scale/orders"))

    assert told == {"entity": "orders", "status": "Active", "depth": 2, "age_seconds": 90.0}


async def test_prometheus_gets_depth_and_age_in_its_own_format(
    broker: MemoryBroker, autojump_clock: MockClock
) -> None:
    await broker.send(ORDERS, [Message()])
    await trio.sleep(90)
    frontend = frontend_of(broker)

    scraped = await ask(frontend, "/scale/orders", accept="text/plain;version=0.0.4;q=0.3,*/*")
    plain = await ask(frontend, "/scale/orders", accept="*/*")
    either = await ask(frontend, "/scale/orders", accept="application/json, text/plain")

    told = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(scraped.body.decode())
        for sample in family.samples
    }
    labels = {"messaging_destination_name": "orders"}
    assert told == {
        "pairgate_entity_messages": (labels, 1.0),
        "pairgate_entity_oldest_age_seconds": (labels, 90.0),
    }
    assert figures(plain) == figures(either)


async def test_an_empty_queue_has_no_age(broker: MemoryBroker) -> None:
    told = figures(await ask(frontend_of(broker), "/scale/orders"))

    assert (told["depth"], told["age_seconds"]) == (0, 0.0)


async def test_a_queue_that_gives_nothing_needs_no_listeners(broker: MemoryBroker) -> None:
    await broker.send(ORDERS, [Message()])
    info = await broker.inspect(ORDERS)
    disabled = attrs.evolve(info.properties, status=EntityStatus.RECEIVE_DISABLED)
    await broker.update_queue(ORDERS, disabled)

    told = figures(await ask(frontend_of(broker), "/scale/orders"))

    assert (told["status"], told["depth"]) == ("ReceiveDisabled", 0)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (basic("Listen", KEY), 200),
        (basic("Manage", KEY), 200),
        (basic("Send", KEY), 401),
        (basic("Listen", "another key"), 401),
        (basic("Nobody", KEY), 401),
        ("Basic !", 400),
        ("Bearer token", 401),
        (None, 401),
    ],
)
async def test_figures_are_for_who_may_listen(
    authorization: str | None, status: int, broker: MemoryBroker
) -> None:
    response = await ask(frontend_of(broker, POLICIES), "/scale/orders", authorization)

    assert response.status == status
    assert (response.headers.get("WWW-Authenticate") is not None) == (status == 401)


async def test_a_token_of_service_bus_is_taken(broker: MemoryBroker) -> None:
    expires = int((wall_clock() + timedelta(minutes=5)).timestamp())
    token = sign_sas("http://localhost/orders", "Listen", KEY, expires)

    assert (await ask(frontend_of(broker, POLICIES), "/scale/orders", token)).status == 200


async def test_without_policies_only_this_machine_needs_no_key(broker: MemoryBroker) -> None:
    near = await ask(frontend_of(broker), "/scale/orders")
    far = await ask(frontend_of(broker, accepts_well_known_key=False), "/scale/orders")

    assert (near.status, far.status) == (200, 401)


@pytest.mark.parametrize(
    ("target", "status"),
    [("/scale/nowhere", 404), ("/scale/a//b", 400), ("/scale/", 400), ("/", 404), ("/x", 404)],
)
async def test_a_missing_path_is_said_in_json(
    target: str, status: int, broker: MemoryBroker
) -> None:
    response = await ask(frontend_of(broker), target)

    assert response.status == status
    assert set(json.loads(response.body)) == {"error"}


async def test_nothing_is_changed_by_other_methods(broker: MemoryBroker) -> None:
    response = await frontend_of(broker).handle(Request(method="POST", target="/scale/orders"))

    assert response.status == 405


async def test_a_namespace_that_hangs_is_an_error_in_time(
    broker: MemoryBroker, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    faulty = FaultyBroker(inner=broker, fault=lambda operation, entity: Hang())
    await nursery.start(faulty.run)
    frontend = frontend_of(faulty)

    response = await ask(frontend, "/scale/orders")

    assert response.status == 504
    assert (await ask(frontend, "/readyz")).status == 200
    assert EntityPath("orders").name in json.loads(response.body)["error"]


async def streamed(response: Response, parts: int) -> list[bytes]:
    """The next parts of a response, which then is left."""
    assert response.parts is not None
    async with aclosing(response.parts) as stream:
        return [await anext(stream) for _ in range(parts)]


async def test_a_message_in_a_queue_is_announced(
    broker: MemoryBroker, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    frontend = frontend_of(broker)
    response = await ask(frontend, "/triggers?queues=orders,Invoices")

    async def trigger() -> None:
        await trio.sleep(1)
        for target in ("/triggers/elsewhere", "/triggers/invoices?size=10", "/triggers/INVOICES"):
            answer = await frontend.handle(Request(method="POST", target=target))
            assert answer.status == 202

    nursery.start_soon(trigger)
    opened, event = await streamed(response, 2)

    assert response.headers.get("Content-Type") == "text/event-stream"
    assert opened == b"event: open\ndata: {}\n\n"
    assert event == b'event: trigger\ndata: {"queue": "invoices", "size": 10}\n\n'


async def test_a_reader_that_is_slow_finds_one_announcement_a_queue(
    broker: MemoryBroker, autojump_clock: MockClock
) -> None:
    frontend = frontend_of(broker)
    response = await ask(frontend, "/triggers?queues=orders")
    assert response.parts is not None
    async with aclosing(response.parts) as stream:
        await anext(stream)
        for _ in range(1000):
            frontend.announcements.publish(ORDERS, 3)

        event = await anext(stream)

    assert event == b'event: trigger\ndata: {"queue": "orders", "size": 3000}\n\n'


async def test_a_silent_stream_shows_that_it_is_there(
    broker: MemoryBroker, autojump_clock: MockClock
) -> None:
    response = await ask(frontend_of(broker), "/triggers?queues=orders")

    _, *comments = await streamed(response, 3)

    assert comments == [b":\n\n", b":\n\n"]
    assert trio.current_time() == pytest.approx(30, abs=0.1)


async def test_a_stream_ends_when_its_client_may_not_listen_to_the_queue_any_more(
    broker: MemoryBroker, autojump_clock: MockClock
) -> None:
    frontend = frontend_of(broker, POLICIES)
    response = await ask(frontend, "/triggers?queues=orders", basic("Listen", KEY))
    assert response.parts is not None
    async with aclosing(response.parts) as stream:
        await anext(stream)
        frontend.announcements.publish(ORDERS, 1)
        told = await anext(stream)

        frontend.authorizer.replace([each for each in POLICIES if each.name != "Listen"])
        frontend.announcements.publish(ORDERS, 1)
        with trio.fail_after(1):
            rest = [part async for part in stream]

    assert told.startswith(b"event: trigger")
    assert rest == []


async def test_a_silent_stream_looks_at_the_right_to_one_queue_at_a_time(
    broker: MemoryBroker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = frontend_of(broker, POLICIES)
    asked: list[str] = []
    check = Authorizer.check

    def note(self: Authorizer, claim: TokenClaim, access: Access) -> None:
        asked.append(access.path)
        check(self, claim, access)

    names = [f"q{number}" for number in range(1000)]
    response = await ask(frontend, f"/triggers?queues={','.join(names)}", basic("Listen", KEY))
    monkeypatch.setattr(Authorizer, "check", note)
    await streamed(response, 4)

    assert asked == names[:3]


async def test_a_reader_that_has_gone_is_forgotten(broker: MemoryBroker) -> None:
    frontend = frontend_of(broker)
    before = entries(frontend.announcements)

    await streamed(await ask(frontend, "/triggers?queues=orders"), 1)

    assert entries(frontend.announcements) == before


@pytest.mark.parametrize(
    ("method", "target", "name", "status"),
    [
        ("GET", "/triggers?queues=orders", "Listen", 200),
        ("GET", "/triggers?queues=orders", "Send", 401),
        ("POST", "/triggers/orders", "Send", 202),
        ("POST", "/triggers/orders", "Listen", 401),
        ("GET", "/triggers?queues=", "Listen", 400),
        ("GET", "/triggers?queues=a,,b", "Listen", 400),
        ("GET", "/triggers?queues=" + ",".join(["a"] * 1001), "Listen", 400),
        ("POST", "/triggers/orders?size=-1", "Send", 400),
        ("POST", "/triggers/orders?size=" + "9" * 30, "Send", 400),
        ("POST", "/triggers/", "Send", 400),
        ("DELETE", "/triggers/orders", "Manage", 405),
    ],
)
async def test_triggers_are_for_who_has_the_right(
    method: str, target: str, name: str, status: int, broker: MemoryBroker
) -> None:
    headers = Headers.of({"Authorization": basic(name, KEY)})

    response = await frontend_of(broker, POLICIES).handle(
        Request(method=method, target=target, headers=headers)
    )

    assert response.status == status
