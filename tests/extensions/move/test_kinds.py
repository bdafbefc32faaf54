"""A queue moves from each kind of namespace to each other one."""

import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import permutations
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityExists, NotSupported
from gateway.domain.message import Complete, Message
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.calls import MoveCalls
from gateway.extensions.move.mover import EntityMover
from gateway.extensions.move.numbers import MovedNumbers
from gateway.extensions.move.order import MoveAction, MoveOrder
from gateway.ports import Broker
from tests.brokers.conftest import azurites, elsewhere, rabbits
from tests.brokers.elsewhere import Elsewhere
from tests.brokers.kinds import KINDS, Place, real_date
from tests.brokers.pairs import Nobody
from tests.brokers.rabbitmq.nodes import Nodes
from tests.brokers.storage_queue.azurites import Azurites
from tests.extensions.move.stand import OPERATOR, MemoryValues

__all__ = ["azurites", "elsewhere", "rabbits"]

pytestmark = [pytest.mark.slow, pytest.mark.shared, pytest.mark.timeout(300)]

NAMES: Final = (
    "embedded",
    "servicebus",
    "servicebus+http",
    "rabbitmq",
    "rabbitmq 4",
    "amqp, RabbitMQ",
    "storage-queue, Azurite",
)
EARLY: Final = [f"early-{number}" for number in range(30)]
LATE: Final = [f"late-{number}" for number in range(30)]


def queues() -> Iterator[tuple[str, str, EntityPath]]:
    """A queue for each kind that is left and each that it moves to."""
    for number, (old, new) in enumerate(permutations(NAMES, 2)):
        yield old, new, EntityPath(f"moved-{number}")


async def test_a_queue_moves_from_each_kind_to_each_other_one(
    folder: Path, elsewhere: Elsewhere, rabbits: Nodes, azurites: Azurites
) -> None:
    kinds = {kind.name: kind for kind in KINDS}
    received: dict[tuple[str, str], set[str]] = {}
    async with AsyncExitStack() as stack:
        opened: dict[str, Broker] = {}
        for index, name in enumerate(NAMES):
            place = Place(folder / str(index), elsewhere, rabbits, azurites)
            place.folder.mkdir()
            opened[name] = await stack.enter_async_context(kinds[name].open(place))

        async def run(old: str, new: str, queue: EntityPath) -> None:
            try:
                received[old, new] = await moved(opened[old], opened[new], queue)
            except BaseException as error:
                error.add_note(f"from {old} to {new}")
                raise

        async with trio.open_nursery() as nursery:
            for old, new, queue in queues():
                nursery.start_soon(run, old, new, queue)

    assert len(received) == len(NAMES) * (len(NAMES) - 1)
    assert {names for names, found in received.items() if found != {*EARLY, *LATE}} == set()


async def moved(old: Broker, new: Broker, queue: EntityPath) -> set[str]:
    """Move the queue while it is sent to and received from; return the ids that were received."""
    for side in (old, new):
        try:
            await side.create_queue(queue, QueueProperties())
        except (EntityExists, NotSupported):
            await make_by_send(side, queue)
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
        with trio.fail_after(120):
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


async def make_by_send(side: Broker, queue: EntityPath) -> None:
    """Of RabbitMQ over AMQP 1.0, whose links make queues that are missing."""
    await side.probe(queue)


def message(name: str, **fields: Any) -> Message:
    return Message(message_id=name, body=name.encode(), **fields)
