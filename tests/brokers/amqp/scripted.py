"""A server whose answers a test decides, on a socket in this process; and clients of it."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from gateway.brokers.amqp.broker import AmqpBroker, open_namespace
from gateway.brokers.amqp.options import AmqpNamespaceOptions
from gateway.net.amqp.connection import AmqpConnection
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    ConnectionOpened,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkId,
    TransferReceived,
)
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import OK, SaslServer
from tests.brokers.servicebus.served import real_date
from tests.harness.patience import PATIENCE

Answer = Callable[["Served", Any], None]


@attrs.define(eq=False)
class Served:
    """A client's connection."""

    server: "Scripted"
    stream: trio.abc.Stream
    connection: AmqpConnection
    links: dict[LinkId, LinkAttached] = attrs.field(factory=dict)

    @property
    def engine(self):
        return self.connection.engine

    def handle(self, event: Event) -> None:
        self.server.told.append(event)
        self.server.news.unpark_all()
        match event:
            case ConnectionOpened():
                self.server.on_open(self, event)
            case LinkAttached():
                self.links[event.link] = event
                self.server.on_attach(self, event)
            case LinkDetached(link=link):
                self.links.pop(link, None)
            case TransferReceived():
                self.server.on_transfer(self, event)
            case DispositionReceived(settled=False):
                self.server.on_settle(self, event)

    def detach_all(self, error: AmqpError) -> None:
        for link in list(self.links):
            del self.links[link]
            self.engine.detach(link, error)


def open_connection(served: Served, event: ConnectionOpened) -> None:
    served.engine.open(properties=served.server.properties)


def take(served: Served, attached: LinkAttached) -> None:
    served.engine.accept(attached.link)
    if not attached.we_send:
        served.engine.grant(attached.link, 100)


def accept(served: Served, event: TransferReceived) -> None:
    served.engine.settle(event.delivery, ACCEPTED)


def confirm(served: Served, event: DispositionReceived) -> None:
    served.engine.settle(event.delivery, event.state)


@attrs.define(eq=False)
class Scripted:
    """Takes links and messages as its test says; by default all of them."""

    on_open: Answer = open_connection
    on_attach: Answer = take
    on_transfer: Answer = accept
    on_settle: Answer = confirm
    properties: dict[str, str] = attrs.field(factory=dict)
    told: list[Event] = attrs.field(factory=list)
    news: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    connections: list[Served] = attrs.field(factory=list)
    port: int = 0
    options: EngineOptions = attrs.field(factory=EngineOptions)

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.told)

    async def until(self, kind: type, count: int = 1) -> None:
        with trio.fail_after(PATIENCE):
            while self.count(kind) < count:
                await self.news.park()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends."""
        connection = AmqpConnection(
            stream, engine=self.options, sasl=SaslServer(lambda credentials: OK)
        )
        served = Served(self, stream, connection)
        self.connections.append(served)
        await connection.run(served.handle)


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    server = Scripted()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def client(port: int, **options: object) -> AsyncIterator[AmqpBroker]:
    known = AmqpNamespaceOptions(**options)  # type: ignore[arg-type]
    async with open_namespace(
        "amqp", f"//127.0.0.1:{port}", known, real_date, random.Random(0)
    ) as broker:
        yield broker
