"""A refusal of a queue that is full, and one of a queue without a leader, by a scripted broker."""

import math

import pytest
import trio
from pamqp import commands

from gateway.brokers.rabbitmq.sender import LeaderUnknown
from gateway.domain.errors import QuotaExceeded
from gateway.domain.message import Message
from gateway.wire.rabbitmq.properties import prepare
from tests.net.rabbitmq.connection import Peer, sender_on

ONE = [prepare(Message(message_id="1"))]


async def script(peer: Peer, *answers: type[commands.Basic.Ack | commands.Basic.Nack]) -> None:
    await peer.open_lane()
    for tag, answer in enumerate(answers, 2):
        await peer.read_until(commands.Basic.Publish)
        await peer.say(1, answer(tag))


async def test_a_first_message_that_is_refused_may_have_found_no_leader(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        sender = sender_on(await peer.open(nursery))
        nursery.start_soon(script, peer, commands.Basic.Nack)
        with pytest.raises(LeaderUnknown):
            await sender.send("orders", ONE, led_since=math.inf)

        await peer.read_until(commands.Channel.Close)  # the channel would refuse for ever
        nursery.cancel_scope.cancel()


async def test_once_a_queue_has_taken_a_message_a_refusal_says_that_it_is_full(
    autojump_clock,
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        sender = sender_on(await peer.open(nursery))
        nursery.start_soon(script, peer, commands.Basic.Ack, commands.Basic.Nack)
        await sender.send("orders", ONE, led_since=math.inf)
        with pytest.raises(QuotaExceeded):
            await sender.send("orders", ONE, led_since=math.inf)

        nursery.cancel_scope.cancel()


async def test_on_a_channel_opened_after_a_leader_was_seen_a_refusal_says_that_it_is_full(
    autojump_clock,
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        sender = sender_on(await peer.open(nursery))
        nursery.start_soon(script, peer, commands.Basic.Nack)
        with pytest.raises(QuotaExceeded):
            await sender.send("orders", ONE, led_since=trio.current_time())

        nursery.cancel_scope.cancel()
