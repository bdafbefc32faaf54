"""An AMQP connection on a stream: its events, its waits, and its end."""

from functools import partial

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from gateway.net.amqp.connection import AmqpConnectionOptions
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    LinkFlow,
    NewLink,
    Terminus,
    TransferReceived,
)
from tests.net.amqp.peers import Peer, client_on, server_on

FORCED = AmqpError(condition="amqp:connection:forced", description="enough", info={"a": 1})


@pytest.fixture
async def pair(nursery):
    """A client and a server that have opened, in memory."""
    return await connect(nursery, memory_stream_pair())


async def connect(nursery, streams, of_client=None, **of_server):
    options = AmqpConnectionOptions(**of_client) if of_client else None
    client = Peer(client_on(streams[0], options=options))
    server = Peer(server_on(streams[1], **of_server), serves=True)
    client.connection.engine.open()
    nursery.start_soon(client.run)
    nursery.start_soon(server.run)
    await client.wait_for(ConnectionOpened)
    return client, server


async def attach(client, **fields):
    engine = client.connection.engine
    fields = {"name": "l", "we_send": True, "source": Terminus(address="s")} | fields
    link = engine.attach(engine.begin(), NewLink(target=Terminus(address="t"), **fields))
    await client.wait_for(LinkFlow if fields["we_send"] else LinkAttached)
    return link


async def test_messages_are_settled_without_anybody_flushing(pair):
    client, server = pair
    link = await attach(client)

    for number in range(100):
        client.connection.engine.send(link, bytes((number,)), bytes(1000))
    await client.wait_for(DispositionReceived, 100)

    assert server.count(TransferReceived) == 100


@pytest.mark.parametrize("streams", [memory_stream_pair, lockstep_stream_pair])
async def test_ticks_neither_lose_nor_repeat_what_arrives(nursery, streams):
    client, server = await connect(nursery, streams())
    server.connection.on_tick = lambda: trio.current_time() + 0.0001
    server.connection.tick_by(0)
    link = await attach(client)
    payloads = [b"%d" % number * 100 for number in range(300)]

    for tag, payload in enumerate(payloads):
        client.connection.engine.send(link, b"%d" % tag, payload)
        await trio.lowlevel.checkpoint()
    await client.wait_for(DispositionReceived, 300)

    transfers = [event for event in server.told if isinstance(event, TransferReceived)]
    assert [event.payload for event in transfers] == payloads


async def test_an_earlier_tick_can_be_asked_for(nursery, autojump_clock):
    _client, server = await connect(nursery, memory_stream_pair())
    ticks = []

    def on_tick():
        ticks.append(trio.current_time())
        return trio.current_time() + 10

    server.connection.on_tick = on_tick
    for when in (1, 5, 3):
        server.connection.tick_by(when)
    await trio.sleep(30)

    assert ticks == pytest.approx([1, 11, 21])


async def test_frames_that_several_calls_leave_go_in_one_write(nursery):
    writes = []
    ours, theirs = memory_stream_pair()
    ours.send_stream.send_all_hook = partial(count_write, writes, ours.send_stream.send_all_hook)
    client, _ = await connect(nursery, (ours, theirs))
    link = await attach(client)
    writes.clear()

    for number in range(100):
        client.connection.engine.send(link, bytes((number,)), b"small")
    await client.wait_for(DispositionReceived, 100)

    assert len(writes) == 1


async def count_write(writes, pump):
    await trio.lowlevel.checkpoint()
    writes.append(1)
    await pump()


async def test_a_close_is_answered_and_both_runs_return():
    ours, theirs = memory_stream_pair()
    client, server = Peer(client_on(ours)), Peer(server_on(theirs), serves=True)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            client.connection.engine.open()
            nursery.start_soon(client.run)
            nursery.start_soon(server.run)
            await client.wait_for(ConnectionOpened)
            await server.connection.close(FORCED)

    assert client.told[-1] == ConnectionClosed(error=FORCED)
    assert server.told[-1] == ConnectionClosed(error=None)


async def test_a_peer_that_does_not_answer_the_close_is_cut_off(nursery, autojump_clock):
    ours, theirs = memory_stream_pair()
    _client, server = await connect(nursery, (ours, theirs))
    ours.send_stream.send_all_hook = trio.sleep_forever

    await server.connection.close(FORCED)
    await wait_all_tasks_blocked()

    assert trio.current_time() == pytest.approx(5)
    assert isinstance(server.told[-1], ConnectionClosed)


async def test_a_peer_that_has_not_opened_is_cut_off_at_once(nursery, autojump_clock):
    _ours, theirs = memory_stream_pair()
    server = Peer(server_on(theirs), serves=True)
    nursery.start_soon(server.run)
    await wait_all_tasks_blocked()

    await server.connection.close(FORCED)
    await wait_all_tasks_blocked()

    assert trio.current_time() == pytest.approx(0)
    assert isinstance(server.told[-1], ConnectionClosed)


