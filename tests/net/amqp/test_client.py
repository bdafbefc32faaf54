"""How a link of ours is detached, on a stream in memory."""

import pytest
import trio
import trio.testing

from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.connection import AmqpConnection
from gateway.net.amqp.links import ReceivingLink
from gateway.wire.amqp.events import ConnectionOpened, LinkAttached, NewLink, Terminus
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import OK, Credentials, SaslServer

OURS, THEIRS = Terminus(address="here"), Terminus(address="there")


class Peer:
    """Takes each link, and detaches it when its test says so."""

    def __init__(self, stream):
        self.attached = None
        self.connection = AmqpConnection(
            stream, engine=EngineOptions(), sasl=SaslServer(lambda credentials: OK)
        )

    @property
    def engine(self):
        return self.connection.engine

    async def run(self):
        await self.connection.run(self._handle)

    def _handle(self, event):
        match event:
            case ConnectionOpened():
                self.engine.open()
            case LinkAttached():
                self.attached = event
                self.engine.accept(event.link, lingers=True)

    def answer(self):
        self.engine.answer_detach(self.attached.link)

    def end_session(self):
        self.engine.end(self.attached.session)

    def close(self):
        self.engine.close()


@pytest.fixture
async def peer_and_client(nursery):
    ours, theirs = trio.testing.memory_stream_pair()
    peer = Peer(theirs)
    client = AmqpClient(
        ours,
        name="peer",
        hostname="peer",
        credentials=Credentials(mechanism="ANONYMOUS"),
        options=EngineOptions(),
    )
    nursery.start_soon(peer.run)
    nursery.start_soon(client.run)
    await client.wait_opened()
    return peer, client


async def attached(client):
    link = ReceivingLink(client, NewLink(name="a", we_send=False, source=THEIRS, target=OURS))
    await link.wait_attached()
    return link


@pytest.mark.parametrize("end", [Peer.answer, Peer.end_session, Peer.close])
async def test_a_detach_is_over_when_the_peer_has_answered(peer_and_client, end, autojump_clock):
    peer, client = peer_and_client
    link = await attached(client)
    began = trio.current_time()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.detach)
            await trio.sleep(3)
            void_at_once = link.why is not None
            end(peer)

    assert void_at_once
    assert trio.current_time() - began == pytest.approx(3)


async def test_a_detach_that_nobody_waits_for_any_more_is_one_too(peer_and_client, autojump_clock):
    peer, client = peer_and_client
    link = await attached(client)
    with trio.move_on_after(3):
        await link.detach()
    peer.answer()
    await link.detach()

    assert link.why is not None
    assert await attached(client)
