"""A queue that is too long drops what is in excess, and no message more."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import trio
from pamqp import commands

from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import Unavailable
from gateway.frontends.rabbitmq_broker.counted_receiver import open_counted
from gateway.interception import Call, CallKind, WaitInterceptor
from gateway.interception.broker import InterceptedBroker
from gateway.ports import ReceiveMode
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.receiver import LocalReceiver
from tests.frontends.rabbitmq_broker.site import Client, Site, site
from tests.harness.clocks import VirtualClock

Basic = commands.Basic
T = TypeVar("T")


class Slow(MemoryBroker):
    """A namespace whose answers take a number of seconds each."""

    to_inspect = to_open = to_receive = to_settle = 0.0
    is_out = False  # settlements don't reach it
    inspects = 0

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        self.inspects += 1
        info = await super().inspect(entity)
        await trio.sleep(self.to_inspect)
        return info

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[LocalReceiver]:
        await trio.sleep(self.to_open)
        async with super().open_receiver(entity, mode) as receiver:
            yield receiver


@attrs.define
class SlowLine(WaitInterceptor):
    """Settlements reach the namespace late, or never, and what is received comes late."""

    _of: Slow
    kinds = frozenset({CallKind.SETTLE, CallKind.WAIT})

    def before(self, call: Call) -> Awaitable[None]:
        return self._wait()

    async def wait(self, call: Call, receive: Callable[[], Awaitable[T]]) -> T:
        found = await receive()
        await trio.sleep(self._of.to_receive)
        return found

    async def _wait(self) -> None:
        await trio.sleep(self._of.to_settle)
        if self._of.is_out:
            raise Unavailable("no answer")


@asynccontextmanager
async def bounded(most: int) -> AsyncIterator[tuple[Site, Slow, Client, Client]]:
    """A queue `short` and two clients."""
    broker = Slow(VirtualClock(), random.Random(0))
    async with site(broker=InterceptedBroker(broker, [SlowLine(broker)])) as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("short", x_max_length=most)
        await client.confirms()
        yield here, broker, client, other


async def publish(client: Client, *bodies: bytes) -> None:
    for body in bodies:
        await client.publish(body, "short")
        await client.hears(Basic.Ack)


async def test_settlements_while_a_queue_is_counted_are_no_excess(autojump_clock) -> None:
    async with bounded(3) as (here, broker, client, other):
        await publish(client, b"0", b"1", b"2")
        for _ in range(2):
            assert await client.gets("short", no_ack=False) is not None
        assert await other.gets("short", no_ack=False) is not None
        await publish(client, b"3", b"4")
        broker.to_inspect = 1.0
        await other.send(Basic.Nack(1, requeue=True))
        await trio.sleep(0.5)  # the namespace has counted
        await client.send(Basic.Ack(1))
        await trio.sleep(1)  # it would count again if there were an excess
        await client.send(Basic.Ack(2))
        await trio.sleep(10)

        assert sorted(await here.bodies("short")) == [b"2", b"3", b"4"]


async def test_acknowledgements_on_their_way_are_no_excess(autojump_clock) -> None:
    async with bounded(2) as (here, broker, client, other):
        await publish(client, b"0", b"1")
        for _ in range(2):
            assert await other.gets("short", no_ack=False) is not None
        broker.to_settle = 1.0
        await other.send(Basic.Ack(2, multiple=True))
        await trio.sleep(0.5)
        await publish(client, b"2")
        await trio.sleep(10)

        assert await here.bodies("short") == [b"2"]


async def test_deliveries_without_acknowledgements_are_no_excess(autojump_clock) -> None:
    async with bounded(2) as (_, broker, client, other):
        await publish(client, b"0", b"1")
        broker.to_settle = 1.0
        await other.asks(Basic.Consume(queue="short", no_ack=True), Basic.ConsumeOk)
        await trio.sleep(0.5)
        await publish(client, b"2")

        assert [(await other.hears(Basic.Deliver)).body for _ in range(3)] == [b"0", b"1", b"2"]


async def test_deliveries_on_their_way_are_no_excess(autojump_clock) -> None:
    async with bounded(2) as (_, broker, client, other):
        await publish(client, b"0", b"1")
        broker.to_receive = 1.0
        await other.asks(Basic.Consume(queue="short"), Basic.ConsumeOk)
        await trio.sleep(0.5)
        await publish(client, b"2")

        assert [(await other.hears(Basic.Deliver)).body for _ in range(3)] == [b"0", b"1", b"2"]


async def test_deliveries_that_come_after_their_receiver_has_ended_are_not_held(autojump_clock):
    async with bounded(2) as (here, broker, client, _), trio.open_nursery() as nursery:
        await publish(client, b"0", b"1")
        queue, broker.to_receive = here.vhost.queues["short"], 1.0
        async with open_counted(here.broker, queue) as receiver:
            nursery.start_soon(receiver.receive, 2)
            await trio.sleep(0.5)
            assert queue.taken - queue.given == 2
        await trio.sleep(1)

        assert queue.taken == queue.given


async def test_two_clients_drop_the_same_excess_once(autojump_clock) -> None:
    async with bounded(2) as (here, broker, client, other):
        await publish(client, b"0", b"1")
        broker.to_inspect = 1.0
        for each in (client, other):
            await each.publish(b"new", "short")
        await trio.sleep(30)

        assert await here.bodies("short") == [b"new", b"new"]


async def test_a_queue_that_was_emptied_after_its_count_drops_nothing(autojump_clock) -> None:
    async with bounded(2) as (here, broker, client, other):
        await publish(client, b"0", b"1")
        broker.to_open = 1.0
        await client.publish(b"2", "short")
        await trio.sleep(0.5)
        await other.asks(commands.Queue.Purge(queue="short"), commands.Queue.PurgeOk)
        await other.publish(b"3", "short")
        await trio.sleep(30)

        assert await here.bodies("short") == [b"3"]


async def test_deliveries_that_a_channel_gave_back_are_in_excess(autojump_clock) -> None:
    async with bounded(2) as (here, _, client, other):
        await publish(client, b"0", b"1")
        for _ in range(2):
            assert await other.gets("short", no_ack=False) is not None
        await publish(client, b"2", b"3")
        await other.asks(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        await trio.sleep(1)
        await publish(client, b"4")

        assert await here.bodies("short") == [b"3", b"4"]


async def test_a_requeue_does_not_wait_long_for_a_count(autojump_clock) -> None:
    async with bounded(1) as (_, broker, client, _other):
        await client.declares("long")
        await publish(client, b"0")
        assert await client.gets("short", no_ack=False) is not None
        broker.to_inspect = 1000.0
        await client.send(Basic.Nack(1, requeue=True))
        began = trio.current_time()
        await client.publish(b"x", "long")
        await client.hears(Basic.Ack)

        assert trio.current_time() - began < 5.0


async def test_clients_wait_together_for_a_count(autojump_clock) -> None:
    async with bounded(1) as (here, broker, *_):
        clients = [await here.connect() for _ in range(6)]
        for each in clients:
            await each.confirms()
        broker.to_inspect = 1000.0
        began = trio.current_time()
        for each in clients:
            await each.publish(b"x", "short")
        for each in clients:
            await each.hears(Basic.Ack)

        assert trio.current_time() - began < 5.0


async def test_a_requeue_that_fails_in_an_outage_counts_no_queue(autojump_clock) -> None:
    async with bounded(1) as (_, broker, client, other):
        await publish(client, b"0")
        assert await other.gets("short", no_ack=False) is not None
        broker.is_out, before = True, broker.inspects
        await other.send(Basic.Nack(1, requeue=True))
        await trio.sleep(10)

        assert broker.inspects == before