async def test_a_peer_that_never_opens_is_cut_off(autojump_clock):
    ours, theirs = memory_stream_pair()
    await ours.send_all(b"AMQP\x03\x01")
    server = Peer(server_on(theirs, options=AmqpConnectionOptions(open_timeout=7)))

    await server.run()

    assert trio.current_time() == pytest.approx(7)
    assert isinstance(server.told[-1], ConnectionClosed)


async def test_a_silent_peer_is_dropped_and_told(nursery, autojump_clock):
    ours, theirs = memory_stream_pair()
    client, server = await connect(nursery, (ours, theirs), idle_timeout=20)
    ours.send_stream.send_all_hook = trio.sleep_forever

    await trio.sleep(60)

    assert server.told[-1].error.condition == "amqp:resource-limit-exceeded"
    assert client.told[-1].error.condition == "amqp:resource-limit-exceeded"


async def test_a_silent_peer_is_dropped_in_the_middle_of_a_write(nursery, autojump_clock):
    ours, theirs = lockstep_stream_pair()
    client, server = await connect(nursery, (ours, theirs), idle_timeout=20)
    link = await attach(client, we_send=False)
    attached = await server.wait_for(LinkAttached)
    client.connection.engine.grant(link, 1)
    await server.wait_for(LinkFlow)
    ours.receive_stream.receive_some = ours.send_stream.send_all = sleep_forever

    server.connection.engine.send(attached.link, b"1", bytes(1_000_000))
    await trio.sleep(60)

    assert server.told[-1].error.condition == "amqp:resource-limit-exceeded"


async def sleep_forever(_):
    await trio.sleep_forever()


async def test_heartbeats_keep_an_idle_connection_alive(nursery, autojump_clock):
    client, server = await connect(nursery, memory_stream_pair(), idle_timeout=20)

    await trio.sleep(3600)

    assert client.count(ConnectionClosed) == server.count(ConnectionClosed) == 0


async def test_unsettled_messages_stop_the_reading(nursery, autojump_clock):
    streams = lockstep_stream_pair()
    limits = AmqpConnectionOptions(max_unsettled=100_000)
    client, server = await connect(nursery, streams, options=limits)
    server.settles = False
    link = await attach(client)
    for number in range(20):
        client.connection.engine.send(link, bytes((number,)), bytes(50_000))

    await wait_all_tasks_blocked()
    before = server.count(TransferReceived)
    server.settles = True
    for event in [event for event in server.told if isinstance(event, TransferReceived)]:
        server.connection.engine.settle(event.delivery, ACCEPTED)
    await client.wait_for(DispositionReceived, 20)

    assert before < 6
    assert server.count(TransferReceived) == 20


async def test_a_message_may_be_larger_than_what_stops_the_reading(nursery, autojump_clock):
    limits = AmqpConnectionOptions(max_unsettled=100_000)
    client, server = await connect(nursery, memory_stream_pair(), options=limits)
    link = await attach(client)

    client.connection.engine.send(link, b"1", bytes(250_000))
    client.connection.engine.send(link, b"2", bytes(1000))
    await client.wait_for(DispositionReceived, 2)

    sizes = [len(event.payload) for event in server.told if isinstance(event, TransferReceived)]
    assert sizes == [250_000, 1000]


async def test_time_in_which_nothing_is_read_does_not_count_for_a_message_in_part(
    nursery, autojump_clock
):
    limits = AmqpConnectionOptions(max_unsettled=100_000)
    client, server = await connect(
        nursery, memory_stream_pair(), options=limits, partial_timeout=10
    )
    server.settles = False
    link = await attach(client)
    client.connection.engine.send(link, b"1", bytes(60_000))
    client.connection.engine.send(link, b"2", bytes(90_000))
    first = await server.wait_for(TransferReceived)
    await wait_all_tasks_blocked()
    assert server.connection.engine.unsettled > 100_000  # the second has arrived in part
    assert server.count(TransferReceived) == 1

    await trio.sleep(200)
    server.connection.engine.settle(first.delivery, ACCEPTED)
    await server.wait_for(TransferReceived, 2)
    await trio.sleep(30)

    assert server.count(ConnectionClosed) == 0


async def test_a_writer_that_waits_for_room_waits_until_the_peer_has_read(nursery, autojump_clock):
    streams = lockstep_stream_pair()
    client, server = await connect(nursery, streams)
    link = await attach(client)
    server.settles = False
    client.connection.engine.send(link, b"1", bytes(3_000_000))

    with trio.fail_after(30):
        await client.connection.wait_for_room()

    assert client.connection.engine.unsent < 1024 * 1024


async def test_a_peer_that_asks_and_does_not_read_is_ended(nursery, autojump_clock):
    limits = AmqpConnectionOptions(max_unsent=100_000)
    client, server = await connect(
        nursery, lockstep_stream_pair(), of_client={"max_unsettled": 1}, options=limits
    )
    client.settles = False
    link = await attach(client, we_send=False)
    client.connection.engine.grant(link, 10)
    attached = await server.wait_for(LinkAttached)
    for size in (2, 200_000, 200_000):
        server.connection.engine.send(attached.link, bytes((size & 7,)), bytes(size))
    await wait_all_tasks_blocked()

    client.connection.engine.grant(link, 10)
    await trio.sleep(60)

    assert isinstance(server.told[-1], ConnectionClosed)


