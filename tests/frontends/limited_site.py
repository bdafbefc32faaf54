"""A gateway whose clients have limits, and turns."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from gateway.domain.access import AccessPolicy
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.net.clients import ClientOptions, Clients
from gateway.net.visits import Visits
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.sasl import Credentials
from tests.frontends.amqp.sdk import ANONYMOUS, Sdk
from tests.frontends.rest_client import (
    ORDERS,
    POLICIES,
    Client,
    frontend_of,
    wall_clock,
)

SEND = "/orders/messages"


class Slow(MemoryBroker):
    """A namespace whose sends, and looks into a queue, take a number of seconds each."""

    takes = looks = 0.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[int] = []  # the number of messages of each send
        self.looking = self.most_looking = 0

    async def on_queue(self, entity: EntityPath, work: Any, **how: Any) -> Any:
        self.looking += 1
        self.most_looking = max(self.most_looking, self.looking)
        try:
            await trio.sleep(self.looks)
            return await super().on_queue(entity, work, **how)
        finally:
            self.looking -= 1

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        self.steps.append(len(messages))
        await trio.sleep(self.takes)
        await super().send(entity, messages)

    async def send_many(self, entity: EntityPath, batches: Any, **how: Any) -> Any:
        self.steps.append(sum(map(len, batches)))
        await trio.sleep(self.takes)
        return await super().send_many(entity, batches, **how)


@attrs.define(eq=False)
class Site:
    """A gateway with limits."""

    clients: Clients
    broker: Slow
    leases: Leases
    nursery: trio.Nursery
    visits: Visits = attrs.field(init=False)
    peers: int = 0
    scopes: list[trio.CancelScope] = attrs.field(factory=list)  # of connections over AMQP

    def __attrs_post_init__(self) -> None:
        self.visits = Visits(3600.0, self.clients)

    @asynccontextmanager
    async def rest(self, policy: str, host: str = "192.0.2.1") -> AsyncIterator[Client]:
        """A connection of a client of Service Bus REST."""
        frontend = frontend_of(self.broker, self.leases)
        with self.visit(host):
            yield Client(frontend, self.broker, key_name=policy)

    def visit(self, host: str) -> Any:
        self.peers += 1
        return self.visits.begin(host, f"{host}:{self.peers}")

    def connect(
        self,
        credentials: Credentials = ANONYMOUS,
        host: str = "192.0.2.1",
        policies: Sequence[AccessPolicy] = POLICIES,
        authorizer_class: type[Authorizer] = Authorizer,
    ) -> Sdk:
        """A connection over AMQP, in a task of its own."""
        frontend = AmqpFrontend(
            broker=self.broker,
            leases=self.leases,
            authorizer=authorizer_class(
                policies, wall_clock=wall_clock, accepts_well_known_key=True
            ),
            wall_clock=wall_clock,
        )
        ours, theirs = trio.testing.memory_stream_pair()
        scope = trio.CancelScope()
        self.scopes.append(scope)

        async def serve() -> None:
            with self.visit(host), scope:
                await frontend.serve_connection(theirs)

        self.nursery.start_soon(serve)
        sdk = Sdk.on(ours, credentials)
        self.nursery.start_soon(sdk.run)
        return sdk

    async def sender(self) -> tuple[Sdk, amqp.LinkId]:
        """A connection over AMQP whose client may send."""
        sdk = await self.connect().open()
        await sdk.put_token()
        return sdk, await sdk.sender()

    @property
    def refused(self) -> dict[tuple[str, str], int]:
        return {(name, limit.value): n for (name, limit), n in self.clients.refused.items()}


@asynccontextmanager
async def open_site(**limits: int) -> AsyncIterator[Site]:
    memory = Slow(wall_clock, random.Random(1))
    await memory.create_queue(ORDERS, QueueProperties())
    async with trio.open_nursery() as nursery:
        leases = Leases(memory, wall_clock)
        await nursery.start(leases.run)
        clients = Clients(ClientOptions(**limits))
        yield Site(clients, memory, leases, nursery)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def beside_another(site: Site) -> AsyncIterator[None]:
    """Another client has had a request lately."""
    async with site.rest("Send", host="192.0.2.2") as other:
        assert (await other.ask("POST", SEND)).status == 201
        yield
