"""The endpoint for operators and listeners, of a process of its own."""

import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.extensions.announcements.wire import OPEN, parse_announcement
from gateway.net.http.event_stream import EventStream, open_events
from gateway.net.server_address import ServerAddress
from gateway.wire.http.messages import Request
from gateway.wire.servicebus.sas import sign_sas
from tests.e2e.commands import ADMIN, get, pairgate, with_fixed_port
from tests.e2e.processes import GatewayProcess, Gateways, broker_config
from tests.e2e.rest import KEY, KEY_NAME, send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
async def gateway(gateways: Gateways) -> GatewayProcess:
    gateway = await gateways.start(broker_config("orders") + ADMIN)
    await with_fixed_port(gateway)
    return gateway


@asynccontextmanager
async def announced(gateway: GatewayProcess) -> AsyncIterator[EventStream]:
    place = ServerAddress(host="127.0.0.1", port=gateway.ports[1])
    request = Request(method="GET", target="/triggers?queues=orders")
    with trio.fail_after(PATIENCE):
        async with open_events(
            place, request, connect_timeout=PATIENCE, silence=PATIENCE
        ) as events:
            assert await events.next() == OPEN
            yield events


async def test_a_scaler_reads_how_much_work_there_is(gateway: GatewayProcess) -> None:
    await send(gateway.address, "orders", b"one")

    health = await trio.to_thread.run_sync(get, gateway.ports[1], "/readyz")
    status, body = await trio.to_thread.run_sync(get, gateway.ports[1], "/scale/orders")

    assert (health[0], json.loads(health[1])) == (200, {"ready": True, "reason": "serving"})
    assert (status, json.loads(body)["depth"]) == (200, 1)


async def test_a_message_sent_through_the_gateway_is_announced(gateway: GatewayProcess) -> None:
    async with announced(gateway) as events:
        await send(gateway.address, "orders", b"one")
        event = await events.next()

    assert parse_announcement(event) == (EntityPath("orders"), 0)


async def test_people_announce_what_went_past_the_gateway(gateway: GatewayProcess) -> None:
    async with announced(gateway) as events:
        code, output, errors = await pairgate(gateway, "trigger", "orders", "--size", "7")
        event = await events.next()

    assert (code, errors) == (0, "")
    assert "orders" in output
    assert parse_announcement(event) == (EntityPath("orders"), 7)


async def test_without_a_gateway_a_trigger_is_a_temporary_failure(
    gateway: GatewayProcess,
) -> None:
    await gateway.stop()

    code, _, errors = await pairgate(gateway, "trigger", "orders")

    assert code == 75
    assert "no gateway answers" in errors


async def test_a_gateway_that_drains_tells_so_until_its_last_client_has_its_answer(
    gateway: GatewayProcess,
) -> None:
    token = sign_sas(f"http://{gateway.address}/", KEY_NAME, KEY, int(time.time()) + 600)
    fields = f"Host: localhost\r\nAuthorization: {token}\r\nContent-Length: 4\r\n\r\n"
    head = f"POST /orders/messages HTTP/1.1\r\n{fields}".encode()
    async with await trio.open_tcp_stream("127.0.0.1", gateway.ports[0]) as stream:
        await stream.send_all(head + b"on")
        await gateway.seen("connection_opened", protocol="service-bus-http")
        await trio.to_thread.run_sync(get, gateway.ports[1], "/scale/orders")
        gateway.signal(signal.SIGTERM)
        await gateway.seen("draining")
        health = await trio.to_thread.run_sync(get, gateway.ports[1], "/readyz")
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", gateway.ports[0])
        await stream.send_all(b"e!")
        answer = await stream.receive_some()
    code = await gateway.wait()

    reason = {"ready": False, "reason": "draining: SIGTERM"}
    assert (health[0], json.loads(health[1])) == (503, reason)
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert code == 0


async def test_open_streams_hold_up_no_drain(gateway: GatewayProcess) -> None:
    async with announced(gateway):
        assert await gateway.stop() == 0
