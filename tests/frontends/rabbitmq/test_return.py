"""Consumers that notice nothing of an outage of their primary, in virtual time."""

import pytest
import trio
from pamqp import commands

from tests.frontends.rabbitmq.peers import Harness, Peer, harness


async def returned(here: Harness, *, prefetch: bool = True) -> Peer:
    """The primary of the next connection, on which the channel is open, with its prefetch."""
    again = await here.next_primary()
    await again.hears(commands.Channel.Open)
    await again.send(1, commands.Channel.OpenOk())
    if prefetch:
        assert (await again.hears(commands.Basic.Qos)).prefetch_count == 5
        await again.send(1, commands.Basic.QosOk())
    return again


async def test_a_consumer_goes_on_after_an_outage(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.consumes(consumer_tag="workers", arguments={"x-priority": 3})
        await here.primary.deliver(1, b"one")
        await here.primary.deliver(2, b"two")
        await here.client.hears(commands.Basic.Deliver)
        await here.client.hears(commands.Basic.Deliver)
        await here.client.send(1, commands.Basic.Ack(1))
        await here.primary.hears(commands.Basic.Ack)
        await here.primary.stream.aclose()
        again = await returned(here)
        consume = await again.hears(commands.Basic.Consume)
        assert (consume.queue, consume.consumer_tag) == ("orders", "workers")
        assert consume.arguments == {"x-priority": 3}
        await again.send(1, commands.Basic.ConsumeOk("workers"))
        await again.deliver(1, b"two", redelivered=True)

        found = await here.client.hears(commands.Basic.Deliver)
        assert (found.delivery_tag, found.redelivered) == (3, True)
        await here.client.send(1, commands.Basic.Ack(2))  # lost
        await here.client.send(1, commands.Basic.Ack(3))
        assert (await again.hears(commands.Basic.Ack)).delivery_tag == 1


async def test_a_consumer_that_began_in_the_outage_gets_its_messages_after_it(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await here.client.send(1, commands.Basic.Consume(queue="orders", consumer_tag="late"))
        assert (await here.client.hears(commands.Basic.ConsumeOk)).consumer_tag == "late"
        again = await returned(here, prefetch=False)

        assert (await again.hears(commands.Basic.Consume)).consumer_tag == "late"


async def test_a_channel_knows_its_last_queue_after_an_outage(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        declared = commands.Queue.DeclareOk("orders", 0, 0)
        await here.asks(commands.Queue.Declare(queue="orders", durable=True), declared)
        await here.primary.stream.aclose()
        again = await returned(here, prefetch=False)
        await trio.testing.wait_all_tasks_blocked()
        await here.client.send(1, commands.Basic.Get())

        assert (await again.hears(commands.Basic.Get)).queue == "orders"


async def test_a_message_that_the_primary_could_not_finish_leaves_no_trace(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.consumes(consumer_tag="workers")
        deliver = commands.Basic.Deliver("workers", 1, False, "", "orders")
        await here.primary.send(1, deliver)  # without its content
        await here.primary.stream.aclose()
        again = await returned(here)
        await again.hears(commands.Basic.Consume)
        await again.send(1, commands.Basic.ConsumeOk("workers"))
        await again.deliver(1, b"whole")

        assert (await here.client.hears(commands.Basic.Deliver)).delivery_tag == 1


async def test_a_stream_goes_on_behind_the_last_message(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.consumes(consumer_tag="workers", arguments={"x-stream-offset": "first"})
        await here.primary.deliver(1, b"one", headers={"x-stream-offset": 2**40})
        await here.client.hears(commands.Basic.Deliver)
        await here.primary.stream.aclose()
        again = await returned(here)

        consume = await again.hears(commands.Basic.Consume)
        assert consume.arguments == {"x-stream-offset": 2**40 + 1}


async def test_an_exclusive_consumer_waits_until_the_old_connection_is_gone(autojump_clock):
    text = "ACCESS_REFUSED - queue 'orders' in vhost '/' in exclusive use"
    async with harness() as here:
        await here.confirmed_once()
        await here.consumes(consumer_tag="workers", exclusive=True)
        await here.primary.stream.aclose()
        again = await returned(here)
        await again.hears(commands.Basic.Consume)
        await again.send(1, commands.Channel.Close(403, text, 60, 20))
        await again.hears(commands.Channel.CloseOk)

        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await again.hears(commands.Basic.Qos)
        await again.send(1, commands.Basic.QosOk())
        assert (await again.hears(commands.Basic.Consume)).exclusive


async def test_a_settlement_reaches_the_primary_while_the_next_consumer_is_set_up(
    autojump_clock,
):
    async with harness() as here:
        await here.confirmed_once()
        await here.consumes(consumer_tag="workers")
        other = commands.Basic.Consume(queue="others", consumer_tag="others")
        await here.asks(other, commands.Basic.ConsumeOk("others"))
        await here.primary.stream.aclose()
        again = await returned(here)
        await again.hears(commands.Basic.Consume)
        await again.send(1, commands.Basic.ConsumeOk("workers"))
        await again.deliver(1, b"one")
        await again.hears(commands.Basic.Consume)
        await here.client.hears(commands.Basic.Deliver)
        await here.client.send(1, commands.Basic.Ack(1))

        assert (await again.hears(commands.Basic.Ack)).delivery_tag == 1


async def test_a_queue_that_is_gone_ends_its_consumer_alone(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.consumes(consumer_tag="workers")
        await here.primary.stream.aclose()
        again = await returned(here)
        await again.hears(commands.Basic.Consume)
        await again.send(1, commands.Channel.Close(404, "NOT_FOUND - no queue 'orders'", 60, 20))

        assert (await here.client.hears(commands.Basic.Cancel)).consumer_tag == "workers"
        await again.hears(commands.Channel.CloseOk)
        await again.hears(commands.Channel.Open)


async def test_a_request_without_an_answer_is_asked_again(autojump_clock):
    declare = commands.Queue.Declare(queue="others", durable=True)
    async with harness() as here:
        await here.confirmed_once()
        await here.client.send(1, declare)
        await here.primary.hears(commands.Queue.Declare)
        await here.primary.stream.aclose()
        again = await returned(here, prefetch=False)

        await again.hears(commands.Queue.Declare)
        await again.send(1, commands.Queue.DeclareOk("others", 3, 1))
        assert (await here.client.hears(commands.Queue.DeclareOk)).message_count == 3


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (commands.Basic.Get(queue="orders"), commands.Basic.GetEmpty),
        (commands.Basic.Qos(prefetch_count=7), commands.Basic.QosOk),
        (commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk),
        (commands.Basic.Cancel("nobody"), commands.Basic.CancelOk),
        (commands.Confirm.Select(), commands.Confirm.SelectOk),
    ],
    ids=["get", "qos", "recover", "cancel", "confirms"],
)
async def test_some_requests_are_answered_in_an_outage(autojump_clock, asked, answer):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await here.client.send(1, asked)

        await here.client.hears(answer)


async def test_a_settlement_of_what_was_never_delivered_is_an_error_in_an_outage_too(
    autojump_clock,
):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await here.client.send(1, commands.Basic.Ack(9))

        close = await here.client.hears(commands.Channel.Close)
        assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 80)
        assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 9"


async def test_a_transaction_cannot_outlive_its_connection(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.send(2, commands.Channel.Open())
        await here.primary.hears(commands.Channel.Open)
        await here.primary.send(2, commands.Channel.OpenOk())
        await here.client.hears(commands.Channel.OpenOk)
        await here.client.send(2, commands.Tx.Select())
        await here.primary.hears(commands.Tx.Select)
        await here.primary.stream.aclose()

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320
