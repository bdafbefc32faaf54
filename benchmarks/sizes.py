"""
Does a message cost more where there are many? A few and a great many messages or entities, side
by side, each in a store and a process of its own, measured in turn.

    python -m benchmarks.sizes KIND NUMBER FOLDER     one side, driven by its stdin
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.closed_loop import BODY
from benchmarks.in_process import QUEUE, open_broker
from gateway.app.process import collect_seldom
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Message
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.store.embedded.files import Disk
from gateway.store.embedded.store import Store
from gateway.store.engine.entity_store import StoredEntity
from gateway.store.engine.records import Row, State
from gateway.wire.amqp.message import encode_message

TASKS: Final = 64
_SLICE: Final = 20_000  # rows of one transaction while a queue is filled
_ROOM: Final = 80 * 1024  # MiB, as large as a queue can be
_USED: Final = 10  # entities, where the others are idle
_CREATORS: Final = 500  # queues that are made at once


@attrs.frozen(kw_only=True)
class Cost:
    """The cost of one message, in seconds: by the clock, and of this process's processor time."""

    wall: float
    processor: float


@attrs.frozen(kw_only=True)
class Round:
    send: Cost
    receive: Cost


# --- one side


@attrs.define(eq=False)
class Side:
    """Sends to random ones of its queues, and then receives from the same ones."""

    broker: EmbeddedBroker
    queues: Sequence[EntityPath]
    rng: random.Random = attrs.field(factory=lambda: random.Random(1))

    async def measure(self, messages: int) -> Round:
        targets = self.rng.choices(self.queues, k=messages)
        return Round(
            send=await self._cost(targets, self._send),
            receive=await self._cost(targets, self._receive),
        )

    async def _cost(
        self, targets: Sequence[EntityPath], operation: Callable[[EntityPath], Awaitable[None]]
    ) -> Cost:
        left = iter(targets)

        async def loop() -> None:
            for target in left:
                await operation(target)

        began, processor = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(loop)
        return Cost(
            wall=(time.perf_counter() - began) / len(targets),
            processor=(time.process_time() - processor) / len(targets),
        )

    async def _send(self, queue: EntityPath) -> None:
        await self.broker.send(queue, [Message(message_id="1", body=BODY)])

    async def _receive(self, queue: EntityPath) -> None:
        async with self.broker.open_receiver(queue) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.settle(delivery, Complete())


def fill(path: Path, messages: int) -> None:
    """Fill a queue with messages of the same content, written directly into the store."""
    store = Store.open(path, lambda: 1, Disk())
    content = encode_message(Message(message_id="1", body=BODY))
    now = time.time_ns() // 1000
    store.begin(Now(now, 0.0))
    properties = QueueProperties(max_size_in_megabytes=_ROOM)
    queue = StoredEntity(path=QUEUE, properties=properties, created=now, updated=now)
    storage = store.add(queue)
    store.prepare()
    store.commit()
    for first in range(0, messages, _SLICE):
        store.begin(Now(now, 0.0))
        storage.rows.add(
            Row(
                sequence=store.next_sequence(),
                number=storage.numbers.next(State.ACTIVE),
                state=State.ACTIVE,
                enqueued=now,
                size=len(content),
                content=content,
            )
            for _ in range(min(_SLICE, messages - first))
        )
        store.prepare()
        store.commit()
        store.checkpoint()
    store.close()


@asynccontextmanager
async def _many_messages(path: Path, messages: int) -> AsyncIterator[Side]:
    fill(path, messages)
    async with open_broker(path) as broker:
        yield Side(broker, [QUEUE])


@asynccontextmanager
async def _many_entities(path: Path, entities: int) -> AsyncIterator[Side]:
    queues = [EntityPath(f"queue-{number:06}") for number in range(entities)]
    left = iter(queues)
    async with open_broker(path, EmbeddedOptions(max_queues=entities)) as broker:

        async def create() -> None:
            for queue in left:
                await broker.create_queue(queue, QueueProperties())

        async with trio.open_nursery() as nursery:
            for _ in range(_CREATORS):
                nursery.start_soon(create)
        yield Side(broker, queues)


@asynccontextmanager
async def _idle_entities(path: Path, entities: int) -> AsyncIterator[Side]:
    """Measure as many entities, of which few are used: the cost of the idle ones."""
    async with _many_entities(path, entities) as side:
        yield Side(side.broker, side.queues[:_USED])


_KINDS: Final = {
    "messages": _many_messages,
    "entities": _many_entities,
    "idle entities": _idle_entities,
}


async def _serve(kind: str, number: int, folder: Path) -> None:
    """Print a round as JSON for each line of stdin, which is a number of messages."""
    async with _KINDS[kind](folder / "broker.db", number) as side:
        collect_seldom()  # as `pairgate serve` does when it has started
        print("ready", flush=True)
        async for line in trio.wrap_file(sys.stdin):
            print(json.dumps(attrs.asdict(await side.measure(int(line)))), flush=True)


# --- both sides


class SideFailed(Exception):
    """A process that measures has ended."""


@attrs.frozen(kw_only=True)
class Growth:
    """The rounds of a few and of many; each round of one is beside the other's in time."""

    kind: str
    few: int
    many: int
    rounds: Sequence[tuple[Round, Round]]


@attrs.define(eq=False)
class _Process:
    _process: trio.Process
    _read: bytes = b""

    async def measure(self, messages: int) -> Round:
        if self._process.stdin is None:
            raise ValueError("the process has no stdin")
        await self._process.stdin.send_all(f"{messages}\n".encode())
        found = json.loads(await self.line())
        return Round(send=Cost(**found["send"]), receive=Cost(**found["receive"]))

    async def line(self) -> bytes:
        """
        Raises:
            SideFailed: the process has ended.
        """
        while b"\n" not in self._read:
            if self._process.stdout is None:
                raise ValueError("the process has no stdout")
            more = await self._process.stdout.receive_some()
            if not more:
                raise SideFailed("the process that measures has ended; its last words are above")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line


@asynccontextmanager
async def _side(
    kind: str, number: int, folder: Path, sources: Path | None
) -> AsyncIterator[_Process]:
    await trio.Path(folder).mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.sizes", kind, str(number), str(folder)]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=sources
    )
    try:
        side = _Process(process)
        await side.line()
        yield side
    finally:
        process.kill()
        with trio.move_on_after(10, shield=True):
            await process.wait()


@attrs.frozen(kw_only=True)
class Sides:
    """The sides to compare. With `before`, the few are those of the version in that folder."""

    kind: str
    few: int
    many: int
    before: Path | None = None


async def grow(folder: Path, sides: Sides, *, rounds: int, messages: int) -> Growth:
    """Measure the rounds with their messages, after one round that doesn't count."""
    kind = sides.kind
    found: list[tuple[Round, Round]] = []
    async with (
        _side(kind, sides.few, folder / "few", sides.before) as at_few,
        _side(kind, sides.many, folder / "many", None) as at_many,
    ):
        for number in range(rounds + 1):
            # The sides take turns in going first, so that none always follows the other's writes.
            if number % 2:
                many_round = await at_many.measure(messages)
                few_round = await at_few.measure(messages)
            else:
                few_round = await at_few.measure(messages)
                many_round = await at_many.measure(messages)
            found.append((few_round, many_round))
    return Growth(kind=kind, few=sides.few, many=sides.many, rounds=found[1:])


if __name__ == "__main__":
    trio.run(_serve, sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
