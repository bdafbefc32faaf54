"""A connection on which sends fail is replaced: on virtual time, with a scripted server."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from gateway.brokers.amqp.broker import AmqpBroker
from gateway.brokers.amqp.options import AmqpNamespaceOptions
from gateway.brokers.amqp.peer import NamespaceAccess
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, MessageTooLarge, OutcomeUnknown
from gateway.domain.message import Message
from gateway.net.server_address import ServerAddress
from gateway.wire.amqp.events import AmqpError, Rejected
from gateway.wire.amqp.sasl import Credentials
from tests.brokers.amqp.scripted import Answer, Scripted, Served, accept, take
from tests.brokers.servicebus.served import real_date

ORDERS, INVOICES = EntityPath("orders"), EntityPath("invoices")
PATIENCE = 2.25  # seconds; after that a pair diverts a send
LONG = 30.0  # seconds without traffic
MESSAGE = [Message(message_id="1", body=b"x")]


def refuse(condition: str) -> Answer:
    def answer(served: Served, event) -> None:
        error = AmqpError(condition=condition, description="please retry the operation")
        served.engine.settle(event.delivery, Rejected(error=error))

    return answer


def be_silent(served: Served, event) -> None:
    """Say nothing."""


@attrs.define(eq=False)
class Node:
    """A server whose connections up to the number `bad` fail in the given way."""

    server: Scripted
    broker: AmqpBroker
    bad: int = 0
    fails: Answer = attrs.field(factory=lambda: refuse("amqp:internal-error"))
    entity: str | None = None  # that fails; None: all

    def __attrs_post_init__(self) -> None:
        self.server.on_transfer = self.answer

    def answer(self, served: Served, event) -> None:
        here = self.entity in {None, served.links[event.link].target.address}
        is_bad = here and self.server.connections.index(served) < self.bad
        (self.fails if is_bad else accept)(served, event)

    def go_bad(self) -> None:
        self.bad = len(self.server.connections)

    async def send(self, entity: EntityPath = ORDERS) -> BrokerError | None:
        """Return the error of a send; OutcomeUnknown if there was no answer in time."""
        try:
            with trio.move_on_after(PATIENCE):
                await self.broker.send(entity, MESSAGE)
                return None
        except BrokerError as error:
            return error
        return OutcomeUnknown("given up")


@asynccontextmanager
async def running() -> AsyncIterator[Node]:
    server = Scripted()
    async with trio.open_nursery() as nursery:

        async def dial(place: ServerAddress) -> trio.abc.Stream:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(server.serve, theirs)
            await trio.lowlevel.checkpoint()
            return ours

        access = NamespaceAccess(
            places=[ServerAddress(host="node", port=5672)],
            credentials=Credentials(mechanism="ANONYMOUS"),
            dial=dial,
        )
        options = AmqpNamespaceOptions()
        async with AmqpBroker(
            access=access, options=options, clock=real_date, rng=random.Random(0)
        ) as broker:
            yield Node(server, broker)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def node():
    async with running() as node:
        assert await node.send() is None
        await trio.sleep(LONG)
        yield node


async def test_a_send_that_fails_on_an_old_connection_is_the_last_one_on_it(node, autojump_clock):
    node.go_bad()

    failure = await node.send()

    assert isinstance(failure, OutcomeUnknown)
    assert await node.send() is None
    assert len(node.server.connections) == 2


async def test_a_connection_that_answers_probes_but_no_send_is_replaced(node, autojump_clock):
    node.go_bad()
    node.fails = be_silent

    failure = await node.send()
    await node.broker.probe(ORDERS)

    assert isinstance(failure, OutcomeUnknown)
    assert await node.send() is None
    assert len(node.server.connections) == 2


async def test_a_connection_that_attaches_no_links_is_replaced(node, autojump_clock):
    def attach(served: Served, event) -> None:
        if node.server.connections.index(served) >= node.bad:
            take(served, event)

    node.go_bad()
    node.server.on_attach = attach

    with pytest.raises(BrokerError):
        await node.broker.probe(INVOICES)
    await node.broker.probe(INVOICES)

    assert len(node.server.connections) == 2


async def test_a_probe_under_way_goes_on_with_the_new_connection(node, autojump_clock):
    def attach(served: Served, event) -> None:
        if node.server.connections.index(served) >= node.bad:
            take(served, event)

    node.go_bad()
    node.fails, node.server.on_attach = be_silent, attach
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.send)
        await trio.sleep(1.0)
        began = trio.current_time()

        await node.broker.probe(INVOICES)

    assert trio.current_time() - began == PATIENCE - 1.0
    assert len(node.server.connections) == 2


async def test_the_replaced_connection_is_closed(node, autojump_clock):
    node.go_bad()

    await node.send()
    await node.send()
    await trio.sleep(LONG)

    assert node.server.connections[0].connection.engine.finished
    assert not node.server.connections[1].connection.engine.finished


async def test_a_send_under_way_on_a_replaced_connection_gets_its_answer(node, autojump_clock):
    held: list[tuple[Served, object]] = []
    node.go_bad()
    node.fails = lambda served, event: held.append((served, event))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.broker.send, INVOICES, MESSAGE)
        await trio.sleep(0.1)
        await node.send()  # is given up
        accept(*held[0])

    assert await node.send() is None
    assert len(node.server.connections) == 2


async def test_a_connection_on_which_other_sends_succeed_is_kept(node, autojump_clock):
    node.go_bad()
    node.fails, node.entity = be_silent, "invoices"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.send, INVOICES)
        await trio.sleep(1.0)
        await node.send(ORDERS)

    assert await node.send(ORDERS) is None
    assert len(node.server.connections) == 1


@pytest.mark.parametrize("condition", ["com.microsoft:server-busy", "amqp:not-found"])
async def test_a_refusal_that_is_no_outage_costs_no_connection(node, autojump_clock, condition):
    node.go_bad()
    node.fails = refuse(condition)

    await node.send()
    await node.send()

    assert len(node.server.connections) == 1


async def test_a_message_too_large_costs_no_connection(node, autojump_clock):
    with pytest.raises(MessageTooLarge):
        await node.broker.send(ORDERS, [Message(message_id="2", body=b"x" * 2**21)])

    assert await node.send() is None
    assert len(node.server.connections) == 1


async def test_connections_that_all_fail_follow_each_other_once_a_second_at_most(
    node, autojump_clock
):
    node.bad = 10**6

    for _ in range(100):
        await node.send()
        await trio.sleep(0.05)

    assert 2 <= len(node.server.connections) <= 7
