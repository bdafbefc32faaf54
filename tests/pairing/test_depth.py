"""The depth of the backlog is known, and asking for it stays cheap."""

import random

import pytest
import trio
from trio.testing import MockClock

from gateway.brokers.memory import MemoryBroker
from gateway.domain import backlog
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.pairing.depth import LATER, SOON, BacklogDepth
from gateway.pairing.rotation import Rotation
from gateway.ports import Broker
from gateway.testing.clocks import VirtualClock
from gateway.testing.faults import Fault, FaultyBroker, Hang, Refuse
from tests.pairing.lab import Events

LABEL = "east"
QUEUES = [backlog.queue_name(LABEL, index) for index in range(3)]


@pytest.fixture
async def secondary() -> MemoryBroker:
    broker = MemoryBroker(VirtualClock(), random.Random(1))
    for queue in [*QUEUES, EntityPath("orders")]:
        await broker.create_queue(queue, QueueProperties())
    return broker


def depth_of(secondary: Broker) -> BacklogDepth:
    rotation = Rotation(queues=QUEUES, cooldown=30, rng=random.Random(1), observer=Events())
    return BacklogDepth(secondary=secondary, rotation=rotation, label=LABEL, clock=VirtualClock())


async def test_all_backlog_queues_count_and_the_oldest_message_tells_the_age(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    await secondary.send(QUEUES[2], [Message()])
    await trio.sleep(90)
    await secondary.send(QUEUES[0], [Message()] * 2)
    await secondary.send(EntityPath("orders"), [Message()])

    reading = await depth_of(secondary).read(3, troubled=False)

    assert (reading.pending, reading.oldest_age) == (3, 90.0)


async def test_without_a_backlog_a_day_of_scrapes_asks_once_a_minute(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    before = secondary.meter.bill().total
    for _ in range(24 * 60 * 4):  # each fifteen seconds
        await depth.read(3, troubled=False)
        await trio.sleep(15)

    assert secondary.meter.bill().total - before <= 24 * 3600 / LATER + 1


async def test_in_trouble_it_is_asked_more_often(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    await depth.read(3, troubled=False)
    await secondary.send(QUEUES[0], [Message()])
    await trio.sleep(SOON)

    calm = (await depth.read(3, troubled=False)).pending
    troubled = (await depth.read(3, troubled=True)).pending

    assert (calm, troubled) == (0, 1)


async def test_several_who_ask_at_once_cost_one_question(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    before = secondary.meter.bill().operations[Operation.INSPECT]
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(lambda: depth.read(3, troubled=True))

    assert secondary.meter.bill().operations[Operation.INSPECT] - before == 1


@pytest.mark.parametrize("fault", [Hang(), Refuse()])
async def test_a_dead_secondary_holds_nobody_up_and_the_last_reading_stays(
    fault: Fault, secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    depth = depth_of(faulty)
    await secondary.send(QUEUES[0], [Message()])
    first = await depth.read(3, troubled=False)
    faulty.fault = lambda _operation, _entity: fault
    await trio.sleep(LATER)
    began = trio.current_time()
    second = await depth.read(3, troubled=False)

    assert trio.current_time() - began <= 3
    assert first.pending == 1
    assert second == first
