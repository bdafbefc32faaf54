"""The consumers of a channel on one queue share its receives."""

import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import trio
from pamqp import commands

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.interception import RECEIVES, Call, Interceptor
from gateway.interception.broker import InterceptedBroker
from gateway.ports import ReceiveMode
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.receiver import LocalReceiver
from tests.frontends.rabbitmq_broker.site import Client, site
from tests.harness.clocks import VirtualClock

Basic = commands.Basic


class Receives(Interceptor):
    """Counts the receives that clients' consumers make."""

    kinds = RECEIVES

    def __init__(self) -> None:
        self.count = 0

    def before(self, call: Call) -> Awaitable[None] | None:
        self.count += 1
        return None


async def consume(client: Client, *tags: str, queue: str = "orders", no_ack: bool = False) -> None:
    for tag in tags:
        request = Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack)
        await client.asks(request, Basic.ConsumeOk)


async def publish(client: Client, number: int, queue: str = "orders") -> None:
    await client.confirms()
    for each in range(number):
        await client.publish(b"%d" % each, queue)
        await client.hears(Basic.Ack)


async def test_consumers_of_a_queue_receive_as_often_as_one(autojump_clock) -> None:
    receives = Receives()
    broker = InterceptedBroker(MemoryBroker(VirtualClock(), random.Random(0)), [receives])
    async with site(broker=broker) as here:
        client = await here.connect()
        await client.declares("orders")
        tags = [str(each) for each in range(100)]
        await consume(client, *tags)
        for tag in tags[:-1]:
            await client.asks(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)

    assert receives.count == 1


async def test_consumers_of_a_queue_get_its_messages_in_turn(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await consume(client, "a", "b", "c")
        await publish(other, 6)
        found = [(await client.hears(Basic.Deliver)).method.consumer_tag for _ in range(6)]

    assert found == ["a", "b", "c"] * 2


async def test_a_consumer_without_room_is_passed_over(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await client.asks(Basic.Qos(prefetch_count=1), Basic.QosOk)
        await consume(client, "a")
        await client.asks(Basic.Qos(prefetch_count=0), Basic.QosOk)
        await consume(client, "b")
        await publish(other, 5)
        found = [(await client.hears(Basic.Deliver)).method.consumer_tag for _ in range(5)]

    assert found == ["a", "b", "b", "b", "b"]


async def test_a_consumer_that_ends_leaves_nothing_to_consumers_without_room(autojump_clock):
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await client.asks(Basic.Qos(prefetch_count=1), Basic.QosOk)
        await consume(client, "a", "b")
        await client.asks(Basic.Cancel(consumer_tag="a"), Basic.CancelOk)
        await publish(other, 2)
        found = await client.hears(Basic.Deliver)
        await trio.sleep(1)

        assert (found.method.consumer_tag, client.arrived) == ("b", [])
        assert await other.count("orders") == 1


async def test_a_limit_of_the_channel_is_of_all_its_queues(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        for queue in ("orders", "bills"):
            await client.declares(queue)
        await client.asks(Basic.Qos(prefetch_count=2, global_=True), Basic.QosOk)
        await publish(other, 2)
        await consume(client, "a")
        await client.hears(Basic.Deliver)
        await client.hears(Basic.Deliver)
        await consume(client, "b", queue="bills")
        await publish(other, 1, "bills")
        await trio.sleep(1)
        assert client.arrived == []
        await client.send(Basic.Ack(delivery_tag=1))
        found = await client.hears(Basic.Deliver)

    assert found.method.consumer_tag == "b"


async def test_consumers_with_and_without_acknowledgements_share_a_queue(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await publish(other, 4)
        await client.asks(Basic.Qos(prefetch_count=1), Basic.QosOk)
        await consume(client, "a")
        assert (await client.hears(Basic.Deliver)).body == b"0"
        await consume(client, "b", no_ack=True)
        found = [await client.hears(Basic.Deliver) for _ in range(3)]
        left = await other.count("orders")
        await client.send(Basic.Nack(delivery_tag=1, requeue=True))
        again = await client.hears(Basic.Deliver)

    assert [(each.method.consumer_tag, each.body) for each in found] == [
        ("b", b"1"),
        ("b", b"2"),
        ("b", b"3"),
    ]
    assert (left, again.body) == (0, b"0")


class Closed(MemoryBroker):
    """A namespace in an outage of its receives."""

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[LocalReceiver]:
        await trio.sleep(1)
        raise Unavailable("the namespace doesn't answer")
        yield


async def test_a_consumer_ends_in_an_outage(autojump_clock) -> None:
    async with site(broker=Closed(VirtualClock(), random.Random(0))) as here:
        client = await here.connect()
        await client.declares("orders")
        await consume(client, "a", "b")
        for tag in ("a", "b"):
            await client.asks(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)

        assert trio.current_time() < 10


async def test_a_limit_of_the_channel_holds_while_two_queues_have_messages(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        for queue in ("orders", "bills"):
            await client.declares(queue)
        await client.asks(Basic.Qos(prefetch_count=2, global_=True), Basic.QosOk)
        for queue in ("orders", "bills"):
            await consume(client, queue, queue=queue)
        for number in range(5):
            for queue in ("orders", "bills"):
                await other.publish(b"%d" % number, queue)
        found: dict[str, list[bytes]] = {"orders": [], "bills": []}
        for tag in range(1, 11):
            got = await client.hears(Basic.Deliver)
            found[got.method.consumer_tag].append(got.body)
            await trio.sleep(1)
            assert len(client.arrived) <= 1, "two at a time"
            await client.send(Basic.Ack(delivery_tag=tag))
        await trio.sleep(1)
        left = [await other.count(queue) for queue in ("orders", "bills")]

    assert found == {queue: [b"%d" % number for number in range(5)] for queue in found}
    assert left == [0, 0]


async def test_messages_that_no_client_has_seen_do_not_count_as_delivered(autojump_clock) -> None:
    queues = [f"orders-{number}" for number in range(6)]
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await other.confirms()
        await client.asks(Basic.Qos(prefetch_count=1, global_=True), Basic.QosOk)
        for queue in queues:
            await client.declares(queue, x_delivery_limit=2)
            await consume(client, queue, queue=queue)
        for _ in range(20):
            for queue in queues:
                await other.publish(b"x", queue)
                await other.hears(Basic.Ack)
        for tag in range(1, 20 * len(queues) + 1):
            found = await client.hears(Basic.Deliver)
            assert not found.method.redelivered
            await client.send(Basic.Ack(delivery_tag=tag))

    assert client.arrived == []


async def test_a_channel_keeps_nothing_of_queues_that_are_gone(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("first")
        await consume(client, "first", queue="first")
        before = trio.lowlevel.current_statistics().tasks_living
        for number in range(20):
            queue = f"reply-{number}"
            await client.declares(queue)
            await consume(client, queue, queue=queue)
            await client.asks(Basic.Cancel(consumer_tag=queue), Basic.CancelOk)
            await client.asks(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
        await trio.sleep(5)

        assert trio.lowlevel.current_statistics().tasks_living <= before + 2


async def test_messages_for_a_closed_channel_are_not_counted(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        for _ in range(20):
            await client.send(Basic.Consume(queue="orders", nowait=True))
            await other.publish(b"x", "orders")
            await client.send(commands.Channel.Close(200, "", 0, 0))
            while not isinstance((await client.next()).method, commands.Channel.CloseOk):
                pass  # a delivery
            await client.asks(commands.Channel.Open(), commands.Channel.OpenOk)
        await trio.sleep(1)

        assert here.vhost.queues["orders"].unsettled == 0
