"""
A receiver in a process of its own, in this environment: a listener of ours, or pika's plain loop.

Takes a number of messages of a queue and completes them; prints one JSON object. Usage: python -m
benchmarks.listener_worker JOB
"""

import json
import random
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import trio

from gateway.app.runtime import Silence
from gateway.config.kinds import BrokerDependencies, build, options_class
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Message
from gateway.listening import RAW, Item, QueueListener
from gateway.ports import Broker

QUEUE: Final = EntityPath("orders")
BATCH: Final = 32
BODY: Final = b"x" * 1024
LIMIT: Final = 90.0  # seconds
_FILLERS: Final = 8  # senders at once

OURS: Final = "ours"  # jobs
LOOP: Final = "loop"
PIKA: Final = "pika"


@attrs.frozen(kw_only=True)
class Taken:
    """The time and the processor time to receive and complete all messages, in seconds."""

    seconds: float
    requests: int = 0  # as a cloud would bill them; 0: not counted
    # Processor time of each process, by name.
    costs: Mapping[str, float] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Counting:
    """Counts the messages, and knows when all are done and settled."""

    wanted: int
    done: trio.Event = attrs.field(factory=trio.Event)

    def on_item(self, item: Item[Message]) -> None:
        self.wanted -= 1
        if self.wanted == 0:
            self.done.set()

    def on_error(self, queue: EntityPath, error: Exception) -> None:
        """Do nothing: the listener continues, and the count shows missing messages."""

    def on_completed(self) -> None:
        """The listener ends only when it is told to."""


async def nothing(item: Item[Message]) -> None:
    """A handler that does nothing."""


async def fill(broker: Broker, count: int) -> None:
    """Return when the queue has the given number of messages more."""
    size = min(100, -(-count // _FILLERS))
    starts = iter(range(0, count, size))

    async def send_some() -> None:
        for start in starts:
            numbers = range(start, min(start + size, count))
            await broker.send(QUEUE, [Message(message_id=str(n), body=BODY) for n in numbers])

    async with trio.open_nursery() as nursery:
        for _ in range(_FILLERS):
            nursery.start_soon(send_some)


async def listen(broker: Broker, count: int) -> Taken:
    """Receive with a listener that has its default options."""
    counting = Counting(count)
    listener = QueueListener(
        broker=broker,
        queues=QUEUE.name,
        format=RAW,
        handle=nothing,
        clock=lambda: datetime.now(UTC),
        rng=random.Random(1),
        subscribers=(counting,),
    )
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            began, processor = trio.current_time(), time.process_time()
            await nursery.start(listener.run)
            await counting.done.wait()
            seconds = trio.current_time() - began
            costs = {OURS: time.process_time() - processor}
            listener.start_drain()
    requests = sum(state.billed for state in listener.states().values())
    return Taken(seconds=seconds, requests=requests, costs=costs)


async def loop(broker: Broker, count: int) -> Taken:
    """Receive a batch, complete one after the other, and again: where there is no SDK."""
    with trio.fail_after(LIMIT):
        began, processor, left = trio.current_time(), time.process_time(), count
        async with broker.open_receiver(QUEUE) as receiver:
            while left:
                for delivery in await receiver.receive(BATCH):
                    await receiver.settle(delivery, Complete())
                    left -= 1
            seconds = trio.current_time() - began
            costs = {LOOP: time.process_time() - processor}
    return Taken(seconds=seconds, costs=costs)


async def in_memory(kind: str, count: int) -> Taken:
    """Receive from a namespace in this process."""
    async with open_broker("memory:", {}) as broker:
        await broker.create_queue(QUEUE, QueueProperties())
        await fill(broker, count)
        return await (listen if kind == OURS else loop)(broker, count)


def open_broker(url: str, options: Mapping[str, Any]) -> Any:
    """The namespace, to be entered."""
    dependencies = BrokerDependencies(
        clock=lambda: datetime.now(UTC), rng=random.Random(), observer=Silence()
    )
    return build(url, "here", dependencies, options_class(url)(**options))


async def remote(url: str, options: Mapping[str, Any], count: int) -> Taken:
    async with open_broker(url, options) as broker:
        return await listen(broker, count)


def consume_with_pika(port: int, count: int) -> Taken:
    """As pika's documentation has it."""
    import pika

    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=BATCH)
        began, processor = time.perf_counter(), time.process_time()
        for method, _properties, _body in channel.consume(QUEUE.name):
            channel.basic_ack(method.delivery_tag)
            count -= 1
            if count == 0:
                break
        seconds = time.perf_counter() - began
        costs = {PIKA: time.process_time() - processor}
        channel.cancel()
    return Taken(seconds=seconds, costs=costs)


def do(job: Mapping[str, Any]) -> Taken:
    if job["kind"] == PIKA:
        return consume_with_pika(job["port"], job["count"])
    if job["url"] == "memory:":
        return trio.run(in_memory, job["kind"], job["count"])
    return trio.run(remote, job["url"], job["options"], job["count"])


if __name__ == "__main__":
    print(json.dumps(attrs.asdict(do(json.loads(sys.argv[1])))))
