"""A client that reads nothing, or says more than it may, harms itself alone."""

import gc

import pytest
import trio
from pamqp import commands, header
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.frontends.rabbitmq.outbox import HIGH_WATER
from gateway.frontends.rabbitmq_broker.connection import LARGEST, ServedConnection
from gateway.frontends.rabbitmq_broker.routing import RoutingExchange, RoutingTable, binding
from gateway.wire.rabbitmq.frames import HEAD, content_frames, method_frame
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER
from tests.frontends.rabbitmq.peers import HEADER_OF_OTHERS, Peer
from tests.frontends.rabbitmq_broker.site import Client, Site, site

LARGE = b"x" * 100_000
READ_AHEAD = 4 * 1024 * 1024  # bytes that may be on the way to a client, and in its deliveries


async def closed_with(client: Client, code: int) -> str:
    close = (await client.hears(commands.Connection.Close)).method
    assert close.reply_code == code, close.reply_text
    text: str = close.reply_text
    return text


async def left(here: Site, queue: str) -> int:
    info = await here.broker.inspect(EntityPath(queue))
    return int(info.active)


async def test_a_consumer_that_reads_nothing_is_sent_little(autojump_clock) -> None:
    async with site() as here:
        other = await here.connect()
        await other.declares("orders")
        messages = [Message(body=LARGE)] * 10
        for _ in range(20):
            await here.broker.send(EntityPath("orders"), messages)
        client = await here.connect(lockstep_stream_pair)
        await client.send(commands.Basic.Consume(queue="orders", no_ack=True))
        await trio.sleep(60)

        taken = 200 - await left(here, "orders")
        assert 0 < taken * len(LARGE) < READ_AHEAD + HIGH_WATER
        await other.publish(b"x", "orders", mandatory=True)
        assert await other.count("orders") == 200 - taken + 1


async def test_a_client_that_asks_without_reading_is_not_read(autojump_clock) -> None:
    get = method_frame(1, commands.Basic.Get(queue="orders"))
    asked = 0

    async def ask_without_end() -> None:
        nonlocal asked
        while True:
            await client.stream.send_all(get)
            asked += 1

    async with site() as here:
        client = await here.connect(lockstep_stream_pair)
        await client.declares("orders")
        for _ in range(50):
            await here.broker.send(EntityPath("orders"), [Message(body=LARGE)])
        here.nursery.start_soon(ask_without_end)
        await trio.sleep(60)
        first = asked
        await trio.sleep(60)

        assert asked == first < 10_000
        assert await left(here, "orders") > 20


@pytest.mark.parametrize("size", [131_072, 2**30])
async def test_a_frame_has_the_size_of_the_login(autojump_clock, size: int) -> None:
    async with site() as here:
        client = await here.connect()
        await client.stream.send_all(HEAD.pack(1, 1, size))

        await closed_with(client, 501)


async def test_a_frame_before_the_login_is_small(autojump_clock) -> None:
    async with site() as here:
        ours, theirs = lockstep_stream_pair()
        here.nursery.start_soon(here.frontend.serve_connection, ours)
        client = Peer(theirs)
        await client.stream.send_all(PROTOCOL_HEADER)
        await client.hears(commands.Connection.Start)
        await client.stream.send_all(HEAD.pack(1, 0, 16 * 1024 + 1))

        assert (await client.hears(commands.Connection.Close)).reply_code == 501


async def test_a_silent_client_is_cut_off_before_its_login(autojump_clock) -> None:
    async with site() as here:
        ours, theirs = lockstep_stream_pair()
        with trio.fail_after(60):
            await here.frontend.serve_connection(ours)
        await theirs.aclose()


@pytest.mark.parametrize("interval", [1, 10])
async def test_a_silent_client_is_cut_off_after_its_heartbeats(
    autojump_clock, interval: int
) -> None:
    async with site() as here:
        client = await here.connect(heartbeat=interval)
        began = trio.current_time()
        with trio.fail_after(60):
            while await client.stream.receive_some():
                continue

        assert 2 * interval <= trio.current_time() - began < 2.8 * interval


async def test_a_larger_message_than_is_taken_closes_its_channel(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        publish = commands.Basic.Publish(routing_key="orders")
        head = header.ContentHeader(body_size=LARGEST + 1, properties=commands.Basic.Properties())
        first = content_frames(1, head.marshal(), LARGE, 131_072)
        await client.stream.send_all(method_frame(1, publish) + b"".join(first))
        close = (await client.hears(commands.Channel.Close)).method

        assert (close.reply_code, close.method_id) == (406, 40)


async def test_a_message_that_the_namespace_refuses_closes_its_channel(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await client.publish(b"x" * (1024 * 1024 + 1), "orders")

        assert (await client.hears(commands.Channel.Close)).method.reply_code == 406


async def test_unfinished_messages_of_all_channels_are_bounded(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        head = header.ContentHeader(body_size=LARGEST, properties=commands.Basic.Properties())
        publish = commands.Basic.Publish(routing_key="orders")
        for channel in range(2, 102):
            await client.send(commands.Channel.Open(), channel=channel)
            start = [method_frame(channel, publish)]
            start += content_frames(channel, head.marshal(), LARGE * 10, 131_072)
            await client.stream.send_all(b"".join(start))
        while isinstance((got := await client.next()).method, commands.Channel.OpenOk):
            continue

        assert got.method.reply_code == 506


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (method_frame(2, commands.Basic.Get(queue="orders")), 504),
        (method_frame(1, commands.Channel.Open()), 504),
        (HEAD.pack(2, 1, 1) + b"x\xce", 505),
        (HEAD.pack(8, 1, 0) + b"\xce", 505),
        (HEAD.pack(0, 1, 0) + b"\xce", 501),
        (2 * method_frame(1, commands.Basic.Publish(routing_key="orders")), 505),
        (HEADER_OF_OTHERS, 505),
        (method_frame(1, commands.Basic.GetEmpty()), 503),
        (HEAD.pack(1, 1, 4) + b"\xff\xff\xff\xff\xce", 501),
        (method_frame(1, commands.Basic.Recover(requeue=False)), 540),
        (method_frame(1, commands.Channel.Flow(active=False)), 540),
    ],
)
async def test_a_wrong_frame_closes_the_connection(
    autojump_clock, frames: bytes, code: int
) -> None:
    async with site() as here:
        client = await here.connect()
        await client.stream.send_all(frames)

        await closed_with(client, code)


async def test_a_connection_that_ends_is_free_without_a_collection(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        consume = commands.Basic.Consume(queue="orders", consumer_tag="workers")
        await client.asks(consume, commands.Basic.ConsumeOk)
        await client.publish(LARGE, "orders")
        await client.hears(commands.Basic.Deliver)
        await client.send(commands.Basic.Publish(routing_key="orders"))  # without its content
        gc.collect()
        gc.disable()
        try:
            await trio.aclose_forcefully(client.stream)
            await wait_all_tasks_blocked()
            left = [each for each in gc.get_objects() if isinstance(each, ServedConnection)]
        finally:
            gc.enable()

    assert left == []


def test_exchanges_that_end_one_after_the_other_need_no_stack() -> None:
    table = RoutingTable()
    for number in range(5000):
        table.exchanges[f"e{number}"] = RoutingExchange(f"e{number}", "fanout", auto_delete=True)
    for number in range(4999):
        table.bind(binding(f"e{number}", f"e{number + 1}", "", {}, to_queue=False))
    table.delete_exchange("e4999")

    assert [name for name in table.exchanges if name.startswith("e")] == []
    assert len(table) == 0
    assert len(table.drain_removed()) == 9999
