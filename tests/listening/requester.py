"""
A process with one worker that asks for the doubles of five numbers and prints them:
STORE KEPT NOTES ANSWERS. The worker notes each number, and answers those below ANSWERS.
"""

import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import attrs
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityExists
from gateway.listening import Item, Json, QueueListener
from gateway.listening.exchange import Requester, replying
from gateway.listening.stores.sqlite import SqliteValues
from gateway.listening.submit import Submitter
from gateway.store.embedded.broker import EmbeddedBroker

ORDERS, REPLIES = EntityPath("orders"), EntityPath("replies")
NUMBERS = range(5)


@attrs.frozen
class Number:
    value: int


def now() -> datetime:
    return datetime.now(UTC)


def new_id() -> str:
    return str(uuid4())


async def main(store: Path, kept: Path, notes: Path, answers: int) -> None:
    async def work(request: Item[Number]) -> Number:
        with notes.open("a") as lines:
            print(request.value.value, file=lines)
        if request.value.value >= answers:
            await trio.sleep_forever()
        return Number(2 * request.value.value)

    async with (
        EmbeddedBroker(store, now, random.Random(0)) as broker,
        SqliteValues(kept) as values,
        trio.open_nursery() as nursery,
    ):
        for queue in (ORDERS, REPLIES):
            try:
                await broker.create_queue(
                    queue, QueueProperties(lock_duration=timedelta(seconds=5))
                )
            except EntityExists:
                continue
        worker = QueueListener(
            broker=broker,
            queues=ORDERS.name,
            format=Json(Number),
            handle=replying(work, broker=broker, format=Json(Number), new_id=new_id),
            clock=now,
            rng=random.Random(1),
        )
        requester = Requester(
            requests=Submitter(broker=broker, queue=ORDERS, format=Json(Number), new_id=new_id),
            replies=REPLIES,
            broker=broker,
            format=Json(Number),
            clock=now,
            rng=random.Random(2),
            store=values,
        )
        await nursery.start(worker.run)
        await nursery.start(requester.run)
        async with requester.kept("doubles", [Number(each) for each in NUMBERS]) as replies:
            sys.stdout.write(" ".join(str(each.value) for each in replies) + "\n")
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *map(Path, sys.argv[1:4]), int(sys.argv[4]))
