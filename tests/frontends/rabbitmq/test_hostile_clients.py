"""A client that reads nothing, or says more than it may, harms itself alone."""

import gc
import tracemalloc
from contextlib import suppress

import pytest
import trio
from pamqp import commands
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from gateway.frontends.rabbitmq.outbox import HIGH_WATER, Outbox
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.frames import HEAD, method_frame
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER, FrameReader, RelayedContent
from tests.frontends.rabbitmq.peers import SLOW, harness, with_content

LARGE = b"x" * (HIGH_WATER + 1)
PUBLISH = commands.Basic.Publish(routing_key="orders")
NEVER = 2**30 - 9  # bytes of a frame that nobody may send


def delivery(tag: int) -> bytes:
    return with_content(commands.Basic.Deliver("workers", tag, False, "", "orders"), LARGE)


async def test_a_client_that_reads_nothing_is_no_outage_of_its_queue(autojump_clock):
    async with harness(streams=lockstep_stream_pair) as here:
        await here.confirmed_once()
        await here.consumes()
        await here.primary.stream.send_all(delivery(1))
        await here.primary.stream.send_all(delivery(2))
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(1, commands.Basic.Ack(2))
        await trio.sleep(20 * SLOW)

        assert here.states.evidence == ["orders sent"]


async def test_a_return_comes_before_the_answer_to_confirm_select(autojump_clock):
    async with harness() as here:
        await here.client.send(1, commands.Channel.Open())
        await here.primary.hears(commands.Channel.Open)
        await here.primary.send(1, commands.Channel.OpenOk())
        await here.client.hears(commands.Channel.OpenOk)
        await here.client.publish(b"first", exchange="events")
        await here.client.send(1, commands.Confirm.Select())

        await here.primary.hears(commands.Confirm.Select)
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.hears(commands.Confirm.Select)
        returned = commands.Basic.Return(312, "NO_ROUTE", "events", "orders")
        await here.primary.stream.send_all(with_content(returned, b"first"))
        await here.primary.send(1, commands.Basic.Ack(1), commands.Confirm.SelectOk())
        await here.client.hears(commands.Basic.Return)
        await here.client.hears(commands.Confirm.SelectOk)


async def test_the_rest_of_a_client_that_closes_is_read(autojump_clock):
    async with harness(streams=lockstep_stream_pair) as here:
        await here.confirmed_once()
        await here.client.send(0, commands.Connection.Close(200, "", 0, 0))
        await here.primary.hears(commands.Connection.Close)
        await here.primary.send(0, commands.Connection.CloseOk())
        await here.client.hears(commands.Connection.CloseOk)

        with trio.fail_after(1):  # it was on its way before the answer was read
            await here.client.publish(b"late")
            await here.client.publish(b"later")


@pytest.mark.parametrize("frame_max", [0, 2**30])
async def test_a_frame_has_the_size_that_the_primary_allows(autojump_clock, frame_max):
    async with harness(frame_max=frame_max) as here:
        await here.client.stream.send_all(HEAD.pack(1, 1, NEVER))

        close = await here.client.hears(commands.Connection.Close)
        assert close.reply_code == 501


async def test_answers_that_nobody_reads_are_bounded(autojump_clock):
    outbox = Outbox()
    outbox.put(LARGE)  # of the primary
    await outbox.wait_for_answers()
    outbox.put_answer(LARGE)

    with trio.move_on_after(60) as waited:
        await outbox.wait_for_answers()
    assert waited.cancelled_caught


async def test_a_client_that_asks_without_reading_is_not_read(autojump_clock):
    get, asked = method_frame(1, commands.Basic.Get(queue="orders")), 0

    async def ask_without_end() -> None:
        nonlocal asked
        while True:
            await here.client.stream.send_all(100 * get)
            asked += 100

    async with harness(streams=lockstep_stream_pair) as here:
        await here.confirmed_once()
        here.nursery.start_soon(ask_without_end)
        await trio.sleep(SLOW / 4)
        assert asked == 1100
        for _ in range(500):
            await here.primary.hears(commands.Basic.Get)
        await here.primary.send(1, *500 * [commands.Basic.GetEmpty()])
        await trio.sleep(SLOW / 4)

        assert asked == 1600


async def test_a_client_that_asks_without_reading_is_given_up_after_its_heartbeats(autojump_clock):
    interval = 10
    get = method_frame(1, commands.Basic.Get(queue="orders"))
    async with harness(streams=lockstep_stream_pair, heartbeat=interval) as here:
        await here.confirmed_once()
        await here.consumes()
        await here.primary.stream.send_all(delivery(1))
        began = trio.current_time()
        with trio.fail_after(10 * interval), suppress(trio.BrokenResourceError):
            while True:
                await here.client.stream.send_all(100 * get)

        assert 2 * interval < trio.current_time() - began < 3 * interval


async def test_a_frame_before_the_login_is_small(autojump_clock):
    async with harness() as here:
        other = here.connect()
        await other.stream.send_all(PROTOCOL_HEADER + HEAD.pack(1, 0, 16 * 1024 + 1))

        assert (await other.hears(commands.Connection.Close)).reply_code == 501


async def test_others_run_between_the_frames_of_one_read(autojump_clock):
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with harness() as here:
        await here.confirmed_once()
        await here.consumes()
        here.nursery.start_soon(count)
        acks = [method_frame(1, commands.Basic.Ack(tag)) for tag in range(1, 2001)]
        await here.client.stream.send_all(b"".join(acks))
        for _ in acks:
            await here.primary.hears(commands.Basic.Ack)

        assert passes > 2000 / 50


async def test_a_connection_with_too_much_of_its_own_ends_with_that_to_the_primary(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        large = commands.Queue.Declare(queue="q", exclusive=True, arguments={"x": "y" * 2000})
        await here.asks(large, commands.Queue.DeclareOk("q", 0, 0))
        await here.primary.stream.aclose()

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320


def test_a_publish_without_a_confirm_counts_with_the_memory_that_it_takes():
    reader = FrameReader()
    publish = with_content(commands.Basic.Publish(routing_key="q"), b"x")
    kept = []
    tracemalloc.start()
    try:
        for _ in range(1000):
            method, *others = reader.feed(publish)
            kept.append(RelayedContent(method))
            for each in others:
                kept[-1].add(each, 100)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sum(each.size for each in kept) >= taken


async def test_too_much_of_a_client_in_an_outage_ends_its_connection(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        here.is_down = True
        await here.primary.stream.aclose()
        await wait_all_tasks_blocked()
        large = {"x": "y" * 2000}
        await here.client.send(1, commands.Basic.Consume(queue="orders", arguments=large))

        await here.client.hears(commands.Basic.ConsumeOk)
        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320


async def test_the_bytes_of_a_connection_that_ends_are_free_without_a_collection(autojump_clock):
    async def drop() -> None:
        while await here.primary.stream.receive_some():
            pass

    async with harness() as here:
        await here.confirmed_once()
        here.nursery.start_soon(drop)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(4):
                await here.client.stream.send_all(with_content(PUBLISH, LARGE))
            await here.client.stream.send_all(with_content(PUBLISH, LARGE)[:-1])
            await wait_all_tasks_blocked()
            held, _ = tracemalloc.get_traced_memory()
            await here.client.stream.aclose()
            await wait_all_tasks_blocked()
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()

        assert not any(isinstance(each, ClientSession) for each in gc.get_objects())

    assert held > 5 * len(LARGE)
    assert left < len(LARGE)
