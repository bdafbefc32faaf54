"""
`tx.select` on a channel that has published without confirms. The gateway has selected them at the
primary, which takes no transaction there until the channel is opened again.
"""

import pytest
import trio
from pamqp import base, commands

from gateway.wire.rabbitmq.frames import HEARTBEAT_FRAME, method_frame
from tests.frontends.rabbitmq.peers import SLOW, Harness, Peer, harness, with_content

PUBLISH = commands.Basic.Publish(routing_key="orders")
CONSUME = commands.Basic.Consume(queue="orders", consumer_tag="workers")
GET = commands.Basic.Get(queue="orders")
GET_OF_LAST = commands.Basic.Get()


async def publish_without_confirms(here: Harness) -> None:
    """The client publishes on a channel with a prefetch."""
    await here.client.send(1, commands.Channel.Open())
    await here.primary.hears(commands.Channel.Open)
    await here.primary.send(1, commands.Channel.OpenOk())
    await here.client.hears(commands.Channel.OpenOk)
    await here.asks(commands.Basic.Qos(prefetch_count=5), commands.Basic.QosOk())
    await here.client.publish(b"first")
    await here.primary.hears(commands.Confirm.Select)
    await here.primary.hears(commands.Basic.Publish)


async def hears_again(primary: Peer) -> None:
    """The primary hears that the channel is closed, and opened again with its prefetch."""
    await primary.hears(commands.Channel.Close)
    assert await is_silent(primary)  # RabbitMQ takes no `open` before its answer
    await primary.send(1, commands.Channel.CloseOk())
    await primary.hears(commands.Channel.Open)
    await primary.send(1, commands.Channel.OpenOk())
    assert (await primary.hears(commands.Basic.Qos)).prefetch_count == 5
    await primary.send(1, commands.Basic.QosOk())


async def is_silent(primary: Peer) -> bool:
    with trio.move_on_after(SLOW / 4):
        await primary.next()
        return False
    return True


async def test_a_transaction_begins_once_earlier_publishes_are_confirmed(autojump_clock):
    async with harness() as here:
        await publish_without_confirms(here)
        select = method_frame(1, commands.Tx.Select())
        await here.client.stream.send_all(select + with_content(PUBLISH, b"second"))
        assert await is_silent(here.primary)
        await here.primary.send(1, commands.Basic.Ack(1))
        await hears_again(here.primary)

        await here.primary.hears(commands.Tx.Select)
        await here.primary.send(1, commands.Tx.SelectOk())
        await here.primary.hears(commands.Basic.Publish)  # and no `confirm.select` before it
        await here.client.hears(commands.Tx.SelectOk)
        assert here.pair.sent == []


async def test_a_publish_that_is_late_is_stored_before_a_transaction_begins(autojump_clock):
    async with harness() as here:
        await publish_without_confirms(here)
        await here.primary.send(1, commands.Basic.Ack(1))
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await trio.sleep(SLOW / 2)
        await here.primary.send(0, commands.Connection.Unblocked())  # it's alive
        await here.client.send(1, commands.Tx.Select())
        assert await is_silent(here.primary)
        await hears_again(here.primary)

        await here.primary.hears(commands.Tx.Select)
        assert here.pair.bodies() == [b"second"]


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (CONSUME, method_frame(1, commands.Basic.ConsumeOk("workers"))),
        (GET, with_content(commands.Basic.GetOk(1, False, "", "orders", 0), b"first")),
    ],
)
async def test_a_channel_that_would_lose_deliveries_is_left_to_the_primary(
    autojump_clock, request_: base.Frame, answer: bytes
):
    async with harness() as here:
        await publish_without_confirms(here)
        await here.primary.send(1, commands.Basic.Ack(1))
        await here.client.send(1, request_, commands.Tx.Select())
        await here.primary.hears(type(request_))
        assert await is_silent(here.primary)  # its answer says whether there are deliveries
        await here.primary.stream.send_all(answer)
        await here.primary.hears(commands.Tx.Select)
        text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
        await here.primary.send(1, commands.Channel.Close(406, text, 90, 10))

        await here.client.next()  # the answer to the request
        assert (await here.client.hears(commands.Channel.Close)).reply_text == text


