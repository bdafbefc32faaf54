"""A side of an AMQP connection in a test."""

import attrs
import trio

from gateway.net.amqp.connection import AmqpConnection
from gateway.wire.amqp.events import (
    ACCEPTED,
    ConnectionOpened,
    LinkAttached,
    TransferReceived,
)
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import OK, Credentials, SaslClient, SaslServer
from tests.harness.patience import PATIENCE


def server_on(stream, *, options=None, **limits):
    return AmqpConnection(
        stream,
        engine=EngineOptions(container_id="server", **limits),
        sasl=SaslServer(lambda credentials: OK),
        options=options,
    )


def client_on(stream, *, options=None, **limits):
    return AmqpConnection(
        stream,
        engine=EngineOptions(container_id="client", **limits),
        sasl=SaslClient(Credentials(mechanism="ANONYMOUS")),
        options=options,
    )


@attrs.define(eq=False)
class Peer:
    """A side of a connection: answers what must be answered, and records its events."""

    connection: AmqpConnection
    serves: bool = False
    settles: bool = True
    told: list = attrs.field(factory=list)
    news: trio.Event = attrs.field(factory=trio.Event)

    async def run(self):
        await self.connection.run(self.handle)

    def handle(self, event):
        self.told.append(event)
        self.news.set()
        engine = self.connection.engine
        if isinstance(event, ConnectionOpened):
            engine.open()
        elif isinstance(event, LinkAttached) and self.serves:
            engine.accept(event.link)
            if not event.we_send:
                engine.grant(event.link, 1000)
        elif isinstance(event, TransferReceived) and self.settles:
            engine.settle(event.delivery, ACCEPTED)

    async def wait_for(self, kind, count=1):
        """The last event of this kind, once `count` of them have come."""
        with trio.fail_after(PATIENCE):
            while sum(isinstance(event, kind) for event in self.told) < count:
                self.news = trio.Event()
                await self.news.wait()
        return [event for event in self.told if isinstance(event, kind)][-1]

    def count(self, kind):
        return sum(isinstance(event, kind) for event in self.told)
