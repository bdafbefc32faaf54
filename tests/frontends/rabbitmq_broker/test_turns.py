"""The clients of an endpoint have turns, and limits in memory: no one waits for another's work."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from pamqp import commands
from trio.testing import wait_all_tasks_blocked

from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.frontends.rabbitmq_broker.channel_owner import MOST_CONSUMERS
from gateway.net.clients import ClientOptions, Clients
from gateway.net.turns import RECENT
from gateway.store.local.memory import MemoryBroker
from gateway.wire.rabbitmq.frames import method_frame
from tests.frontends.rabbitmq_broker.site import Client, Site, site
from tests.harness.clocks import VirtualClock

ORDERS = EntityPath("orders")
HEAVY, LIGHT = (
    AccessPolicy(name=name, keys=("key",), rights=frozenset({Right.MANAGE}))
    for name in ("heavy", "light")
)


class Slow(MemoryBroker):
    """A namespace whose sends take a number of seconds each."""

    takes = 0.0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.steps: list[int] = []  # the number of messages of each send

    async def send_many(self, entity: EntityPath, batches: Any, **how: Any) -> Sequence[Any]:
        self.steps.append(len(batches))
        await trio.sleep(self.takes)
        return await super().send_many(entity, batches, **how)


@asynccontextmanager
async def shared(**limits: int) -> AsyncIterator[tuple[Site, Clients]]:
    """An endpoint with limits, and a queue `orders`."""
    broker, clients = Slow(VirtualClock(), random.Random(1)), Clients(ClientOptions(**limits))
    async with site(broker=broker, policies=(HEAVY, LIGHT), clients=clients) as here:
        await broker.create_queue(ORDERS, QueueProperties())
        yield here, clients


async def connected(here: Site, user: str) -> Client:
    client = await here.connect(user=user, password="key")
    await client.confirms()
    return client


async def test_beside_another_client_a_channel_sends_as_many_at_a_time_as_its_share(
    autojump_clock,
) -> None:
    async with shared(share=8) as (here, _):
        heavy, light = await connected(here, "heavy"), await connected(here, "light")
        await trio.sleep(2 * RECENT)
        await many(heavy, 20)
        await wait_all_tasks_blocked()
        await light.publish(b"x", "orders")
        await light.hears(commands.Basic.Ack)
        await many(heavy, 20)
        await wait_all_tasks_blocked()

        assert here.broker.steps == [20, 1, 8, 8, 4]


async def many(client: Client, number: int) -> None:
    """Publish so many messages, which arrive together."""
    stream, client.stream = client.stream, Together()
    for each in range(number):
        await client.publish(str(each).encode(), "orders")
    written, client.stream = client.stream.written, stream
    await client.stream.send_all(written)


class Together:
    """Keeps what is written."""

    written = b""

    async def send_all(self, data: bytes) -> None:
        self.written += data


async def test_publishes_of_a_channel_keep_their_order_while_they_wait_for_their_turn(
    autojump_clock,
) -> None:
    async with shared(share=2) as (here, _):
        heavy, light = await connected(here, "heavy"), await connected(here, "light")
        here.broker.takes = 0.01

        async def disturb() -> None:
            while True:
                await light.publish(b"other", "orders")
                await light.hears(commands.Basic.Ack)

        here.nursery.start_soon(disturb)
        await trio.sleep(0.005)
        await many(heavy, 100)
        last = 0
        while last < 100:
            last = (await heavy.hears(commands.Basic.Ack)).method.delivery_tag
        found = [each.message.body for each in await here.broker.peek(ORDERS, limit=1000)]

    assert [each for each in found if each != b"other"] == [b"%d" % each for each in range(100)]


async def test_a_client_with_many_connections_does_not_delay_another_one(autojump_clock) -> None:
    async with shared(share=4) as (here, _):
        here.broker.takes = 0.05
        in_progress: list[str] = []

        async def publish(user: str) -> None:
            client = await connected(here, user)
            while True:
                await client.publish(b"x", "orders")
                await client.hears(commands.Basic.Ack)
                in_progress.append(user)

        here.nursery.start_soon(publish, "light")
        await trio.sleep(0.01)
        for _ in range(50):
            here.nursery.start_soon(publish, "heavy")
        await trio.sleep(2)
        here.nursery.cancel_scope.cancel()

    # One after the other of the single connection, and at most four of the fifty beside it.
    assert in_progress.count("light") == 40
    assert in_progress.count("heavy") <= 4 * 40


async def test_a_publish_comes_between_the_requests_that_another_client_sent_at_once(
    autojump_clock,
) -> None:
    async with shared() as (here, _):
        light = await connected(here, "light")
        await light.publish(b"x", "orders")
        await light.hears(commands.Basic.Ack)
        flood = [commands.Basic.Consume(queue="tasks", nowait=True)] * 200
        await light.declares("tasks")
        for heavy in [await connected(here, "heavy") for _ in range(4)]:
            await heavy.send(*flood)
        await light.publish(b"x", "orders")
        await light.hears(commands.Basic.Ack)

        assert 0 < len(here.vhost.queues["tasks"].consumers) < 200


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_the_channels_of_one_write_begin_one_after_the_other(autojump_clock) -> None:
    numbers = range(2, 202)
    opened = b"".join(method_frame(each, commands.Channel.Open()) for each in numbers)
    close = commands.Channel.Close(200, "", 0, 0)
    closed = b"".join(method_frame(each, close) for each in numbers)
    async with shared() as (here, _):
        heavy, light = await connected(here, "heavy"), await connected(here, "light")
        for _ in range(10):  # what is read at once grows
            await heavy.stream.send_all(opened)
            for _ in numbers:
                await heavy.hears(commands.Channel.OpenOk)
            await heavy.stream.send_all(closed)
            for _ in numbers:
                await heavy.hears(commands.Channel.CloseOk)
        before = tasks()
        await heavy.stream.send_all(opened)
        await light.publish(b"x", "orders")
        await light.hears(commands.Basic.Ack)
        begun = tasks() - before
        for _ in numbers:
            await heavy.hears(commands.Channel.OpenOk)
        total = tasks() - before

    assert begun < total / 2


async def test_a_connection_that_ends_with_publishes_in_flight_gives_them_back(
    autojump_clock,
) -> None:
    async with shared() as (here, clients):
        client = await connected(here, "heavy")
        here.broker.takes = 1000.0
        await many(client, 3)
        await wait_all_tasks_blocked()
        load = clients.load("heavy")
        before = load.requests
        await trio.aclose_forcefully(client.stream)
        await trio.sleep(100)

    assert (before, load.requests, load.bytes) == (3, 0, 0)


async def test_bytes_of_open_transactions_count_whatever_the_connection(autojump_clock) -> None:
    async with shared(max_bytes=10_000) as (here, clients):
        one, two = [await here.connect(user="heavy", password="key") for _ in range(2)]
        for each in (one, two):
            await each.asks(commands.Tx.Select(), commands.Tx.SelectOk)
        await one.publish(bytes(20_000), "orders")
        await wait_all_tasks_blocked()
        await two.publish(b"x", "orders")
        refused = (await two.hears(commands.Channel.Close)).method
        await one.asks(commands.Tx.Commit(), commands.Tx.CommitOk)
        left = clients.load("heavy").bytes
        await two.send(commands.Channel.CloseOk(), commands.Channel.Open())
        await two.hears(commands.Channel.OpenOk)
        await two.asks(commands.Tx.Select(), commands.Tx.SelectOk)
        await two.publish(bytes(20_000), "orders")
        await two.asks(commands.Tx.Rollback(), commands.Tx.RollbackOk)
        after = clients.load("heavy").bytes

    assert (refused.reply_code, "bytes in flight" in refused.reply_text) == (406, True)
    assert (left, after) == (0, 0)


async def test_a_transaction_that_ends_with_its_channel_gives_its_bytes_back(
    autojump_clock,
) -> None:
    async with shared() as (here, clients):
        client = await here.connect(user="heavy", password="key")
        await client.asks(commands.Tx.Select(), commands.Tx.SelectOk)
        await client.publish(bytes(20_000), "orders")
        await wait_all_tasks_blocked()
        held = clients.load("heavy").bytes
        await client.asks(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        left = clients.load("heavy").bytes

    assert held > 20_000
    assert left == 0


async def test_a_connection_has_a_most_of_consumers_on_all_its_channels(autojump_clock) -> None:
    async with shared() as (here, _):
        client = await here.connect(user="heavy", password="key")
        consume = commands.Basic.Consume(queue="orders", nowait=True)
        await client.send(*[consume] * MOST_CONSUMERS)
        assert (await client.count("orders")) == 0
        await client.send(commands.Channel.Open(), channel=2)
        await client.hears(commands.Channel.OpenOk)
        await client.stream.send_all(method_frame(2, consume))
        close = (await client.hears(commands.Connection.Close)).method

    assert (close.reply_code, f"({MOST_CONSUMERS})" in close.reply_text) == (530, True)
