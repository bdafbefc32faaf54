"""
An ordered entity through outages, with real processes: messages arrive in the order of their sends.
"""

import signal

import pytest
import trio

from gateway.checker.history import Run
from gateway.checker.order import order_kept
from gateway.domain.message import Complete
from gateway.extensions.order.lease import LEASE
from tests.e2e.installation import client
from tests.e2e.ordered import ORDERS, History, forwarding, namespaces
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow


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
        with trio.fail_after(PATIENCE):
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
    with trio.fail_after(PATIENCE):
        while ways[-2:] != ["primary"] * 2:
            ways += [await send_one(one), await send_one(other)]

    assert list(dict.fromkeys(await all_bodies(primary, sent))) == list(range(sent))


async def test_a_gateway_forwards_its_sends_to_the_orderer(gateways: Gateways) -> None:
    primary, one, other = await forwarding(gateways)
    ways = []
    for number in range(12):
        gateway = other if number % 3 else one
        status, way = await send(gateway.address, "orders", b"%d" % number, patience=60.0)
        assert status == 201
        ways.append(way)
        if number == 5:
            await primary.kill()

    assert ways == ["primary"] * 6 + ["backlog"] * 6
    assert (one.count("order_lease_taken"), other.count("order_lease_taken")) == (1, 0)
    await primary.start()
    assert list(dict.fromkeys(await all_bodies(primary, 12))) == list(range(12))


async def test_an_orderer_that_is_stopped_leaves_no_send_unknown(gateways: Gateways) -> None:
    primary, one, other = await forwarding(gateways)
    history = History()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.produce, "other", other)
        await history.acknowledged("other", 5)
        await one.stop()
        await history.acknowledged("other", history.numbers["other"] + 2)
        history.is_over = True

    taken = await other.seen("order_lease_taken")
    assert taken["seconds"] < LEASE  # it didn't wait for the last one's lease to run out
    copies = await history.find(primary)
    assert {number for body, number in copies.items() if body.startswith("other-")} == {1}


async def test_a_frozen_orderers_sends_are_not_out_of_order_once_it_goes_on(
    gateways: Gateways,
) -> None:
    primary, one, other = await forwarding(gateways)
    history = History()
    async with trio.open_nursery() as nursery:
        for name, gateway in (("one", one), ("also one", one), ("other", other)):
            nursery.start_soon(history.produce, name, gateway)
        for name in ("one", "also one", "other"):
            await history.acknowledged(name, 3)
        one.signal(signal.SIGSTOP)
        try:
            await other.seen("order_lease_taken")
            await history.acknowledged("other", history.numbers["other"] + 5)
        finally:
            one.signal(signal.SIGCONT)
        for name in ("one", "also one", "other"):
            await history.acknowledged(name, history.numbers[name] + 5)
        history.is_over = True

    await history.find(primary)
    assert order_kept(Run.of(history.records)).problems == ()


async def all_bodies(primary: GatewayProcess, count: int) -> list[int]:
    """
    The numbers of all messages on the primary, in the order of arrival, until `wanted` are known.
    """
    found: list[int] = []
    async with client(primary) as broker, broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(PATIENCE):
            while len(set(found)) < count:
                for delivery in await receiver.receive(1):
                    found.append(int(bytes(delivery.message.body)))
                    await receiver.settle(delivery, Complete())
    return found
