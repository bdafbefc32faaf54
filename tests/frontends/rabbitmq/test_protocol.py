"""The rules that the protocol has for a broker, in health and in an outage."""

import pytest
import trio
from pamqp import commands, header

from gateway.wire.rabbitmq.frames import HEARTBEAT, HEARTBEAT_FRAME, content_frames, method_frame
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER, FrameReader
from tests.frontends.rabbitmq.peers import Peer, harness, log_in

INTERVAL = 10  # seconds between heartbeats


async def frames_of(peer, seconds):
    """The frames that arrive within that time; it ends early where the connection does."""
    reader, frames = FrameReader(), []
    with trio.move_on_after(seconds):
        while data := await peer.stream.receive_some():
            frames += reader.feed(bytes(data))
    return frames


async def has_ended(peer, seconds):
    """True if the connection has ended within that time."""
    with trio.move_on_after(seconds):
        while await peer.stream.receive_some():
            pass
        return True
    return False


@pytest.mark.parametrize("side", ["client", "primary"])
async def test_heartbeats_go_to_both_sides(autojump_clock, side):
    async with harness(heartbeat=INTERVAL) as here:
        frames = await frames_of(getattr(here, side), 2 * INTERVAL)

    assert len([each for each in frames if each.kind == HEARTBEAT]) >= 2


async def test_a_silent_client_is_given_up(autojump_clock):
    async with harness(heartbeat=INTERVAL) as here:
        assert not await has_ended(here.client, 2 * INTERVAL)
        assert await has_ended(here.client, INTERVAL)


async def test_a_silent_primary_is_given_up_and_the_client_stays(autojump_clock):
    async with harness(heartbeat=INTERVAL) as here, trio.open_nursery() as nursery:
        nursery.start_soon(beat, here.client)
        began = trio.current_time()
        await here.next_primary()
        assert 2 * INTERVAL < trio.current_time() - began < 3 * INTERVAL
        assert not await has_ended(here.client, 3 * INTERVAL)
        nursery.cancel_scope.cancel()


async def beat(peer: Peer) -> None:
    while True:
        await peer.stream.send_all(HEARTBEAT_FRAME)
        await trio.sleep(INTERVAL / 2)


@pytest.mark.parametrize("said", [b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00", b"GET / HT"])
async def test_a_foreign_protocol_is_told_which_one_is_spoken(autojump_clock, said):
    async with harness() as here:
        client = here.connect()
        await client.stream.send_all(said)

        assert bytes(await client.stream.receive_some()) == PROTOCOL_HEADER
        assert await has_ended(client, 1)


async def test_the_login_passes_as_the_client_wrote_it(autojump_clock):
    properties = {"connection_name": "orders", "capabilities": {"authentication_failure_close": 1}}
    start = commands.Connection.StartOk(properties, "PLAIN", "\0anna\0wrong", "en_US")
    refused = commands.Connection.Close(403, "ACCESS_REFUSED - Login was refused", 0, 0)
    async with harness() as here:
        client, primary = await here.begins_login()
        await client.send(0, start)
        told = await primary.hears(commands.Connection.StartOk)
        await primary.send(0, refused)
        close = await client.hears(commands.Connection.Close)

    assert told.client_properties == properties
    assert (close.reply_code, close.reply_text) == (403, refused.reply_text)


async def test_a_refusal_without_a_word_closes_the_clients_socket(autojump_clock):
    async with harness() as here:
        client = here.connect()
        await client.stream.send_all(PROTOCOL_HEADER)
        primary = await here.dialled.receive()
        await primary.stream.aclose()
        here.is_down = True

        assert await has_ended(client, 20)


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
async def test_a_login_of_one_step_is_known_in_an_outage(autojump_clock, mechanism):
    async with harness(mechanism=mechanism) as here:
        here.is_down = True
        await here.primary.stream.aclose()
        with trio.fail_after(20):
            await log_in(here.connect(), mechanism=mechanism)


async def test_a_login_of_several_steps_waits_for_the_primary(autojump_clock):
    async with harness(mechanism="RABBIT-CR-DEMO") as here:
        here.is_down = True
        await here.primary.stream.aclose()
        client = here.connect()
        with pytest.raises(AssertionError, match=r"Connection\.Close"):
            await log_in(client, mechanism="RABBIT-CR-DEMO")


async def test_more_channels_than_allowed_end_the_connection(autojump_clock):
    async with harness(channel_max=3) as here:
        opens = [method_frame(number, commands.Channel.Open()) for number in range(1, 5)]
        await here.client.stream.send_all(b"".join(opens))

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 501


@pytest.mark.parametrize("piece", [1, 7, 4096])
async def test_contents_of_two_channels_pass_in_order_wherever_they_are_cut(autojump_clock, piece):
    async with harness() as here:
        for number in (1, 2):
            await here.client.send(number, commands.Channel.Open(), commands.Tx.Select())
        arrived = b""
        parts = []
        for number, body in ((1, b"one" * 9), (2, b"two" * 9)):
            head = header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties())
            publish = method_frame(number, commands.Basic.Publish(routing_key="orders"))
            content = b"".join(content_frames(number, head.marshal(), body, 24))
            parts.append([each.data for each in FrameReader().feed(publish + content)])
        sent = b"".join(frame for pair in zip(*parts, strict=True) for frame in pair)
        for at in range(0, len(sent), piece):
            await here.client.stream.send_all(sent[at : at + piece])
        with trio.fail_after(5):
            while not arrived.endswith(b"".join(parts[1])):
                data = await here.primary.stream.receive_some()
                assert data, "the connection has ended"
                arrived += data

    assert arrived.endswith(b"".join(parts[0]) + b"".join(parts[1]))


async def test_a_request_without_an_answer_gets_none_in_an_outage(autojump_clock):
    declare = commands.Queue.Declare(queue="own", exclusive=True, nowait=True)
    async with harness() as here:
        await here.client.send(1, commands.Channel.Open())
        await here.primary.hears(commands.Channel.Open)
        await here.primary.send(1, commands.Channel.OpenOk())
        await here.client.hears(commands.Channel.OpenOk)
        here.is_down = True
        await here.primary.stream.aclose()
        await trio.sleep(1)
        await here.client.send(1, declare, commands.Basic.Qos(prefetch_count=1))
        await here.client.hears(commands.Basic.QosOk)
