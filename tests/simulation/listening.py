"""Consumers that are listeners: the real library, with handlers that write history, or fail."""

import random
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.listening import RAW, Item, ListenerOptions, QueueListener
from gateway.ports import Broker, WallClock
from tests.simulation.clients import Journal

# Nothing is poison: the queues of the simulation have their own limit.
OPTIONS: Final = ListenerOptions(batch=10, poison_threshold=None, idle_max=10.0)


class HandlerFailed(Exception):
    """The failure of a handler, raised on purpose."""


@attrs.frozen
class BacklogQueueInfo:
    """Hears from the listener what is done, and settled."""

    journal: Journal

    def on_item(self, item: Item[Message]) -> None:
        self.journal.note_completion(item.queue, item.delivery)

    def on_error(self, queue: EntityPath, error: Exception) -> None:
        self.journal.seen["a listener was told of an error"] += 1
        self.journal.note(f"listener of {queue}: {error!r}")

    def on_completed(self) -> None:
        """The run has ended."""


def listener(
    entity: EntityPath,
    primary: Broker,
    journal: Journal,
    *,
    clock: WallClock,
    rng: random.Random,
    failing: float,
) -> QueueListener[Message]:
    """Takes one entity's messages; that share of the runs of its handler fails."""

    async def handle(item: Item[Message]) -> None:
        await trio.lowlevel.checkpoint()
        journal.note_delivery(entity, item.delivery)
        if rng.random() < failing:
            journal.seen["a handler failed"] += 1
            raise HandlerFailed(item.message.message_id)
        journal.handled.add((entity.key, str(item.delivery.sequence_number)))

    return QueueListener(
        broker=primary,
        queues={entity.name: 1},
        format=RAW,
        handle=handle,
        clock=clock,
        rng=rng,
        options=OPTIONS,
        subscribers=[BacklogQueueInfo(journal)],
    )
