"""A peer over AMQP in virtual time that refuses clients without a valid access token."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import memory_stream_pair

from gateway.brokers.amqp.broker import AmqpBroker
from gateway.brokers.amqp.cbs import AccessTokenSource
from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import NamespaceAccess
from gateway.brokers.entra.tokens import AccessTokens
from gateway.net.server_address import ServerAddress
from gateway.wire.amqp.events import AmqpError, LinkAttached, TransferReceived
from gateway.wire.amqp.exchange import Reply, ReplyDialect, build_reply, parse_request
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.amqp.servicebus.cbs import ACCEPTED, NODE, PutToken, put_token_of
from tests.brokers.amqp.scripted import Scripted, Served, accept, take
from tests.harness.clocks import VirtualClock, seconds

HOST = "contoso.servicebus.windows.net"
EXPIRED = AmqpError(condition="amqp:unauthorized-access", description="the token has expired")


@attrs.define(eq=False)
class StrictPeer:
    """Detaches each link whose token expires, as Service Bus does."""

    server: Scripted = attrs.field(factory=Scripted)
    put: list[PutToken] = attrs.field(factory=list)
    refuses: bool = False  # whether new tokens are refused
    messages: int = 0
    detached: int = 0
    _good_until: dict[str, float] = attrs.field(factory=dict)  # by address

    def __attrs_post_init__(self) -> None:
        self.server.on_transfer = self._take
        self.server.on_attach = self._attach

    async def watch(self) -> None:
        """Detach links until cancelled."""
        while True:
            await trio.sleep(10.0)
            for served in self.server.connections:
                for link, attached in list(served.links.items()):
                    if not self._is_good(_address(attached)):
                        del served.links[link]
                        served.engine.detach(link, EXPIRED)
                        self.detached += 1

    def _is_good(self, address: str) -> bool:
        return address == NODE or self._good_until.get(address, 0.0) > trio.current_time()

    def _attach(self, served: Served, attached: LinkAttached) -> None:
        if self._is_good(_address(attached)):
            take(served, attached)
        else:
            served.engine.refuse(attached.link, EXPIRED)

    def _take(self, served: Served, event: TransferReceived) -> None:
        accept(served, event)
        served.engine.grant(event.link, 100)
        if _address(served.links[event.link]) != NODE:
            self.messages += 1
            return
        request = parse_request(event.payload)
        put = put_token_of(request)
        assert put is not None
        self.put.append(put)
        if not self.refuses:
            assert put.expires is not None
            self._good_until[put.audience.rpartition("/")[2]] = seconds(put.expires)
        status = 401 if self.refuses else ACCEPTED
        reply = Reply(id=request.id, status=status, description="as said")
        [link] = [
            link for link, each in served.links.items() if each.we_send and _address(each) == NODE
        ]
        served.engine.send(link, b"tag", build_reply(reply, ReplyDialect.CBS), settled=True)


def _address(attached: LinkAttached) -> str:
    end = attached.source if attached.we_send else attached.target
    assert end is not None
    return end.address or ""


@asynccontextmanager
async def broker_at(peer: StrictPeer, tokens: AccessTokens) -> AsyncIterator[AmqpBroker]:
    async with trio.open_nursery() as nursery:

        async def dial(place: ServerAddress) -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            ours, theirs = memory_stream_pair()
            nursery.start_soon(peer.server.serve, theirs)
            return ours

        nursery.start_soon(peer.watch)
        access = NamespaceAccess(
            places=[ServerAddress(host=HOST, port=5671, tls=None)],
            credentials=Credentials(mechanism="ANONYMOUS"),
            tokens=AccessTokenSource(host=HOST, tokens=tokens),
            dial=dial,
        )
        async with AmqpBroker(
            access=access,
            options=LinkOptions(idle_timeout=240.0),
            clock=VirtualClock(),
            rng=random.Random(0),
        ) as broker:
            yield broker
        nursery.cancel_scope.cancel()
