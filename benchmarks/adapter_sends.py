"""The sends of a client that is an adapter of the gateway, in a process of its own."""

import time
from collections.abc import Mapping
from typing import Any

import trio

from benchmarks.closed_loop import BODY
from benchmarks.stopwatch import Stopwatch
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.ports import Broker


async def send(broker: Broker, job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send for the job's seconds, with a task for each message in flight; return the figures."""
    queue = EntityPath(job["address"])
    await broker.probe(queue)  # connected
    watch = Stopwatch(job["servers"])
    end = time.perf_counter() + job["seconds"]

    async def loop() -> None:
        began = time.perf_counter()
        while began < end:
            await broker.send(queue, [Message(message_id=str(watch.messages), body=BODY)])
            now = time.perf_counter()
            watch.add(now - began)
            began = now

    async with trio.open_nursery() as nursery:
        for _ in range(job["window"]):
            nursery.start_soon(loop)
    return watch.read()
