"""Without `management`, the messages that receivers hold are counted."""

import pytest
import trio
import trio.testing
from pamqp import commands

from gateway.brokers.rabbitmq.own_receivers import Count, OwnReceivers
from gateway.brokers.rabbitmq.receiver import RabbitmqReceiver
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete
from tests.brokers.rabbitmq.broker import namespace_with_orders, numbered
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client
from tests.harness.patience import PATIENCE
from tests.harness.servers import frozen

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")


async def test_own_locked_messages_are_told_and_other_consumers_are_seen(rabbits: Nodes) -> None:
    async with namespace_with_orders(rabbits) as ours, client(ours.port) as other:
        theirs = Namespace(other, ours.name, ours.port)
        await ours.send(ORDERS, numbered(*range(5)))
        async with ours.open_receiver(ORDERS) as receiver:
            first, *_ = await receiver.receive(3)
            counts = await ours.inspect(ORDERS)
            seen = await theirs.inspect(ORDERS)
            await receiver.settle(first, Complete())
            with trio.fail_after(PATIENCE):
                while (settled := await ours.inspect(ORDERS)).active is None:  # noqa: ASYNC110 no event reports it
                    await trio.sleep(0.02)

    assert [(counts.active or 0) + counts.locked_here, counts.other_consumers] == [5, 0]
    assert (seen.active, seen.locked_here, seen.other_consumers) == (2, 0, 1)
    assert (settled.active or 0) + settled.locked_here == 4


async def test_of_a_queue_without_receivers_all_is_ready(rabbits: Nodes) -> None:
    async with namespace_with_orders(rabbits) as namespace:
        await namespace.send(ORDERS, numbered(1))
        info = await namespace.inspect(ORDERS)

    assert (info.active, info.locked_here, info.other_consumers) == (1, 0, 0)


async def test_the_keeper_of_a_backlog_receiver_is_nobody_else(rabbits: Nodes) -> None:
    queue = backlog.queue_name("kept", 0)
    async with rabbits.namespace("secondary") as namespace:
        await namespace.create_queue(queue, backlog.QUEUE_PROPERTIES)
        await namespace.send(queue, numbered(*range(5)))
        async with namespace.open_receiver(queue) as receiver:
            await receiver.receive(3)
            info = await namespace.inspect(queue)

    assert [(info.active or 0) + info.locked_here, info.other_consumers] == [5, 0]


async def test_consumers_that_end_are_nobody_else(rabbits: Nodes) -> None:
    queue = backlog.queue_name("left", 0)
    async with rabbits.namespace("secondary") as namespace:
        await namespace.create_queue(queue, backlog.QUEUE_PROPERTIES)
        await namespace.send(queue, numbered(*range(5)))
        seen = []
        for _ in range(20):
            async with namespace.open_receiver(queue) as receiver:
                await receiver.receive(1)
            seen.append((await namespace.inspect(queue)).other_consumers)

    assert seen == [0] * 20


async def test_a_count_is_repeated_if_a_receiver_is_closed_meanwhile(rabbits: Nodes) -> None:
    own, looks, counts = OwnReceivers(), [3, 4], list[Count]()

    async def look() -> commands.Queue.DeclareOk:
        await trio.lowlevel.checkpoint()
        return commands.Queue.DeclareOk("orders", looks.pop(0), 0)

    async def count() -> None:
        counts.append(await own.count(ORDERS, look))

    async with (
        namespace_with_orders(rabbits) as namespace,
        namespace.open_receiver(ORDERS) as receiver,
    ):
        assert isinstance(receiver, RabbitmqReceiver)
        await namespace.send(ORDERS, numbered(*range(4)))
        await receiver.receive(1)
        with own.registered(receiver, ORDERS):
            async with frozen(rabbits.process("primary")), trio.open_nursery() as nursery:
                nursery.start_soon(count)
                await trio.testing.wait_all_tasks_blocked()  # a frozen broker can't answer
                receiver.close()

    assert ([each.ready for each in counts], looks) == ([4], [])
