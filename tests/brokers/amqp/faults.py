"""Parts of the tests of faults that other tests need, too."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from gateway.brokers.amqp.servicebus import ServiceBusBroker
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import Message
from tests.brokers.amqp.served import House, client, served
from tests.harness.chaos_proxy import (
    ChaosProxy,
)
from tests.harness.patience import PATIENCE

ORDERS = EntityPath("orders")


def numbered(*numbers: object) -> list[Message]:
    return [Message(message_id=str(number), body=b"x") for number in numbers]


@attrs.define(eq=False)
class Wire:
    """A namespace behind a proxy."""

    house: House
    proxy: ChaosProxy
    broker: ServiceBusBroker

    async def sent(self) -> list[str]:
        """Return the ids of the messages that have arrived, in order."""
        shown = await self.house.broker.peek(ORDERS, limit=100)
        return [each.message.message_id for each in shown]


@asynccontextmanager
async def wired(**options: object) -> AsyncIterator[Wire]:
    async with served() as house, trio.open_nursery() as nursery:
        await house.broker.create_queue(ORDERS, QueueProperties())
        proxy = ChaosProxy("127.0.0.1", house.port, rng=random.Random(0))
        port = await nursery.start(proxy.serve)
        async with client(port, **options) as broker:
            yield Wire(house, proxy, broker)
        nursery.cancel_scope.cancel()


async def failure_of(send) -> BrokerError:
    with pytest.raises(BrokerError) as caught, trio.fail_after(PATIENCE):
        await send
    return caught.value
