"""Parts of the tests of broker that other tests need, too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client

ORDERS = EntityPath("orders")


def numbered(*numbers: object) -> list[Message]:
    return [Message(message_id=str(number), body=b"x") for number in numbers]


@asynccontextmanager
async def namespace_with_orders(rabbits: Nodes, **options: object) -> AsyncIterator[Namespace]:
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        async with client(namespace.port, **options) as broker:
            yield Namespace(broker, namespace.name, namespace.port)
