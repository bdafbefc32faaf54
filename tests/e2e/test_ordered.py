"""An ordered entity through outages, with real processes: what was sent in order arrives so."""

import re

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete
from gateway.pairing.provision import provision
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ORDERS = EntityPath("orders")
REST_URL = re.compile(r"servicebus\+http://(\w+)@([0-9.:]+)")
AMQP_URL = r"servicebus:Endpoint=sb://\2/;SharedAccessKeyName=\1;UseDevelopmentEmulator=true"


async def test_messages_arrive_in_order_through_kills_of_the_primary_and_of_the_gateway(
    gateways: Gateways,
) -> None:
    primary, config = await namespaces(gateways)
    gateway = await gateways.start(config, name="gateway")
    numbers, ways = iter(range(1_000_000)), []

    async def send_some(count: int) -> None:
        for _ in range(count):
            status, way = await send(gateway.address, "orders", b"%d" % next(numbers))
            assert status == 201
            ways.append(way)

    async def send_until(way: str) -> None:
        with trio.fail_after(90.0):
            while not ways or ways[-1] != way:
                await send_some(1)

    await send_until("primary")
    await primary.kill()
    await send_until("backlog")
    await send_some(20)
    await primary.start()
    await send_until("primary")
    await primary.kill()
    await send_until("backlog")
    await send_some(20)
    await gateway.kill()
    await gateway.start()
    await primary.start()
    await send_until("primary")

    received = await all_bodies(primary, next(numbers))
    assert list(dict.fromkeys(received)) == sorted(set(received))
    assert len(set(received)) == len(ways)


async def test_two_gateways_keep_the_order_when_one_that_had_the_lease_is_killed(
    gateways: Gateways,
) -> None:
    primary, config = await namespaces(gateways, order_lease="wait", send_timeout="30s")
    one = await gateways.start(config, name="one")
    other = await gateways.start(config, name="other")
    sent = 0

    async def send_one(gateway: GatewayProcess) -> str:
        nonlocal sent
        status, way = await send(gateway.address, "orders", b"%d" % sent, patience=60.0)
        assert status == 201
        sent += 1
        return way

    assert [await send_one(each) for each in (one, other, one)] == ["primary"] * 3
    await primary.kill()
    assert [await send_one(each) for each in (one, other, other, one)] == ["backlog"] * 4
    await one.kill()
    await primary.start()
    assert await send_one(other) in {"primary", "backlog"}
    await one.start()
    ways = []
    with trio.fail_after(90.0):
        while ways[-2:] != ["primary"] * 2:
            ways += [await send_one(one), await send_one(other)]

    assert list(dict.fromkeys(await all_bodies(primary, sent))) == list(range(sent))


async def namespaces(gateways: Gateways, **pairing: object) -> tuple[GatewayProcess, str]:
    """Start two brokers; return the primary, and the configuration of a gateway before both."""
    config = broker_config().replace('"service-bus-http"', '"service-bus"')
    primary = await gateways.start(config, name="primary")
    secondary = await gateways.start(config, name="secondary")
    async with client(primary) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
    async with client(secondary) as broker:
        await provision(broker, "east", 1, ordered=True, leases="order_lease" in pairing)
    options = {"ordered": ["orders"], "backlog_queues": 1, **pairing}
    pair = pair_config(primary.address, secondary.address, **options)
    return primary, REST_URL.sub(AMQP_URL, pair)


async def all_bodies(primary: GatewayProcess, count: int) -> list[int]:
    """The numbers of all messages on the primary, as they come, until so many are known."""
    found: list[int] = []
    async with client(primary) as broker, broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(90.0):
            while len(set(found)) < count:
                for delivery in await receiver.receive(1):
                    found.append(int(bytes(delivery.message.body)))
                    await receiver.settle(delivery, Complete())
    return found
