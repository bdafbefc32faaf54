"""A receiver holds a limited number of messages of a live node, which counts them itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Delivery, Message
from gateway.ports import Receiver
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import control

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")
BODY = bytes(64 * 1024)
HEADER = 1024  # bytes at most that come on top
MANY = 200
MAX_HELD = 2 * 1024 * 1024
LIMIT = 20  # of one receive
SILENCE = 6.0  # seconds: who gets nothing for so long, waits


async def hoard(receiver: Receiver, found: set[str | None]) -> None:
    """Receive all messages that the receiver hands out to a consumer that settles nothing."""
    while True:
        with trio.move_on_after(SILENCE) as waiting:
            found |= {each.message.message_id for each in await receiver.receive(LIMIT)}
        if waiting.cancelled_caught and len(found) * len(BODY) > MAX_HELD / 2:
            return


async def unsettled(nodes: Nodes, namespace: Namespace, at_least: int) -> int:
    """
    Return the number of unsettled deliveries as soon as the node counts `at_least` of them.

    The node counts them every few seconds.
    """
    process, name = nodes.process("primary"), namespace.inside(ORDERS).name
    while True:
        listed = await control(process, "list_queues", "name", "messages_unacknowledged")
        found = dict(line.split("\t") for line in listed.splitlines())
        if int(found[name]) >= at_least:
            return int(found[name])
        await trio.sleep(0.5)


@asynccontextmanager
async def full_queue(nodes: Nodes) -> AsyncIterator[Namespace]:
    """A queue with far more than a receiver of that client may hold."""
    async with (
        nodes.namespace("primary") as maker,
        client(maker.port, max_unsettled_bytes=MAX_HELD) as broker,
    ):
        await maker.create_queue(ORDERS, QueueProperties())
        namespace = Namespace(broker, maker.name, maker.port)
        await namespace.send(ORDERS, [Message(message_id=str(n), body=BODY) for n in range(MANY)])
        yield namespace


async def test_a_receiver_that_settles_nothing_holds_no_more_than_the_limit_and_one_batch(
    rabbits: Nodes,
) -> None:
    taken: set[str | None] = set()
    async with full_queue(rabbits) as namespace, namespace.open_receiver(ORDERS) as receiver:
        with trio.fail_after(PATIENCE):
            await hoard(receiver, taken)
            held = await unsettled(rabbits, namespace, len(taken))

    assert MAX_HELD / (len(BODY) + HEADER) <= held <= MAX_HELD / len(BODY) + LIMIT


async def test_a_receiver_that_waits_for_room_goes_on_as_soon_as_something_is_settled(
    rabbits: Nodes,
) -> None:
    done: set[str | None] = set()
    held: list[Delivery] = []
    async with full_queue(rabbits) as namespace, namespace.open_receiver(ORDERS) as receiver:

        async def take() -> None:
            held.extend(await receiver.receive(LIMIT))

        with trio.fail_after(PATIENCE):
            while len(done) < MANY:
                while len(held) < min(MAX_HELD // len(BODY), MANY - len(done)):
                    await take()
                async with trio.open_nursery() as nursery:
                    if len(done) + len(held) < MANY:
                        nursery.start_soon(take)
                    # The receive waits: no further message may be held.
                    await wait_all_tasks_blocked()
                    for each in tuple(held):
                        held.remove(each)
                        await receiver.settle(each, Complete())
                        done.add(each.message.message_id)

    assert done == {str(n) for n in range(MANY)}
