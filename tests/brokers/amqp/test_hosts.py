"""A URL with several hosts, of which some are down, over AMQP 1.0."""

import random

import pytest

from gateway.brokers.amqp.broker import open_namespace
from gateway.brokers.amqp.options import AmqpNamespaceOptions
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.domain.message import Complete, Message
from tests.brokers.amqp.rabbit import PASSWORD, namespace_at
from tests.brokers.contract import make
from tests.brokers.servicebus.served import real_date
from tests.harness.rabbitmq import USER


def cluster(*ports, seed=0):
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    options = AmqpNamespaceOptions(password=PASSWORD)
    rest = f"//{USER}@{hosts}"
    return open_namespace("amqp", rest, options, real_date, random.Random(seed))


@pytest.mark.slow
async def test_one_host_of_several_is_enough_whichever_is_tried_first(rabbits):
    async with namespace_at(rabbits) as namespace:
        queue = namespace._inside(await make(namespace, "orders"))
        for seed in range(6):
            async with cluster(free_port(), rabbits.port("primary"), seed=seed) as broker:
                await broker.send(queue, [Message(message_id=str(seed))])
                async with broker.open_receiver(queue) as receiver:
                    [taken] = await receiver.receive(1)
                    await receiver.settle(taken, Complete())

                    assert taken.message.message_id == str(seed)


async def test_hosts_that_all_refuse_are_an_outage_that_names_each_of_them():
    ports = [free_port(), free_port()]
    async with cluster(*ports) as broker:
        with pytest.raises(Unavailable) as caught:
            await broker.send(EntityPath("orders"), [Message(message_id="1")])

    assert all(str(caught.value).count(f"127.0.0.1:{port}") == 1 for port in ports)
    assert str(caught.value).count("Connection refused") == 1
