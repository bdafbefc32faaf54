"""A queue moves from each kind of namespace to each other one."""

import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityNotFound, NotSupported
from gateway.domain.message import Complete, DeadLetter, Message
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.calls import MoveCalls
from gateway.extensions.move.mover import LEASE, EntityMover
from gateway.extensions.move.numbers import MovedNumbers
from gateway.extensions.move.order import MoveAction, MoveOrder
from gateway.ports import Broker
from tests.brokers.conftest import azurites, elsewhere, rabbits
from tests.brokers.elsewhere import Elsewhere
from tests.brokers.kinds import KINDS, Place, real_date
from tests.brokers.pairs import Nobody
from tests.brokers.rabbitmq.nodes import Nodes
from tests.brokers.storage_queue.azurites import Azurites
from tests.extensions.move.crashes import STAGES, Doom, Machine
from tests.extensions.move.stand import OPERATOR
from tests.harness.memory_values import MemoryValues
from tests.harness.patience import PATIENCE

__all__ = ["azurites", "elsewhere", "rabbits"]

pytestmark = [pytest.mark.slow, pytest.mark.shared]

NAMES: Final = (
    "embedded",
    "servicebus",
    "servicebus+http",
    "rabbitmq",
    "rabbitmq 4",
    "amqp, RabbitMQ",
    "storage-queue, Azurite",
)
LOCK: Final = 15.0  # seconds: what a killed mover holds comes again after it
EARLY: Final = [f"early-{number}" for number in range(30)]
LATE: Final = [f"late-{number}" for number in range(30)]


def queues() -> Iterator[tuple[str, str, EntityPath]]:
    """A queue for each kind that is left and each that it moves to."""
    for number, (old, new) in enumerate(permutations(NAMES, 2)):
        yield old, new, EntityPath(f"moved-{number}")


Move = Callable[[Broker, Broker, EntityPath], Awaitable[None]]


@attrs.frozen
class Kinds:
    """Namespaces of all kinds, which are open."""

    opened: Mapping[str, Broker]

    async def each_to_each(self, move: Move) -> int:
        """Run all moves at once; return their number."""
        count = 0

        async def run(old: str, new: str, queue: EntityPath) -> None:
            try:
                await move(self.opened[old], self.opened[new], queue)
            except BaseException as error:
                error.add_note(f"from {old} to {new}")
                raise

        async with trio.open_nursery() as nursery:
            for old, new, queue in queues():
                nursery.start_soon(run, old, new, queue)
                count += 1
        return count


@pytest.fixture
async def kinds(
    folder: Path, elsewhere: Elsewhere, rabbits: Nodes, azurites: Azurites
) -> AsyncIterator[Kinds]:
    known = {kind.name: kind for kind in KINDS}
    async with AsyncExitStack() as stack:
        opened: dict[str, Broker] = {}
        for index, name in enumerate(NAMES):
            place = Place(folder / str(index), elsewhere, rabbits, azurites)
            place.folder.mkdir()
            opened[name] = await stack.enter_async_context(known[name].open(place))
        yield Kinds(opened)


async def test_a_queue_moves_from_each_kind_to_each_other_one(kinds: Kinds) -> None:
    async def move(old: Broker, new: Broker, queue: EntityPath) -> None:
        assert await moved(old, new, queue) == {*EARLY, *LATE}

    assert await kinds.each_to_each(move) == 42


async def test_nothing_is_lost_though_the_process_is_killed_in_each_stage(kinds: Kinds) -> None:
    async def move(old: Broker, new: Broker, queue: EntityPath) -> None:
        buried, found = await moved_and_back(old, new, queue)
        assert found >= {*EARLY, *LATE}
        assert await taken_from([old, new], queue.dead_letter, buried) >= buried

    assert await kinds.each_to_each(move) == 42


async def moved_and_back(old: Broker, new: Broker, queue: EntityPath) -> tuple[set[str], set[str]]:
    """
    Move the queue there and back, while a second process sends to it. The first one is killed in
    each stage, wherever that may be. Return what was dead-lettered, and what is there in the end.
    """
    for side in (old, new):
        await make(side, queue, LOCK)
    buried = await bury(old, queue)
    await old.send(queue, [message(name) for name in EARLY])
    clock, rng = LeapingClock(), random.Random(queue.name)
    machine = Machine(sides=(old, new), queue=queue.name, clock=clock)
    async with trio.open_nursery() as nursery:
        sender = await machine.start(nursery, Doom(), moves=False)
        nursery.start_soon(send_late, sender.broker, queue)
        for stage in STAGES:
            if not await machine.run(stage, Doom(rng.randint(1, 20))):
                clock.leap()
                assert await machine.run(stage, Doom())
            clock.leap()
        await machine.start(nursery, Doom())  # goes on looking at the new side: for stragglers
        found = await taken_from([old], queue, {*EARLY, *LATE})
        nursery.cancel_scope.cancel()
    return buried, found


