"""What RabbitMQ tells without `management` of messages that receivers hold."""

import pytest
import trio
from pamqp import commands

from gateway.brokers.rabbitmq.own_receivers import OwnReceivers
from gateway.brokers.rabbitmq.receiver import RabbitmqReceiver
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete
from tests.brokers.rabbitmq.nodes import Nodes, Room, client
from tests.brokers.rabbitmq.test_broker import numbered, room_with_orders

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")


async def test_own_locked_messages_are_told_and_other_consumers_are_seen(rabbits: Nodes) -> None:
    async with room_with_orders(rabbits) as ours, client(ours.port) as other:
        theirs = Room(other, ours.name, ours.port)
        await ours.send(ORDERS, numbered(*range(5)))
        async with ours.open_receiver(ORDERS) as receiver:
            first, *_ = await receiver.receive(3)
            holding = await ours.inspect(ORDERS)
            seen = await theirs.inspect(ORDERS)
            await receiver.settle(first, Complete())
            with trio.fail_after(5):
                while (settled := await ours.inspect(ORDERS)).active is None:  # noqa: ASYNC110 nobody tells
                    await trio.sleep(0.02)

    assert [(holding.active or 0) + holding.locked_here, holding.other_consumers] == [5, 0]
    assert (seen.active, seen.locked_here, seen.other_consumers) == (2, 0, 1)
    assert (settled.active or 0) + settled.locked_here == 4


async def test_of_a_queue_without_receivers_all_is_ready(rabbits: Nodes) -> None:
    async with room_with_orders(rabbits) as room:
        await room.send(ORDERS, numbered(1))
        info = await room.inspect(ORDERS)

    assert (info.active, info.locked_here, info.other_consumers) == (1, 0, 0)


async def test_the_keeper_of_a_backlog_receiver_is_nobody_else(rabbits: Nodes) -> None:
    queue = backlog.queue_name("kept", 0)
    async with rabbits.room("secondary") as room:
        await room.create_queue(queue, backlog.QUEUE_PROPERTIES)
        await room.send(queue, numbered(*range(5)))
        async with room.open_receiver(queue) as receiver:
            await receiver.receive(3)
            info = await room.inspect(queue)

    assert [(info.active or 0) + info.locked_here, info.other_consumers] == [5, 0]


async def test_consumers_that_end_are_nobody_else(rabbits: Nodes) -> None:
    queue = backlog.queue_name("left", 0)
    async with rabbits.room("secondary") as room:
        await room.create_queue(queue, backlog.QUEUE_PROPERTIES)
        await room.send(queue, numbered(*range(5)))
        seen = []
        for _ in range(20):
            async with room.open_receiver(queue) as receiver:
                await receiver.receive(1)
            seen.append((await room.inspect(queue)).other_consumers)

    assert seen == [0] * 20


async def test_a_count_is_repeated_if_a_receiver_is_closed_meanwhile(rabbits: Nodes) -> None:
    own, looks = OwnReceivers(), [3, 4]
    async with (
        room_with_orders(rabbits) as room,
        room.open_receiver(ORDERS) as receiver,
        trio.open_nursery() as nursery,
    ):
        assert isinstance(receiver, RabbitmqReceiver)
        await room.send(ORDERS, numbered(*range(4)))
        await receiver.receive(1)

        async def close() -> None:
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()  # the count has asked the channel by now
            receiver.close()

        async def look() -> commands.Queue.DeclareOk:
            await trio.lowlevel.checkpoint()
            nursery.start_soon(close)
            return commands.Queue.DeclareOk("orders", looks.pop(0), 0)

        with own.note(receiver, ORDERS):
            count = await own.count(ORDERS, look)

    assert (count.ready, looks) == (4, [])
