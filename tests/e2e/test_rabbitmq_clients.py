"""RabbitMQ's own client, unchanged, through a gateway before a real RabbitMQ that has outages."""

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest
import trio

from tests.e2e.rabbitmq_exchange_publisher import COPIES, ROUTES
from tests.e2e.rabbitmq_site import (
    BINDINGS,
    LOOK,
    STRAYED,
    TAKEN,
    Site,
    Sites,
    published,
    result_of,
    until_depth,
)
from tests.harness import servers
from tests.harness.blocking import blocking, pika_connection
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import INSTALLED, RABBITMQ_4, Release

pytestmark = [pytest.mark.live, pytest.mark.slow]

TO_EXCHANGES = Path(__file__).with_name("rabbitmq_exchange_publisher.py")
CONSUMER = Path(__file__).with_name("rabbitmq_consumer.py")
NAMES = ("one", "two", "three?")  # the third asks for no confirms
BEFORE = 50  # messages


async def is_killed(site: Site) -> None:
    """The broker is killed, and comes back; meanwhile an application starts."""
    await site.broker.kill()
    await site.gateway.until(lambda: is_lost(site), PATIENCE)
    await blocking(site.start_in_outage)
    await trio.sleep(2)
    await site.broker.start()


async def freezes(site: Site) -> None:
    """The broker freezes, and goes on."""
    await servers.freeze(site.broker.pid)
    await site.gateway.until(lambda: has_left(site), PATIENCE)
    await trio.sleep(2)
    os.kill(site.broker.pid, signal.SIGCONT)


def is_lost(site: Site) -> bool:
    return site.gateway.count("namespace_lost") > site.gateway.count("namespace_back")


def has_left(site: Site) -> bool:
    """True while an entity isn't at the primary, by its last state."""
    lines = [line for line in site.gateway.log if line["event"] == "entity_state_changed"]
    states = {line["entity"]: line["after"] for line in lines}
    return any(state != "primary" for state in states.values())


async def has_outage(site: Site, outage: Callable[[Site], Awaitable[None]]) -> None:
    """The publishers go on in the outage, and after it."""
    await until_depth(site, BEFORE)
    for kind in BINDINGS:  # the second was published when the gateway had confirmed the first
        await until_depth(site, 2, kind)
    await until_consumed(site, TAKEN)  # in an outage nobody declares a queue of its own
    await blocking(site.declare)
    before = site.gateway.count("outage_over")  # of outages that were stalls of the machine
    await outage(site)
    await site.gateway.until(lambda: site.gateway.count("outage_over") > before, PATIENCE)
    depth = await blocking(site.depth)
    await until_depth(site, depth + BEFORE)


async def until_consumed(site: Site, queue: str) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            if await blocking(site.consumers, queue):
                return
            await trio.sleep(LOOK)


async def until_taken(site: Site, results: dict[str, Any]) -> None:
    """Return when the consumer's queue is empty, or the consumer has ended by itself."""
    with trio.fail_after(PATIENCE):
        while "consumer" not in results:
            if not await blocking(site.depth, TAKEN):
                return
            await trio.sleep(LOOK)


@pytest.mark.parametrize("outage", [is_killed, freezes], ids=lambda each: each.__name__)
@pytest.mark.parametrize("release", [INSTALLED, RABBITMQ_4], ids=["RabbitMQ 3", "RabbitMQ 4"])
async def test_clients_notice_neither_a_killed_nor_a_frozen_broker(
    sites: Sites,
    release: Release,
    outage: Callable[[Site], Awaitable[None]],
) -> None:
    results: dict[str, dict[str, Any]] = {}
    end, all_taken = trio.Event(), trio.Event()

    async def publish(name: str) -> None:
        results[name] = await published(here, name, end)

    async def pass_tasks() -> None:
        results["tasks"] = await published(here, "tasks", end, queue=TAKEN)
        await blocking(here.announce)
        await until_taken(here, results)
        all_taken.set()

    async def announce() -> None:
        results["events"] = await result_of(end, TO_EXCHANGES, str(here.gateway.port), "events")

    async def consume() -> None:
        results["consumer"] = await result_of(all_taken, CONSUMER, str(here.gateway.port), TAKEN)

    async with sites.open(release) as here:
        async with trio.open_nursery() as nursery:
            for name in NAMES:
                nursery.start_soon(publish, name)
            nursery.start_soon(consume)
            nursery.start_soon(announce)
            nursery.start_soon(pass_tasks)
            await has_outage(here, outage)
            end.set()
        await here.until_backlog_is_empty()
        code = await here.gateway.stop()
        found = await blocking(here.drained)
        routed = await blocking(all_routed, here)

    assert code == 0
    assert [result["error"] for result in results.values()] == [""] * 6
    events = results.pop("events")
    assert events["errors"] == []
    check_routes(routed, events["confirmed"])
    tasks, consumer = results.pop("tasks"), results.pop("consumer")
    expected = {f"tasks {n}" for n in range(tasks["sent"])}
    started = {"of the outage"} if outage is is_killed else set()
    assert set(consumer["bodies"]) == {"news", *started, *expected}
    sent = {f"{name} {n}".encode() for name, each in results.items() for n in range(each["sent"])}
    bodies = Counter(body for _, body in found)
    assert set(bodies) == sent
    copies = bodies.total() - len(bodies)
    assert copies <= told(here.gateway.log)
    for properties, _ in found:
        assert properties.content_type == "text/plain"
        assert properties.delivery_mode == 2
        assert properties.headers["retries"] == [1, None, {"deep": True}]