@attrs.define(eq=False)
class LeapingClock:
    """The wall clock, but a killed process's lease needn't be waited for."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return real_date() + self.ahead

    def leap(self) -> None:
        self.ahead += LEASE


async def send_late(broker: Broker, queue: EntityPath) -> None:
    for name in LATE:
        await broker.send(queue, [message(name)])
        await trio.sleep(0.1)


async def bury(side: Broker, queue: EntityPath) -> set[str]:
    """Dead-letter some messages, where receivers can; return their ids."""
    names = {f"dead-{number}" for number in range(3)}
    await side.send(queue, [message(name) for name in names])
    left = set(names)
    async with side.open_receiver(queue) as receiver:
        while left:
            for each in await receiver.receive(3):
                name = bytes(each.message.body).decode()  # type: ignore[arg-type]
                try:
                    await receiver.settle(each, DeadLetter(reason="case 7"))
                except NotSupported:
                    await receiver.settle(each, Complete())
                    names.discard(name)
                left.discard(name)
    return names


async def taken_from(
    sides: Sequence[Broker], queue: EntityPath, expected: Collection[str]
) -> set[str]:
    """
    Take all messages out of the queue at these sides, until those are there that are expected.
    Return their ids.
    """
    found = set[str]()
    with trio.move_on_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def take(side: Broker) -> None:
                with suppress(EntityNotFound):
                    async with side.open_receiver(queue) as receiver:
                        while not found >= set(expected):
                            for each in await receiver.receive(20):
                                found.add(bytes(each.message.body).decode())  # type: ignore[arg-type]
                                await receiver.settle(each, Complete())
                    nursery.cancel_scope.cancel()

            for side in sides:
                nursery.start_soon(take, side)
    return found


async def make(side: Broker, queue: EntityPath, lock: float = 60.0) -> None:
    """Make the queue; its locks last so many seconds where a queue says that."""
    for properties in (QueueProperties(lock_duration=timedelta(seconds=lock)), QueueProperties()):
        with suppress(NotSupported):
            await side.create_queue(queue, properties)
            return
    await side.probe(queue)  # RabbitMQ over AMQP 1.0 makes what is missing for a link


async def moved(old: Broker, new: Broker, queue: EntityPath) -> set[str]:
    """Move the queue while it is sent to and received from; return the ids that were received."""
    await make(old, queue)
    await make(new, queue)
    for name in EARLY:
        await old.send(queue, [message(name)])
    found: set[str] = set()
    async with trio.open_nursery() as nursery:
        book = MoveBook(store=MemoryValues(), clock=real_date, observer=Nobody())
        broker = MovedBroker(
            sides=(old, new),
            book=book,
            numbers=MovedNumbers(store=book.store),
            entities=("*",),
            rng=random.Random(0),
            clock=real_date,
        )
        mover = EntityMover(broker=broker, process="1", observer=Nobody(), clock=real_date)
        calls = MoveCalls(
            broker=broker,
            mover=mover,
            to="new",
            keeps_order=lambda _: False,
            clock=real_date,
            observer=Nobody(),
        )
        for service in (book, mover):
            await nursery.start(service.run)
        order = MoveOrder(action=MoveAction.START, targets=(queue.name,), force=True)
        await calls.execute(order, OPERATOR)
        nursery.start_soon(receive, broker, queue, found)
        for name in LATE:
            await broker.send(queue, [message(name)])
            await trio.sleep(0.1)
        with trio.fail_after(PATIENCE):
            while book.moves[0].stage.value != "new" or len(found) < 60:  # noqa: ASYNC110
                await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
    return found


async def receive(broker: Broker, queue: EntityPath, found: set[str]) -> None:
    while True:
        try:
            async with broker.open_receiver(queue) as receiver:
                while True:
                    for each in await receiver.receive(3):
                        await receiver.settle(each, Complete())
                        found.add(bytes(each.message.body).decode())  # type: ignore[arg-type]
        except BrokerError:
            await trio.sleep(0.2)


def message(name: str, **fields: Any) -> Message:
    return Message(message_id=name, body=name.encode(), **fields)
