"""`basic.qos` with `global`, which in RabbitMQ bounds all consumers of a channel together."""

from typing import Any

import trio
from pamqp import commands

from tests.frontends.rabbitmq.peers import with_content
from tests.frontends.rabbitmq_broker.site import Client, Got, site


async def share(client: Client, count: int) -> None:
    request = commands.Basic.Qos(prefetch_count=count, global_=True)
    await client.asks(request, commands.Basic.QosOk)


async def consume(client: Client, *queues: str, **how: Any) -> None:
    for queue in queues:
        request = commands.Basic.Consume(queue=queue, consumer_tag=queue, **how)
        await client.asks(request, commands.Basic.ConsumeOk)


async def waiting(client: Client) -> list[Got]:
    """The deliveries that come without more settlements."""
    found: list[Got] = []
    with trio.move_on_after(5):
        while True:
            found.append(await client.hears(commands.Basic.Deliver))
    return found


async def test_a_consumer_of_an_empty_queue_leaves_the_prefetch_to_others(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("empty")
        await client.declares("orders")
        await share(client, 2)
        await consume(client, "empty", "orders")
        for number in range(5):
            await other.publish(b"%d" % number, "orders")

        assert [each.body for each in await waiting(client)] == [b"0", b"1"]
        await client.send(commands.Basic.Ack(2, multiple=True))
        assert [each.body for each in await waiting(client)] == [b"2", b"3"]


async def test_a_prefetch_holds_for_consumers_that_wait_already(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await consume(client, "orders")
        await other.publish(b"0", "orders")
        assert len(await waiting(client)) == 1
        await share(client, 2)
        publish = commands.Basic.Publish(routing_key="orders")
        await other.stream.send_all(with_content(publish, b"1") + with_content(publish, b"2"))

        assert [each.body for each in await waiting(client)] == [b"1"]
        await share(client, 0)
        [last] = await waiting(client)
        assert (last.body, last.method.redelivered) == (b"2", False)


async def test_a_message_that_a_client_gets_does_not_count_for_the_prefetch(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        for number in range(3):
            await client.publish(b"%d" % number, "orders")
        await share(client, 1)
        assert await client.gets("orders", no_ack=False) is not None
        await consume(client, "orders")

        assert [each.body for each in await waiting(client)] == [b"1"]


async def test_a_consumer_that_acknowledges_nothing_waits_for_others_of_its_channel(
    autojump_clock,
) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        for queue in ("orders", "news"):
            await client.declares(queue)
        await share(client, 1)
        await consume(client, "orders")
        await consume(client, "news", no_ack=True)
        await other.publish(b"0", "orders")
        assert len(await waiting(client)) == 1
        for number in range(2):
            await other.publish(b"%d" % number, "news")
        assert await waiting(client) == []
        await client.send(commands.Basic.Ack(1))

        assert [each.body for each in await waiting(client)] == [b"0", b"1"]


async def test_messages_that_come_at_once_share_the_room_for_one(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        queues = ("first", "second", "third")
        for queue in queues:
            await client.declares(queue)
            bind = commands.Queue.Bind(queue=queue, exchange="amq.fanout")
            await client.asks(bind, commands.Queue.BindOk)
        await share(client, 1)
        await consume(client, *queues)
        await other.publish(b"x", "", "amq.fanout")
        for number in (1, 2, 3):
            found = await waiting(client)
            assert [each.method.delivery_tag for each in found] == [number]
            await client.send(commands.Basic.Ack(number))

        assert await waiting(client) == []
