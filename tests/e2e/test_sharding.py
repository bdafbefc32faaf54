"""A sharded queue of RabbitMQ and an embedded store, before real processes."""

import signal
from collections import Counter
from contextlib import suppress

import pytest
import trio

from gateway.brokers.joined.sequence import place_of
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityExists
from gateway.domain.message import Complete, Message, ReceiveMode
from gateway.ports import Broker
from tests.e2e.installation import client
from tests.e2e.processes import (
    GatewayProcess,
    Gateways,
    broker_config,
    pair_config,
)
from tests.e2e.rabbitmq_nodes import VHOST, ExampleNode, ExampleNodes
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
LOOK = 0.1


def config(rabbit: int, rule: str) -> str:
    return f"""
logging = {{ level = "debug" }}

[namespaces.rabbit]
url = "rabbitmq://{USER}@127.0.0.1:{rabbit}/{VHOST}"
password = {{ env = "RABBIT" }}
queues = ["orders"]

[namespaces.store]
url = "embedded:store.db"

[[sharding]]
queue = "orders"
{rule}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


async def send(broker: Broker, numbers: range) -> None:
    for number in numbers:
        await broker.send(ORDERS, [Message(body=b"%d" % number)])


async def receive(broker: Broker, count: int) -> None:
    """Complete as many messages; fails if there are fewer."""
    async with broker.open_receiver(ORDERS, ReceiveMode.PEEK_LOCK) as receiver:
        with trio.fail_after(PATIENCE):
            while count:
                for delivery in await receiver.receive(min(10, count)):
                    await receiver.settle(delivery, Complete())
                    count -= 1


async def reload(process: GatewayProcess, text: str) -> None:
    """As an operator: a new file, then SIGHUP."""
    times = process.count("reloaded")
    bound = process.config.partition("[[endpoints]]")[2]
    process.config = text.partition("[[endpoints]]")[0] + "[[endpoints]]" + bound
    process.config_file.write_text(process.config)
    process.signal(signal.SIGHUP)
    await process.until(lambda: process.count("reloaded") > times)


async def test_a_queue_is_spread_over_rabbitmq_and_a_store_and_grows_while_it_runs(
    rabbits: ExampleNodes, gateways: Gateways
) -> None:
    await rabbits.north.prepare("rabbitmq-primary-definitions.json")
    port = rabbits.north.node.port
    two = config(port, 'shards = 2\nnamespaces = ["rabbit", "store"]')
    gateway = gateways.prepare(two, name="gateway")
    gateway.environment = {"RABBIT": USER}
    await gateway.start()
    await gateway.seen("entities_made", namespace="rabbit", entities="orders")

    async with client(gateway) as broker:
        await send(broker, range(20))
        await expect(rabbits.north, {0: 10})
        assert (await broker.inspect(ORDERS)).active == 20
        await receive(broker, 20)

        four = config(port, 'shards = 4\nnamespaces = ["rabbit", "store", "rabbit", "store"]')
        await reload(gateway, four)
        for shard in (2, 3):
            await gateway.seen("shard_added", shard=shard)
        await send(broker, range(40))
        await gateway.kill()  # the acknowledged messages are in the shards
        await expect(rabbits.north, {0: 10, 2: 10})
        await gateway.start()
        await receive(broker, 40)

        await send(broker, range(8))
        await reload(gateway, four.replace("queue =", "drain = [2]\nqueue ="))
        await send(broker, range(9))
        assert gateway.count("reloaded", needs_restart="") == 2
        assert await gateway.stop() == 0
        await expect(rabbits.north, {0: 5, 2: 2})
        await gateway.start()
        await receive(broker, 17)


async def expect(node: ExampleNode, depths: dict[int, int]) -> None:
    """Return when RabbitMQ has as many messages in these shards, and no consumer has any."""
    async with node.client() as rabbit:
        for shard, depth in depths.items():
            with trio.fail_after(PATIENCE):
                while True:
                    if (await rabbit.inspect(ORDERS.shard(shard))).active == depth:
                        break
                    await trio.sleep(LOOK)


async def test_behind_a_pair_with_workers_every_key_returns_to_its_shard(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    rule = '[[sharding]]\nqueue = "orders"\nshards = 3\n\n[pairing]'
    pair = pair_config(primary.address, secondary.address)
    text = pair.replace("[pairing]", rule)
    gateway = await gateways.start(f"workers = 2\n{text}", name="gateway")
    keys = [f"key {number % 5}" for number in range(30)]

    async with client(gateway) as broker:
        with suppress(EntityExists):  # the gateway makes missing shards at its start
            await broker.create_queue(ORDERS, QueueProperties())
        with trio.fail_after(PATIENCE):
            await send_keys(broker, keys[:10])
            await primary.kill()
            await send_keys(broker, keys[10:20])
            await primary.start()
            await send_keys(broker, keys[20:])
        by_key: dict[str, Counter[int]] = {}
        async with broker.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                while sum(each.total() for each in by_key.values()) < 30:
                    for delivery in await receiver.receive(10):
                        await receiver.settle(delivery, Complete())
                        key = delivery.message.partition_key or ""
                        by_key.setdefault(key, Counter())[place_of(delivery)] += 1

    assert {key: list(found.values()) for key, found in by_key.items()} == {
        f"key {number}": [6] for number in range(5)
    }


async def send_keys(broker: Broker, keys: list[str]) -> None:
    for key in keys:
        await broker.send(ORDERS, [Message(partition_key=key)])
