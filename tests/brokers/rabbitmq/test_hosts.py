"""A URL with several hosts, of which some are down."""

import random
from datetime import UTC, datetime

import pytest

from gateway.brokers.rabbitmq.broker import RabbitmqBroker, open_namespace
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import NotAuthorized, Unavailable
from gateway.domain.message import Message
from tests.brokers.rabbitmq.nodes import Nodes
from tests.harness.rabbitmq import USER

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")


def cluster(*ports: int, seed: int = 0, login: str = USER, management: str = "") -> RabbitmqBroker:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    options = RabbitmqOptions(management=management)
    rng = random.Random(seed)
    rest = f"//{login}:{USER}@{hosts}/"
    return open_namespace("rabbitmq", rest, options, lambda: datetime.now(UTC), rng)


async def test_one_host_of_several_is_enough_whichever_is_tried_first(rabbits: Nodes) -> None:
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        orders = namespace.inside(ORDERS)
        for seed in range(6):
            async with cluster(free_port(), namespace.port, free_port(), seed=seed) as broker:
                await broker.send(orders, [Message(message_id=str(seed))])
                async with broker.open_receiver(orders) as receiver:
                    [taken] = await receiver.receive(1)

                    assert taken.message.message_id is not None


async def test_hosts_that_all_refuse_are_an_outage_that_names_each_of_them() -> None:
    ports = [free_port(), free_port()]
    async with cluster(*ports) as broker:
        with pytest.raises(Unavailable) as caught:
            await broker.send(ORDERS, [Message(message_id="1")])

    assert all(str(caught.value).count(f"127.0.0.1:{port}") == 1 for port in ports)
    assert str(caught.value).count("Connection refused") == 1


async def test_a_wrong_password_is_the_callers_fault_only_where_all_hosts_say_so(
    rabbits: Nodes,
) -> None:
    port = rabbits.port("primary")
    async with cluster(port, rabbits.port("secondary"), login="nobody") as broker:
        with pytest.raises(NotAuthorized):
            await broker.send(ORDERS, [Message(message_id="1")])
    async with cluster(port, free_port(), login="nobody") as broker:
        with pytest.raises(Unavailable, match="ACCESS_REFUSED"):
            await broker.send(ORDERS, [Message(message_id="1")])


async def test_the_plugin_of_any_host_lists_queues(rabbits: Nodes) -> None:
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        known = f"127.0.0.1:{rabbits.management_port('primary')}"
        for seed in range(4):
            plugins = f"http://127.0.0.1:{free_port()},{known}"
            async with cluster(namespace.port, seed=seed, management=plugins) as broker:
                [listed] = await broker.list_queues(f"{namespace.name}/")

                assert listed.path == namespace.inside(ORDERS)
