"""A connection to receive on that answers nothing is replaced: on virtual time, in memory."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from gateway.brokers.amqp.broker import AmqpBroker
from gateway.brokers.amqp.options import AmqpNamespaceOptions, LinkOptions
from gateway.brokers.amqp.peer import NamespaceAccess
from gateway.brokers.amqp.receiving import ASKED_AFTER
from gateway.brokers.amqp.servicebus import ServiceBusBroker
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, OutcomeUnknown, SessionLockLost
from gateway.domain.health.trust import SILENCE
from gateway.domain.message import Complete, Delivery, Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.net.server_address import ServerAddress
from gateway.ports import Receiver
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.events import RELEASED, DispositionReceived, LinkAttached
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.sasl import Credentials
from tests.brokers.amqp.scripted import Scripted, Served, take
from tests.brokers.servicebus.served import real_date
from tests.frontends.rest_client import POLICIES, wall_clock
from tests.harness.chaos_proxy import HEARTBEATS
from tests.simulation.sessions import adapter_on

ORDERS, CHATS = EntityPath("orders"), EntityPath("chats")
PATIENCE = LinkOptions().connect_timeout  # seconds for an attach
REPLACED = ASKED_AFTER + PATIENCE + 1.0  # seconds after which a silent connection is replaced
LOCK = timedelta(minutes=5)


@attrs.define(eq=False)
class Line(trio.abc.Stream):
    """
    A client's end of a connection. Of its answers only heartbeats pass while it `is_deaf`; the
    others come when it isn't any more.
    """

    inner: trio.abc.Stream
    is_deaf: bool = False
    is_closed: bool = False
    held: bytearray = attrs.field(factory=bytearray)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        while True:
            data = await self.inner.receive_some(max_bytes)
            if not self.is_deaf and data:
                data, self.held = self.held + data, bytearray()
            if not self.is_deaf or not data or bytes(data) in HEARTBEATS:
                return data
            self.held += data

    async def aclose(self) -> None:
        self.is_closed = True
        await self.inner.aclose()


@attrs.define(eq=False)
class Lines:
    """The connections to a server in this process; stands for `Network` of the simulation."""

    serve: object
    nursery: trio.Nursery
    made: list[Line] = attrs.field(factory=list)
    are_deaf: bool = False  # those that are made from now on

    async def connect(self) -> Line:
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        self.nursery.start_soon(self.serve, theirs)
        line = Line(ours, is_deaf=self.are_deaf)
        self.made.append(line)
        return line

    def go_deaf(self, *, whole: bool = False) -> None:
        for line in self.made:
            line.is_deaf = True
        self.are_deaf = whole

    def recover(self) -> None:
        self.are_deaf = False
        for line in self.made:
            line.is_deaf = False


@attrs.define(eq=False)
class House:
    """A namespace of our own, and the adapter of a gateway before it."""

    store: MemoryBroker
    lines: Lines
    adapter: ServiceBusBroker

    async def send(self, entity: EntityPath, name: str) -> None:
        await self.store.send(entity, [Message(message_id=name, session_id="a")])

    async def left(self, entity: EntityPath) -> list[str]:
        return [each.message.message_id for each in await self.store.peek(entity, limit=100)]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    store = MemoryBroker(wall_clock, random.Random(0))
    await store.create_queue(ORDERS, QueueProperties(lock_duration=LOCK))
    await store.create_queue(CHATS, QueueProperties(lock_duration=LOCK, requires_session=True))
    leases = Leases(store, wall_clock)
    frontend = AmqpFrontend(
        broker=store,
        leases=leases,
        authorizer=Authorizer(POLICIES, wall_clock=wall_clock),
        wall_clock=wall_clock,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(leases.run)
        lines = Lines(frontend.serve_connection, nursery)
        async with adapter_on(lines, random.Random(0)) as adapter:
            yield House(store, lines, adapter)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def receiving(receiver: Receiver) -> AsyncIterator[list[Delivery]]:
    """A receive that waits, again and again; what it gets is in the list."""
    got: list[Delivery] = []

    async def receive() -> None:
        while True:
            got.extend(await receiver.receive(10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.sleep(1.0)
        yield got
        nursery.cancel_scope.cancel()


async def test_a_receiver_goes_over_to_another_connection(house, autojump_clock):
    async with house.adapter.open_receiver(ORDERS) as receiver, receiving(receiver) as got:
        house.lines.go_deaf()
        await trio.sleep(REPLACED)
        await house.send(ORDERS, "1")
        await trio.sleep(1.0)

        assert [each.message.message_id for each in got] == ["1"]
    assert len(house.lines.made) == 2


async def test_an_open_is_let_go_from_a_connection_that_answers_nothing(house, autojump_clock):
    async with house.adapter.open_receiver(ORDERS):
        house.lines.go_deaf()
        with pytest.raises(BrokerError):
            async with house.adapter.open_receiver(ORDERS):
                pass
        await trio.sleep(PATIENCE + 1.0)
        async with house.adapter.open_receiver(ORDERS):
            pass
    assert len(house.lines.made) == 2


async def test_a_delivery_of_a_replaced_connection_is_settled_over_another(house, autojump_clock):
    async with house.adapter.open_receiver(ORDERS) as receiver:
        await house.send(ORDERS, "1")
        [delivery] = await receiver.receive(1)
        house.lines.go_deaf()
        await trio.sleep(REPLACED)

        with trio.fail_after(1.0):
            await receiver.settle(delivery, Complete())

    assert await house.left(ORDERS) == []


async def test_a_settlement_without_an_answer_is_the_last_one_on_its_connection(
    house, autojump_clock
):
    async with house.adapter.open_receiver(ORDERS) as receiver:
        await house.send(ORDERS, "1")
        [delivery] = await receiver.receive(1)
        await trio.sleep(1.0)
        house.lines.go_deaf()
        with trio.move_on_after(SILENCE + 0.1):
            await receiver.settle(delivery, Complete())
        await trio.sleep(1.0)

        with pytest.raises(OutcomeUnknown, match="earlier settlement"):
            await receiver.settle(delivery, Complete())

    assert len(house.lines.made) == 2
    assert await house.left(ORDERS) == []


async def test_the_replaced_connection_is_closed(house, autojump_clock):
    async with house.adapter.open_receiver(ORDERS) as receiver, receiving(receiver):
        house.lines.go_deaf()
        await trio.sleep(REPLACED + ASKED_AFTER + PATIENCE + 10.0)

        assert [each.is_closed for each in house.lines.made] == [True, False]


async def test_a_quiet_connection_that_answers_is_kept(house, autojump_clock):
    async with house.adapter.open_receiver(ORDERS) as receiver, receiving(receiver) as got:
        await trio.sleep(20 * ASKED_AFTER)
        await house.send(ORDERS, "1")
        await trio.sleep(1.0)

        assert len(got) == 1
    assert len(house.lines.made) == 1


async def test_a_namespace_that_answers_nobody_costs_no_lock(house, autojump_clock):
    async with house.adapter.open_session(CHATS, "a") as session:
        await house.send(CHATS, "1")
        [delivery] = await session.receive(1)
        house.lines.go_deaf(whole=True)
        await trio.sleep(60.0)
        house.lines.recover()

        await session.settle(delivery, Complete())

    assert await house.left(CHATS) == []


async def test_a_session_keeps_a_replaced_connection_that_answers_again(house, autojump_clock):
    async with house.adapter.open_session(CHATS, "a") as session:
        await house.send(CHATS, "1")
        [delivery] = await session.receive(1)
        house.lines.go_deaf()
        await trio.sleep(REPLACED)
        house.lines.recover()
        await trio.sleep(10 * ASKED_AFTER)

        await session.settle(delivery, Complete())
    await trio.sleep(2 * ASKED_AFTER)

    assert await house.left(CHATS) == []
    assert [each.is_closed for each in house.lines.made] == [True, False]


async def test_the_end_of_a_replaced_connection_ends_its_sessions(house, autojump_clock):
    async with house.adapter.open_session(CHATS, "a") as session:
        house.lines.go_deaf()

        with pytest.raises(SessionLockLost), trio.fail_after(60.0):
            await session.wait_lost()


# ------------------------------------------------------------------ brokers whose locks are links


@attrs.define(eq=False)
class Node:
    """A scripted broker whose links are the locks of their messages."""

    server: Scripted
    lines: Lines
    broker: AmqpBroker
    frozen: list[Served] = attrs.field(factory=list)  # connections that attach no links

    def be_silent(self) -> None:
        self.frozen = list(self.server.connections)

    def attach(self, served: Served, event: LinkAttached) -> None:
        if served not in self.frozen:
            take(served, event)

    def give(self, name: str) -> None:
        """Deliver a message on the newest connection."""
        served = self.server.connections[-1]
        [link, *_] = (each.link for each in served.links.values() if each.we_send)
        served.engine.send(link, name.encode(), encode_message(Message(message_id=name)))


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    server = Scripted()
    async with trio.open_nursery() as nursery:
        lines = Lines(server.serve, nursery)

        async def dial(place: ServerAddress) -> trio.abc.Stream:
            return await lines.connect()

        access = NamespaceAccess(
            places=[ServerAddress(host="node", port=5672)],
            credentials=Credentials(mechanism="ANONYMOUS"),
            dial=dial,
        )
        async with AmqpBroker(
            access=access,
            options=AmqpNamespaceOptions(),
            clock=real_date,
            rng=random.Random(0),
        ) as broker:
            node = Node(server, lines, broker)
            server.on_attach = node.attach
            yield node
        nursery.cancel_scope.cancel()


async def test_a_lock_that_is_its_link_stays_there(node, autojump_clock):
    async with node.broker.open_receiver(ORDERS) as receiver, receiving(receiver) as got:
        node.give("1")
        await trio.sleep(0.1)
        node.be_silent()
        await trio.sleep(REPLACED)
        node.frozen.clear()
        node.give("2")
        await trio.sleep(10 * ASKED_AFTER)

        for each in got:
            await receiver.settle(each, Complete())

        assert [each.message.message_id for each in got] == ["1", "2"]
        await trio.sleep(2 * ASKED_AFTER)
        assert [each.connection.engine.finished for each in node.server.connections] == [
            True,
            False,
        ]


async def test_a_message_that_arrives_on_a_link_that_was_left_goes_back(node, autojump_clock):
    async with node.broker.open_receiver(ORDERS) as receiver, receiving(receiver) as got:
        node.give("1")
        await trio.sleep(0.1)
        node.lines.go_deaf()
        node.give("2")
        await trio.sleep(REPLACED)
        node.lines.recover()
        await trio.sleep(5.0)  # a heartbeat

        assert [each.message.message_id for each in got] == ["1"]
        [returned] = [each for each in node.server.told if isinstance(each, DispositionReceived)]
        assert returned.state == RELEASED
