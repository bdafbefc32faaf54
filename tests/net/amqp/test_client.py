"""The gateway as an AMQP client detaches its links, on a stream in memory."""

import pytest
import trio
import trio.testing

from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.connection import AmqpConnection
from gateway.net.amqp.exchange import Exchange
from gateway.net.amqp.links import ReceivingLink
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    NewLink,
    ReceiverSettles,
    Terminus,
)
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import OK, Credentials, SaslServer

OURS, THEIRS = Terminus(address="here"), Terminus(address="there")


class Peer:
    """Takes each link, and detaches it when its test says so."""

    def __init__(self, stream):
        self.attached = None
        self.told = []
        self.names = []
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
                self.names.append(event.name)
                self.engine.accept(event.link, lingers=True)
            case DispositionReceived(settled=True, state=state):
                self.told.append(state)

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


async def attached(client, **options):
    new = NewLink(
        name="a",
        we_send=False,
        source=THEIRS,
        target=OURS,
        receiver_settles=ReceiverSettles.SECOND,
    )
    link = ReceivingLink(client, new, **options)
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


@pytest.mark.parametrize("ends_session", [False, True])
async def test_a_session_ends_with_its_link_or_has_the_next_one(
    peer_and_client, ends_session, autojump_clock
):
    peer, client = peer_and_client
    link = await attached(client, ends_session=ends_session)
    first = peer.attached.session
    link.close()
    await trio.sleep(3)
    is_there = peer.engine.is_begun(first)
    await attached(client)

    assert is_there == (peer.attached.session == first) == (not ends_session)


async def test_of_too_many_unsettled_deliveries_the_oldest_are_released(peer_and_client, nursery):
    """The consumers never settle the deliveries, or a peer sends unreadable messages."""
    peer, client = peer_and_client
    link = await attached(client, most_unsettled=10)
    link.set_credit(100)
    outcomes = []

    async def settle(delivery):
        outcomes.append(await link.send_outcome(delivery, ACCEPTED).outcome())

    for number in range(25):
        peer.engine.send(peer.attached.link, b"%d" % number, b"x")
        while len(link.arrived) <= number:
            await link.wait_news()
        if number == 3:
            nursery.start_soon(settle, link.arrived[3].delivery)
    await trio.testing.wait_all_tasks_blocked()

    assert [link.holds(each.delivery) for each in link.arrived] == [False] * 15 + [True] * 10
    assert peer.told == [RELEASED] * 15
    assert outcomes == [RELEASED]


async def test_the_two_links_of_an_exchange_have_names_of_their_own(peer_and_client):
    """Peers that find a link by its name alone would take the second for the first."""
    peer, client = peer_and_client
    for node in ("orders/$management", "$cbs"):
        await Exchange(client, node, node).wait_attached()

    assert len(set(peer.names)) == 4
