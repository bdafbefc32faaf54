"""
A client in a process of its own that receives as a processor of the service's SDKs does: credit
for the whole window all the time, and calls that complete one message each, and wait for the
confirmation. Sends as `benchmarks.amqp_adapter`. Prints one JSON object.
Usage: python -m benchmarks.amqp_processor JOB
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import trio

from benchmarks.adapter_sends import send
from benchmarks.amqp_adapter import open_service_bus
from benchmarks.stopwatch import Stopwatch
from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.links import ReceivingLink
from gateway.wire.amqp.events import (
    ACCEPTED,
    Accepted,
    DeliveryId,
    NewLink,
    ReceiverSettles,
    Terminus,
)
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials

CALLS: Final = 32


class CompletionFailed(Exception):
    """A message wasn't completed; the text is the answer."""


async def receive(job: Mapping[str, Any], messages: int) -> Mapping[str, Any]:
    """
    Return the figures of so many messages, each completed by a call of its own.

    Raises:
        ExceptionGroup: a completion failed.
    """
    stream = await trio.open_tcp_stream("127.0.0.1", job["port"])
    client = AmqpClient(
        stream,
        name="namespace",
        hostname="localhost",
        credentials=Credentials(mechanism="PLAIN", user=job["user"], password=job["password"]),
        options=EngineOptions(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await client.wait_opened()
        new = NewLink(
            name="processor",
            we_send=False,
            source=Terminus(address=job["address"]),
            target=Terminus(address="processor"),
            receiver_settles=ReceiverSettles.SECOND,
        )
        link = await ReceivingLink(client, new).once_attached()
        figures = await process(link, job, messages)
        await client.close()
    return figures


async def process(link: ReceivingLink, job: Mapping[str, Any], messages: int) -> Mapping[str, Any]:
    window: int = job["window"]
    ready, taken = trio.open_memory_channel[DeliveryId](0)
    watch = Stopwatch(job["servers"])

    async def call() -> None:
        async for delivery in taken:
            began = time.perf_counter()
            answer = await link.send_outcome(delivery, ACCEPTED).outcome()
            if not isinstance(answer, Accepted):
                raise CompletionFailed(f"{answer}")
            watch.add(time.perf_counter() - began)

    async with trio.open_nursery() as nursery, ready:
        for _ in range(CALLS):
            nursery.start_soon(call)
        used = window  # of the credit, since it was last topped up
        for _ in range(messages):
            if 2 * used >= window:
                link.set_credit(window - len(link.arrived))
                used = 0
            while not link.arrived:
                await link.wait_news()
            used += 1
            await ready.send(link.arrived.popleft().delivery)
    return watch.read()


async def run(job: Mapping[str, Any]) -> None:
    async with open_service_bus(job, job["port"]) as broker:
        sent = await send(broker, job)
    print(json.dumps({"send": sent, "receive": await receive(job, int(sent["messages"]))}))


if __name__ == "__main__":
    trio.run(run, json.loads(sys.argv[1]))
