import random

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import BrokerError
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.options import AmqpOptions
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.sasl import Credentials
from tests.frontends.amqp.sdk import ANONYMOUS, Sdk
from tests.frontends.rest_client import ORDERS, POLICIES, wall_clock
from tests.harness.faults import Call, Fault, Operation
from tests.harness.faulty_sessions import FaultySessionsBroker


class Faulty(FaultySessionsBroker):
    """
    A broker with the capabilities of its inner one; a fault of a send strikes all of its batches.
    """

    def __getattr__(self, name):
        if name == "send_many":
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def send_many(self, entity, batches, *, fails_fast=False):
        messages = tuple(message for batch in batches for message in batch)
        call = Call(operation=Operation.SEND, entity=entity, messages=messages)
        try:
            return await self.operate(call, lambda: self.inner.send_many(entity, batches))
        except BrokerError as error:
            return [error] * len(batches)


class OneByOne(Faulty):
    """A namespace that can't take several batches in one step."""

    @property
    def send_many(self):
        raise AttributeError("send_many")


@attrs.define(eq=False)
class House:
    """A gateway in memory, and clients of it."""

    nursery: trio.Nursery
    broker: MemoryBroker
    faulty: Faulty
    frontend: AmqpFrontend

    def breaks(self, operation: Operation, fault: Fault) -> None:
        self.faulty.fault = lambda asked, entity: fault if asked is operation else None

    def change(self, **options: object) -> None:
        changed = attrs.evolve(self.frontend.options, **options)
        self.frontend = attrs.evolve(self.frontend, options=changed)

    def connect(self, credentials: Credentials | None = ANONYMOUS) -> Sdk:
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.frontend.serve_connection, theirs)
        sdk = Sdk.on(ours, credentials)
        self.nursery.start_soon(sdk.run)
        return sdk

    async def client(self) -> Sdk:
        """A client that has all rights."""
        sdk = await self.connect().open()
        await sdk.put_token()
        return sdk


@pytest.fixture
async def house(nursery: trio.Nursery) -> House:
    broker = MemoryBroker(wall_clock, random.Random(1))
    faulty = Faulty(inner=broker)
    await nursery.start(faulty.run)
    leases = Leases(faulty, wall_clock)
    await nursery.start(leases.run)
    await broker.create_queue(ORDERS, QueueProperties())
    authorizer = Authorizer(POLICIES, wall_clock=wall_clock)
    frontend = AmqpFrontend(
        broker=faulty,
        leases=leases,
        authorizer=authorizer,
        wall_clock=wall_clock,
        options=AmqpOptions(),
    )
    return House(nursery, broker, faulty, frontend)


@pytest.fixture
async def sdk(house: House) -> Sdk:
    return await house.client()
