"""A receiver of a namespace that Pairgate keeps itself."""

import random
from typing import Any

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Unavailable
from gateway.domain.message import Message
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.receiver import LocalReceiver
from tests.harness.clocks import VirtualClock

ORDERS = EntityPath("orders")


class Late(MemoryBroker):
    """A namespace whose answers are on their way for a second; no cancellation stops them."""

    late = 0.0

    async def on_queue(self, entity: EntityPath, work: Any, **how: Any) -> Any:
        answer = await super().on_queue(entity, work, **how)
        with trio.CancelScope(shield=True):
            await trio.sleep(self.late)
        return answer


async def closed_while_it_receives(receiver: LocalReceiver) -> None:
    with pytest.raises(Unavailable):
        await receiver.receive(1)


async def test_messages_that_arrive_at_a_closed_receiver_are_available_at_once(
    autojump_clock,
) -> None:
    broker = Late(VirtualClock(), random.Random(0))
    await broker.create_queue(ORDERS, QueueProperties())
    await broker.send(ORDERS, [Message(body=b"x")])
    async with trio.open_nursery() as nursery, broker.open_receiver(ORDERS) as receiver:
        broker.late = 1.0
        nursery.start_soon(closed_while_it_receives, receiver)
        await trio.sleep(0.5)
    broker.late = 0.0
    async with broker.open_receiver(ORDERS) as another:
        [found] = await another.receive_available(1)

    assert (found.message.body, found.delivery_count) == (b"x", 1)