@pytest.mark.parametrize("idle_timeout", [240, 0])
@pytest.mark.parametrize(("pause", "is_ended"), [(235, False), (246, True)])
async def test_a_peer_that_lives_and_reads_nothing_is_ended_after_some_minutes(
    pause, is_ended, idle_timeout, nursery, autojump_clock
):
    ours, theirs = lockstep_stream_pair()
    # The client reads no further than the first message, doesn't miss the other side, and sends
    # heartbeats.
    options = AmqpConnectionOptions(max_unsettled=1000)
    client = Peer(client_on(ours, options=options, idle_timeout=0), settles=False)
    server = Peer(server_on(theirs, idle_timeout=idle_timeout), serves=True)
    client.connection.engine.open()
    nursery.start_soon(client.run)
    nursery.start_soon(server.run)
    await client.wait_for(ConnectionOpened)
    client.connection.engine.grant(await attach(client, we_send=False), 10)
    attached = await server.wait_for(LinkAttached)
    await trio.sleep(100)  # a write that begins between two ticks has its time, too, and no more
    for tag, size in ((b"1", 2000), (b"2", 500)):
        server.connection.engine.send(attached.link, tag, bytes(size))
        await wait_all_tasks_blocked()
    first = await client.wait_for(TransferReceived)
    await trio.sleep(pause)
    client.connection.engine.settle(first.delivery, ACCEPTED)
    if not is_ended:
        await client.wait_for(TransferReceived, 2)

    assert isinstance(server.told[-1], ConnectionClosed) is is_ended


async def test_a_reset_ends_the_connection_with_an_error(nursery):
    ours, theirs = memory_stream_pair()
    _client, server = await connect(nursery, (ours, theirs))

    await ours.send_stream.aclose()
    closed = await server.wait_for(ConnectionClosed)

    assert closed.error is not None


@pytest.mark.parametrize("pair_of_streams", [memory_stream_pair, lockstep_stream_pair])
async def test_a_cancellation_ends_at_once_and_is_told(pair_of_streams, autojump_clock):
    ours, theirs = pair_of_streams()
    client, server = Peer(client_on(ours)), Peer(server_on(theirs), serves=True)
    client.connection.engine.open()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when_opened, client, scope)
            await client.run()
        told_at = trio.current_time()

    assert scope.cancelled_caught
    assert told_at < 1
    assert isinstance(client.told[-1], ConnectionClosed)
    assert isinstance(server.told[-1], ConnectionClosed)


async def cancel_when_opened(client, scope):
    await client.wait_for(ConnectionOpened)
    scope.cancel()


async def test_a_connection_that_has_ended_keeps_nothing_that_waited_to_be_written(nursery):
    ours, theirs = memory_stream_pair()
    client, server = Peer(client_on(ours)), Peer(server_on(theirs), serves=True)
    engine, scope = client.connection.engine, trio.CancelScope()
    engine.open()

    async def run():
        with scope:
            await client.run()

    nursery.start_soon(server.run)
    nursery.start_soon(run)
    await client.wait_for(ConnectionOpened)
    link = await attach(client)
    for number in range(1001):  # one more than the server gives credit for
        engine.send(link, b"%d" % number, bytes(100))
    waited = engine.unsent

    scope.cancel()
    await server.wait_for(ConnectionClosed)

    assert waited > 100 * 1001
    assert engine.unsent == 0


async def test_a_cancellation_in_the_middle_of_a_write_closes_the_stream(autojump_clock):
    ours, theirs = lockstep_stream_pair()
    client = client_on(ours)
    client.engine.open()
    told = []

    with trio.move_on_after(1):
        await client.run(told.append)

    received = await theirs.receive_some()
    assert [type(event) for event in told] == [ConnectionClosed]
    assert b"AMQP\x03\x01\x00\x00".startswith(received)
    assert await theirs.receive_some() == b""


async def test_a_handler_that_raises_ends_its_connection_alone(nursery):
    streams = memory_stream_pair()
    client, other = await connect(nursery, memory_stream_pair())
    crashing = server_on(streams[1])
    seen = []

    def crash(event):
        seen.append(event)
        if isinstance(event, ConnectionOpened):
            raise ZeroDivisionError

    victim = Peer(client_on(streams[0]))
    victim.connection.engine.open()
    nursery.start_soon(victim.run)
    with pytest.RaisesGroup(ZeroDivisionError):
        await crashing.run(crash)
    await victim.wait_for(ConnectionClosed)
    await attach(client)

    assert [type(event) for event in seen] == [ConnectionOpened, ConnectionClosed]
    assert other.count(ConnectionClosed) == 0


async def test_garbage_is_answered_with_the_protocol_that_is_spoken_here():
    ours, theirs = memory_stream_pair()
    await ours.send_all(b"GET / HTTP/1.1\r\n\r\n")
    server = Peer(server_on(theirs), serves=True)

    await server.run()

    assert await ours.receive_some() == b"AMQP\x03\x01\x00\x00"
    assert isinstance(server.told[-1], ConnectionClosed)
