"""A process that moves a queue is killed at each point of each stage, and the next one goes on."""

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest
import trio

from gateway.capabilities import Peeks
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import (
    DEAD_LETTER_REASON,
    DeadLetter,
    Delivery,
    Message,
    MessageState,
)
from gateway.extensions.move.mover import SWEEP
from gateway.offering import required
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.extensions.move.crashes import STAGES, Doom, Machine, Process
from tests.harness.clocks import VirtualClock
from tests.harness.determinism import run_seeded
from tests.pairing.harness import ORDERS

pytestmark = pytest.mark.slow

MESSAGES = [f"m{number}" for number in range(60)]  # more than are moved together
DEAD = [f"d{number}" for number in range(3)]
REASON = "case 7"
LATER = [f"s{number}" for number in range(3)]


async def rest(_: Process) -> None:
    """Let the mover look once more at the side that was left."""
    await trio.sleep(2 * SWEEP)


async def moved(machine: Machine, doomed: int, at: int) -> bool:
    """
    Work through the stages; the process is killed in one of them, and another one takes its place.
    False: it had fewer points than that.
    """
    killed = False
    for index, stage in enumerate(STAGES):
        if not await machine.run(stage, Doom(at if index == doomed else None)):
            killed = True
            assert await machine.run(stage, Doom())
    return killed


async def filled() -> Machine:
    clock = VirtualClock()
    old, new = (MemoryBroker(clock, random.Random(each)) for each in range(2))
    for side in (old, new):
        await side.create_queue(ORDERS, QueueProperties())
    await old.send(ORDERS, [Message(message_id=name) for name in DEAD])
    async with old.open_receiver(ORDERS) as receiver:
        for each in await receiver.receive(len(DEAD)):
            await receiver.settle(each, DeadLetter(reason=REASON))
    due = clock() + timedelta(days=1)
    await old.schedule(ORDERS, [Message(message_id=name, scheduled=due) for name in LATER])
    await old.send(ORDERS, [Message(message_id=name) for name in MESSAGES])
    return Machine(sides=(old, new), queue=ORDERS.name, clock=clock)


async def broken_by(doomed: int, at: int) -> tuple[bool, list[str]]:
    """True if the process was killed at that point of that stage; and the broken laws."""
    machine = await filled()
    killed = await moved(machine, doomed, at)
    await machine.run(rest, Doom())
    old, new = machine.sides
    broken = list[str]()
    for entity, names in ((ORDERS, [*MESSAGES, *LATER]), (ORDERS.dead_letter, DEAD)):
        there = Counter(each.message.message_id for each in await peeked(old, entity))
        broken += [f"{name} is lost" for name in names if not there[name]]
        if not killed:
            broken += [f"{name} is there twice" for name in names if there[name] > 1]
        broken += [f"{each} stayed" for each in await peeked(new, entity)]
    for each in await peeked(old, ORDERS.dead_letter):
        if each.message.properties.get(DEAD_LETTER_REASON) != REASON:
            broken.append(f"{each.message.message_id} has no reason")
    for each in await peeked(old, ORDERS):
        if (each.message.message_id in LATER) != (each.state is MessageState.SCHEDULED):
            broken.append(f"{each.message.message_id} has lost its date")
    return killed, broken


async def peeked(side: Broker, entity: EntityPath) -> Sequence[Delivery]:
    return await required(side, Peeks).peek(entity, limit=1000)


@pytest.mark.parametrize("doomed", range(len(STAGES)), ids=[each.__name__ for each in STAGES])
def test_nothing_is_lost_wherever_the_process_is_killed_in_the_stage(doomed: int) -> None:
    at, killed = 0, True
    while killed:
        at += 1
        killed, broken = run_seeded(broken_by, doomed, at, seed=at)
        assert broken == [], f"killed before call {at}"

    assert at > 3