async def test_a_channel_whose_client_selected_confirms_is_left_to_the_primary(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.send(1, commands.Tx.Select())

        await here.primary.hears(commands.Tx.Select)


async def test_a_channel_without_a_verdict_for_long_is_left_to_the_primary(autojump_clock):
    async with harness("other") as here:  # a vhost whose publishes the pair never has
        await publish_without_confirms(here)
        began = trio.current_time()
        await here.client.send(1, commands.Tx.Select())
        with trio.fail_after(60):
            await here.primary.hears(commands.Tx.Select)

        assert trio.current_time() - began == pytest.approx(10, abs=1)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_no_transaction_begins_at_a_primary_that_was_lost_meanwhile(
    autojump_clock, is_closed: bool
):
    async with harness() as here:
        await publish_without_confirms(here)
        await here.client.send(1, commands.Tx.Select())
        if is_closed:
            await here.primary.send(1, commands.Basic.Ack(1))
            await here.primary.hears(commands.Channel.Close)
        await here.primary.stream.aclose()

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320


async def test_a_client_that_waits_for_its_transaction_is_not_silent(autojump_clock):
    interval = 3
    async with harness("other", heartbeat=interval) as here:
        await publish_without_confirms(here)
        await here.client.send(1, commands.Tx.Select())
        for _ in range(6):  # three intervals: after two and a half a peer is given up
            await here.client.stream.send_all(HEARTBEAT_FRAME)
            await here.primary.stream.send_all(HEARTBEAT_FRAME)
            await trio.sleep(interval / 2)
        await here.primary.send(1, commands.Basic.Ack(1))
        await hears_again(here.primary)

        await here.primary.hears(commands.Tx.Select)
        await here.primary.send(1, commands.Tx.SelectOk())
        await here.client.hears(commands.Tx.SelectOk)


async def test_a_connection_whose_channel_is_not_opened_again_ends(autojump_clock):
    async with harness() as here:
        await publish_without_confirms(here)
        await here.primary.send(1, commands.Basic.Ack(1))
        began = trio.current_time()
        await here.client.send(1, commands.Tx.Select())
        await here.primary.hears(commands.Channel.Close)

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320
        assert trio.current_time() - began == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    "request_",
    [
        commands.Basic.Get(),
        commands.Basic.Consume(consumer_tag="workers"),
        commands.Queue.Purge(),
        commands.Queue.Delete(),
        commands.Queue.Bind(exchange="amq.direct"),
    ],
)
async def test_a_channel_that_is_opened_again_knows_its_last_queue(autojump_clock, request_):
    async with harness() as here:
        await publish_without_confirms(here)
        await here.primary.send(1, commands.Basic.Ack(1))
        await here.asks(commands.Queue.Declare(), commands.Queue.DeclareOk("amq.gen-1", 0, 0))
        await begin_transaction(here)
        await here.client.send(1, request_)

        heard = await here.primary.hears(type(request_))
        assert heard.queue == "amq.gen-1"
        assert getattr(heard, "routing_key", "amq.gen-1") == "amq.gen-1"


async def test_a_queue_that_is_declared_after_the_channel_is_opened_again_is_its_last(
    autojump_clock,
):
    async with harness() as here:
        await publish_without_confirms(here)
        await here.primary.send(1, commands.Basic.Ack(1))
        await here.asks(commands.Queue.Declare(), commands.Queue.DeclareOk("amq.gen-1", 0, 0))
        await begin_transaction(here)
        await here.client.send(1, commands.Queue.Declare(), GET_OF_LAST)

        await here.primary.hears(commands.Queue.Declare)  # which has no answer yet
        assert (await here.primary.hears(commands.Basic.Get)).queue == ""


async def begin_transaction(here: Harness) -> None:
    await here.client.send(1, commands.Tx.Select())
    await hears_again(here.primary)
    await here.primary.hears(commands.Tx.Select)
    await here.primary.send(1, commands.Tx.SelectOk())
    await here.client.hears(commands.Tx.SelectOk)
