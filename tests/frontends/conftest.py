import random

import attrs
import pytest
import trio

from gateway.domain.entity import QueueProperties
from gateway.frontends.leases import Leases
from gateway.store.local.memory import MemoryBroker
from tests.frontends.rest_client import ORDERS, Client, Scripted, frontend_of, wall_clock


@pytest.fixture
async def client(nursery: trio.Nursery) -> Client:
    broker = MemoryBroker(wall_clock, random.Random(1))
    leases = Leases(broker, wall_clock)
    await nursery.start(leases.run)
    await broker.create_queue(ORDERS, QueueProperties())
    return Client(frontend_of(broker, leases), broker)


@pytest.fixture
def scripted(client: Client) -> Scripted:
    scripted = Scripted(client.broker)
    client.frontend = attrs.evolve(client.frontend, broker=scripted)
    return scripted
