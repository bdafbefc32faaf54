"""A process that listens to a store and notes its work: STORE NOTES."""

import random
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trio

from gateway.listening import RAW, Item, ListenerOptions, QueueListener
from gateway.store.embedded.broker import EmbeddedBroker

OPTIONS: Final = ListenerOptions(poison_threshold=None, max_locked=64, max_tasks=1)


def now() -> datetime:
    return datetime.now(UTC)


async def main(store: Path, notes: Path) -> None:
    with notes.open("a") as lines:

        async def handle(item: Item[Any]) -> None:
            await trio.sleep(0.005)
            print(item.message.message_id, file=lines, flush=True)

        async with EmbeddedBroker(store, now, random.Random(0)) as broker:
            listener = QueueListener(
                broker=broker,
                queues="orders",
                format=RAW,
                handle=handle,
                clock=now,
                rng=random.Random(1),
                options=OPTIONS,
            )
            await listener.run()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
