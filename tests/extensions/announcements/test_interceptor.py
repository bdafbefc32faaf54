import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import trio
from trio.testing import MockClock

from gateway.capabilities import FailsFast
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.message import Complete, DataBody, Message
from gateway.extensions.announcements.interceptor import Announcing
from gateway.interception.broker import InterceptedBroker
from gateway.offering import offered, required
from gateway.ports import Broker
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.memory import MemoryBroker
from tests.harness.faults import Fault, FaultyBroker, Hang, LoseAnswer, Refuse, Reset
from tests.harness.remembering import RememberingBroker

ORDERS = EntityPath("orders")


def wall_clock() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=trio.current_time())


def announcing(broker: Broker, announce: Callable[[EntityPath, int], None]) -> InterceptedBroker:
    """The namespace; its sends are announced."""
    return InterceptedBroker(broker, [Announcing(announce)])


@pytest.fixture
async def broker() -> MemoryBroker:
    broker = MemoryBroker(wall_clock, random.Random(1))
    await broker.create_queue(ORDERS, QueueProperties())
    return broker


async def test_an_accepted_message_is_announced_with_its_size(broker: MemoryBroker) -> None:
    announced: list[tuple[EntityPath, int]] = []
    told = announcing(broker, lambda queue, size: announced.append((queue, size)))

    await told.send(ORDERS, [Message(body=b"four"), Message(body=DataBody(parts=(b"a", b"bc")))])

    assert announced == [(ORDERS, 7)]


async def test_a_refused_message_is_not_announced(broker: MemoryBroker) -> None:
    announced: list[EntityPath] = []
    told = announcing(broker, lambda queue, size: announced.append(queue))

    with pytest.raises(EntityNotFound):
        await told.send(EntityPath("nowhere"), [Message()])

    assert announced == []


@pytest.mark.parametrize(
    ("fault", "told"), [(LoseAnswer(), 1), (Hang(), 1), (Reset(), 1), (Refuse(), 0)]
)
async def test_a_message_that_may_have_come_is_announced(
    broker: MemoryBroker, fault: Fault, told: int, autojump_clock: MockClock
) -> None:
    announced: list[EntityPath] = []
    faulty = FaultyBroker(inner=broker)
    faulty.fault = lambda operation, _: fault
    telling = announcing(faulty, lambda queue, size: announced.append(queue))

    async with trio.open_nursery() as nursery:
        await nursery.start(faulty.run)
        with trio.move_on_after(5.0), suppress(BrokerError):
            await telling.send(ORDERS, [Message()])
        nursery.cancel_scope.cancel()

    assert announced == [ORDERS] * told


async def test_a_namespace_that_fails_fast_does_so_and_is_announced(
    broker: MemoryBroker, nursery: trio.Nursery
) -> None:
    announced: list[EntityPath] = []
    fast = RememberingBroker(inner=broker, rng=random.Random(0))
    await nursery.start(fast.run)
    told = announcing(fast, lambda queue, size: announced.append(queue))

    await required(told, FailsFast).try_send(ORDERS, [Message()])

    assert announced == [ORDERS]
    assert offered(announcing(broker, lambda *_: None), FailsFast) is None


async def test_a_store_of_our_own_announces_what_can_be_received(autojump_clock: MockClock) -> None:
    announced: list[float] = []
    hooks = LocalHooks(announce=lambda queue: announced.append(trio.current_time()))
    broker = MemoryBroker(wall_clock, random.Random(1), hooks=hooks)
    await broker.create_queue(ORDERS, QueueProperties())
    due = wall_clock() + timedelta(hours=1)

    async with broker.open_receiver(ORDERS) as receiver:
        await broker.send(ORDERS, [Message()])
        await broker.send(ORDERS, [Message(scheduled=due)])
        for _ in range(2):
            (delivery,) = await receiver.receive(1)
            await receiver.settle(delivery, Complete())

    assert announced[0] == pytest.approx(0, abs=1)
    assert announced[-1] == pytest.approx(3600, abs=1)
