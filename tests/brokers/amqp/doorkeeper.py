"""
A namespace of Service Bus whose answers a test decides, with the clients that put tokens there.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.servicebus import ServiceBusBroker, open_namespace
from gateway.wire.amqp.events import AmqpError, LinkAttached, LinkId, TransferReceived
from gateway.wire.amqp.exchange import Reply, ReplyDialect, build_reply, parse_request
from gateway.wire.amqp.servicebus.cbs import ACCEPTED, NODE, put_token_of
from tests.brokers.amqp.scripted import Scripted, Served, accept, scripted, take
from tests.brokers.servicebus.served import real_date
from tests.harness.patience import PATIENCE

REFUSED = 401
EXPIRED = AmqpError(condition="amqp:unauthorized-access", description="no token")
IDLE = AmqpError(condition="amqp:link:detach-forced", description="idle for too long")


@attrs.define(eq=False)
class Doorkeeper:
    """Takes every token, but for addresses that it is deaf to; some it never lets in."""

    server: Scripted
    put: list[str] = attrs.field(factory=list)  # the addresses of tokens, as they came
    deaf_to: set[str] = attrs.field(factory=set)
    let_in: set[str] = attrs.field(factory=set)  # addresses with a token that is good
    never: set[str] = attrs.field(factory=set)
    refused: set[str] = attrs.field(factory=set)  # addresses whose tokens it refuses
    news: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def take(self, served: Served, event: TransferReceived) -> None:
        accept(served, event)
        target = served.links[event.link].target
        if target is None or target.address != NODE:
            return
        request = parse_request(event.payload)
        put = put_token_of(request)
        assert put is not None
        address = put.audience.rpartition("/")[2]
        self.put.append(address)
        status = REFUSED if address in self.refused else ACCEPTED
        if status == ACCEPTED:
            self.let_in.add(address)
        self.news.unpark_all()
        if address not in self.deaf_to:
            reply = Reply(id=request.id, status=status, description="")
            [link] = [each for each in self.links_of(served) if served.links[each].we_send]
            served.engine.send(link, b"tag", build_reply(reply, ReplyDialect.CBS), settled=True)

    def attach(self, served: Served, attached: LinkAttached) -> None:
        ends = {end.address for end in (attached.source, attached.target) if end is not None}
        known = {*self.put, *self.never}
        if ends & known and not ends & (self.let_in - self.never):
            served.engine.refuse(attached.link, EXPIRED)
        else:
            take(served, attached)

    def drop_tokens(self) -> None:
        """As when its clock says that they have expired."""
        self.let_in.clear()
        for served in self.server.connections:
            for link in set(served.links) - set(self.links_of(served)):
                del served.links[link]
                served.engine.detach(link, EXPIRED)

    def links_of(self, served: Served) -> list[LinkId]:
        both = [(id_, (each.source, each.target)) for id_, each in served.links.items()]
        return [id_ for id_, ends in both if any(end and end.address == NODE for end in ends)]

    def send_away(self) -> None:
        for served in self.server.connections:
            for link in self.links_of(served):
                del served.links[link]
                served.engine.detach(link, IDLE)

    async def until(self, *put: str) -> None:
        with trio.fail_after(PATIENCE):
            while self.put != list(put):
                await self.news.park()


@asynccontextmanager
async def guarded(**options: object) -> AsyncIterator[tuple[Doorkeeper, ServiceBusBroker]]:
    async with scripted() as server:
        doorkeeper = Doorkeeper(server)
        server.on_transfer = doorkeeper.take
        server.on_attach = doorkeeper.attach
        text = f"Endpoint=sb://127.0.0.1:{server.port}/;SharedAccessKeyName=us"
        known = ServiceBusOptions(key="key", **options)  # type: ignore[arg-type]
        async with open_namespace(
            f"{text};UseDevelopmentEmulator=true", known, real_date, random.Random(0)
        ) as broker:
            yield doorkeeper, broker
