"""
A client in a process of its own: the gateway's adapter for RabbitMQ, and nothing else of the
gateway. Sends for some seconds, with a task for each message in flight, and then receives and
completes all messages in batches as large. Prints one JSON object. Usage: python -m
benchmarks.rabbitmq_adapter JOB
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import trio

from benchmarks.adapter_sends import send
from benchmarks.stopwatch import Stopwatch
from gateway.app.runtime import Runtime
from gateway.brokers.rabbitmq.broker import RabbitmqBroker, open_namespace
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete


def open_rabbitmq(port: int, user: str) -> RabbitmqBroker:
    """The node's default virtual host, for a user whose password is its name."""
    runtime = Runtime()
    rest = f"//{user}@127.0.0.1:{port}/"
    options = RabbitmqOptions(password=user)
    return open_namespace("rabbitmq", rest, options, runtime.now, runtime.rng("benchmark"))


async def receive(
    broker: RabbitmqBroker, job: Mapping[str, Any], messages: int
) -> Mapping[str, Any]:
    async with broker.open_receiver(EntityPath(job["address"])) as receiver:
        watch = Stopwatch(job["servers"])
        async with trio.open_nursery() as nursery:
            while watch.messages < messages:
                for delivery in await receiver.receive(job["window"]):
                    watch.messages += 1
                    nursery.start_soon(receiver.settle, delivery, Complete())
        return watch.read()


async def run(job: Mapping[str, Any]) -> None:
    async with open_rabbitmq(job["port"], job["user"]) as broker:
        sent = await send(broker, job)
        received = await receive(broker, job, int(sent["messages"]))
    print(json.dumps({"send": sent, "receive": received}))


if __name__ == "__main__":
    trio.run(run, json.loads(sys.argv[1]))
