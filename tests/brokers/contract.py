"""Parts of the tests of contract that other tests need, too."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import trio

from gateway.domain.entity import (
    EntityPath,
    QueueProperties,
)
from gateway.domain.message import (
    Complete,
    Delivery,
    Message,
)
from gateway.ports import Broker, Receiver
from tests.harness.patience import PATIENCE

SHORTLY = 0.2  # seconds for something that must not happen
SECOND = timedelta(seconds=1)
FAR = timedelta(days=3650)
SOON = 10 * SECOND  # what a test does before comes first, on a busy machine, too
HELD = 5 * SECOND  # a lock in which a test does several things
LOCKED = 10  # seconds of a lock that a test renews


def numbered(*numbers: object) -> list[Message]:
    return [Message(message_id=str(number), body=b"x") for number in numbers]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.message_id for delivery in deliveries]


async def take(receiver: Receiver, limit: int = 1) -> Sequence[Delivery]:
    with trio.fail_after(PATIENCE):
        return await receiver.receive(limit)


async def take_one(receiver: Receiver) -> Delivery:
    [delivery] = await take(receiver)
    return delivery


async def take_all(receiver: Receiver, wanted: int) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < wanted:
        taken += await take(receiver, wanted - len(taken))
    return taken


async def is_empty(broker: Broker, queue: EntityPath) -> bool:
    """
    True if no message is ahead of one that is sent for this; doesn't wait for a message that may
    come.
    """
    await broker.send(queue, numbered("sentinel"))
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Complete())
    return delivery.message.message_id == "sentinel"


async def make(broker: Broker, name: str = "special", **properties: Any) -> EntityPath:
    path = EntityPath.parse(name)
    await broker.create_queue(path, QueueProperties(**properties))
    return path


async def held_longer(renew: Callable[[], Awaitable[datetime]]) -> datetime:
    """Renew a lock of `LOCKED` seconds once a second until it would have ended; return its end."""
    for _ in range(LOCKED + 1):
        await trio.sleep(1)
        until = await renew()
    return until


async def now_there(broker: Any, queue: EntityPath) -> Any:
    """The broker's own date."""
    await broker.send(queue, numbered("clock"))
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Complete())
    return delivery.enqueued
