"""
A client in a process of its own: the gateway's adapter for Service Bus, and nothing else of the
gateway, in one connection to send and one to receive.

Sends for some seconds, with a task for each message in flight, and then receives and completes all
messages, as many at once; each completion waits for its confirmation, as in the service's SDKs.
Diverted messages are received at the secondary, those of sessions by a task for each session, and
with `renews` each lock is renewed before the completion. Prints one JSON object.
Usage: python -m benchmarks.amqp_adapter JOB
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio

from benchmarks.adapter_sends import send
from benchmarks.stopwatch import Stopwatch
from gateway.app.runtime import Runtime
from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.servicebus import ServiceBusBroker, open_namespace
from gateway.capabilities.settling import settle_all
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Delivery
from gateway.ports import Receiver


def open_service_bus(job: Mapping[str, Any], port: int) -> ServiceBusBroker:
    runtime = Runtime()
    rest = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={job['user']}"
    options = ServiceBusOptions(key=job["password"])
    return open_namespace(
        f"{rest};UseDevelopmentEmulator=true", options, runtime.now, runtime.rng("benchmark")
    )


async def receive(
    broker: ServiceBusBroker, job: Mapping[str, Any], messages: int
) -> Mapping[str, Any]:
    queue = EntityPath(job["source"] or job["address"])
    async with AsyncExitStack() as stack:
        if job["sessions"]:
            opened = [broker.open_session(queue, str(each)) for each in range(job["sessions"])]
        else:
            opened = [broker.open_receiver(queue)]
        receivers = [await stack.enter_async_context(each) for each in opened]
        watch, received = Stopwatch(job["servers"]), 0

        async def take(receiver: Receiver, nursery: trio.Nursery) -> None:
            nonlocal received
            while received < messages:
                deliveries = await receiver.receive(job["window"])
                received += len(deliveries)
                nursery.start_soon(complete, receiver, deliveries, watch, job["renews"])
            taking.cancel_scope.cancel()  # others wait for messages that don't exist

        async with trio.open_nursery() as completing, trio.open_nursery() as taking:
            for receiver in receivers:
                taking.start_soon(take, receiver, completing)
        return watch.read()


async def complete(
    receiver: Receiver, deliveries: Sequence[Delivery], watch: Stopwatch, renews: bool
) -> None:
    """
    Raises:
        BrokerError: a renewal or a completion failed.
    """
    began = time.perf_counter()
    if renews:
        async with trio.open_nursery() as renewing:
            for each in deliveries:
                renewing.start_soon(receiver.renew, each)
    verdicts = await settle_all(receiver, [(each, Complete()) for each in deliveries])
    for error in verdicts:
        if error is not None:
            raise error
        watch.add(time.perf_counter() - began)


async def run(job: Mapping[str, Any]) -> None:
    async with open_service_bus(job, job["port"]) as broker:
        sent = await send(broker, job)
    async with open_service_bus(job, job["source_port"] or job["port"]) as broker:
        received = await receive(broker, job, int(sent["messages"]))
    print(json.dumps({"send": sent, "receive": received}))


if __name__ == "__main__":
    trio.run(run, json.loads(sys.argv[1]))
