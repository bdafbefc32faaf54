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
    """
    Send for the job's seconds, with a task for each message in flight, or for each batch; return
    the figures. The messages of a job with sessions belong to them in turn.
    """
    queue = EntityPath(job["address"])
    batch, sessions = job.get("batch", 1), job.get("sessions", 0)
    await broker.probe(queue)  # connected
    watch = Stopwatch(job["servers"])
    end = time.perf_counter() + job["seconds"]

    async def loop() -> None:
        began = time.perf_counter()
        while began < end:
            numbers = range(watch.messages, watch.messages + batch)
            await broker.send(queue, [_message(number, sessions) for number in numbers])
            now = time.perf_counter()
            watch.add(now - began, batch)
            began = now

    async with trio.open_nursery() as nursery:
        for _ in range(max(1, job["window"] // batch)):
            nursery.start_soon(loop)
    return watch.read()


def _message(number: int, sessions: int) -> Message:
    session = str(number % sessions) if sessions else None
    return Message(message_id=str(number), session_id=session, body=BODY)