def counted_by_keda(port: int) -> list[int]:
    """
    The numbers that KEDA's scaler `rabbitmq` reads with `protocol: amqp`, around two publishes
    (kedacore/keda 8b4f083c, pkg/scalers/rabbitmq_scaler.go): a connection with a name (444), one
    channel (432), and on it a passive declare without arguments each time (562).
    """
    named = {"connection_name": "keda-orders"}
    connection = pika_connection(port, client_properties=named)
    publisher, scaler = connection.channel(), connection.channel()
    publisher.confirm_delivery()
    counts = [scaler.queue_declare("orders", passive=True).method.message_count]
    for _ in range(2):
        publisher.basic_publish("", "orders", b"task")
        counts.append(scaler.queue_declare("orders", passive=True).method.message_count)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue 'gone'"):
        scaler.queue_declare("gone", passive=True)
    connection.close()
    return counts


async def test_a_scaler_counts_by_passive_declares(sites: Sites) -> None:
    async with sites.open() as here:
        assert await blocking(counted_by_keda, here.gateway.port) == [0, 1, 2]


Routed = dict[str, list[tuple[Any, bytes]]]


def all_routed(site: Site) -> Routed:
    """The messages of the queues that are bound to exchanges."""
    return {queue: site.drained(queue) for queue in (*BINDINGS, COPIES, STRAYED)}


def check_routes(routed: Routed, confirmed: Sequence[int]) -> None:
    """Each confirmed message is in the queues that its exchange routes it to, as it was sent."""
    for place, kind in enumerate(ROUTES):
        expected = {n for n in confirmed if n % len(ROUTES) == place}
        for queue in [kind, COPIES] if "CC" in ROUTES[kind][1] else [kind]:
            there = {int(body.split()[-1]) for _, body in routed[queue]}
            assert expected <= there, queue
            assert {n % len(ROUTES) for n in there} == {place}
        for properties, _ in routed[kind]:
            assert (properties.delivery_mode, properties.priority) == (2, 3)
            assert properties.expiration
            assert ROUTES[kind][1].items() <= properties.headers.items()
    assert routed[STRAYED] == []


async def has_killed_gateways(site: Site) -> None:
    """
    The gateway is killed in an outage of its broker, while the backlog goes home, and while the
    broker is frozen.
    """

    async def grown() -> None:
        depth = await blocking(site.depth, "fanout")
        await until_depth(site, depth + BEFORE, "fanout")

    async def next_of(event: str) -> None:
        before = site.gateway.count(event)
        await site.gateway.until(lambda: site.gateway.count(event) > before, PATIENCE)

    await grown()
    await site.broker.kill()
    await next_of("diverted")
    await site.gateway.kill()
    await site.broker.start()
    await site.gateway.start()
    await next_of("syphoned")
    await site.gateway.kill()
    await site.gateway.start()
    await grown()
    await servers.freeze(site.broker.pid)
    await next_of("diverted")
    await site.gateway.kill()
    os.kill(site.broker.pid, signal.SIGCONT)
    await site.gateway.start()
    await grown()


@pytest.mark.parametrize("release", [INSTALLED, RABBITMQ_4], ids=["RabbitMQ 3", "RabbitMQ 4"])
async def test_a_message_that_is_confirmed_for_an_exchange_outlives_killed_gateways(
    sites: Sites, release: Release
) -> None:
    results: list[dict[str, Any]] = []
    end = trio.Event()

    async def announce() -> None:
        results.append(await result_of(end, TO_EXCHANGES, str(here.gateway.port), "events"))

    async with sites.open(release) as here:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announce)
            await has_killed_gateways(here)
            end.set()
        code = await here.gateway.stop()
        routed = await blocking(all_routed, here)

    assert code == 0
    [result] = results
    assert len(result["confirmed"]) > 3 * BEFORE
    check_routes(routed, result["confirmed"])


def told(log: Sequence[dict[str, Any]]) -> int:
    """The copies that the gateway has told of."""
    return sum(each["possibly_twice"] for each in log if each["event"] == "outage_over")


async def test_a_transaction_is_told_of_the_end_of_its_broker(sites: Sites) -> None:
    def transact(site: Site, began: trio.Event) -> Exception:
        connection = site.connect()
        connection.channel().tx_select()
        trio.from_thread.run_sync(began.set)
        try:
            while True:
                connection.process_data_events(time_limit=1)
        except pika.exceptions.AMQPError as error:
            return error

    errors: list[Exception] = []

    async def keep_transacting(site: Site, began: trio.Event) -> None:
        errors.append(await blocking(transact, site, began))

    async with sites.open() as here:
        end = trio.Event()
        end.set()
        refused = await published(here, "four", end, "wrong")
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                began = trio.Event()
                nursery.start_soon(keep_transacting, here, began)
                await began.wait()
                await here.broker.kill()

    assert "ACCESS_REFUSED" in refused["error"]
    [error] = errors
    assert isinstance(error, pika.exceptions.ConnectionClosedByBroker)
    assert error.reply_code == 320
