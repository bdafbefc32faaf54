"""
A plain receive loop of Microsoft's clients, as their documentation has it: one thread, batches of
32, each message completed after the other. Runs in `.venv-azure`, and prints one JSON object.

Usage: python -m benchmarks.listener_sdk JOB
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

QUEUE: Final = "orders"
BATCH: Final = 32
WAIT: Final = 10.0  # seconds for messages that may come


def service_bus(connection: str, count: int) -> tuple[float, float]:
    from azure.servicebus import ServiceBusClient

    with (
        ServiceBusClient.from_connection_string(connection) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        began, processor = time.perf_counter(), time.process_time()
        while count:
            for message in receiver.receive_messages(max_message_count=BATCH, max_wait_time=WAIT):
                receiver.complete_message(message)
                count -= 1
        return time.perf_counter() - began, time.process_time() - processor


def storage_queue(connection: str, count: int) -> tuple[float, float]:
    from azure.storage.queue import QueueClient

    with QueueClient.from_connection_string(connection, QUEUE) as queue:
        began, processor = time.perf_counter(), time.process_time()
        while count:
            for message in queue.receive_messages(messages_per_page=BATCH, visibility_timeout=60):
                queue.delete_message(message)
                count -= 1
        return time.perf_counter() - began, time.process_time() - processor


# Each loop returns its duration and its processor time, in seconds.
LOOPS: Final[Mapping[str, Callable[[str, int], tuple[float, float]]]] = {
    "azure-servicebus": service_bus,
    "azure-storage-queue": storage_queue,
}


def do(job: Mapping[str, Any]) -> Mapping[str, Any]:
    seconds, processor = LOOPS[job["kind"]](job["connection"], job["count"])
    return {"seconds": seconds, "requests": 0, "costs": {job["kind"]: processor}}


if __name__ == "__main__":
    print(json.dumps(do(json.loads(sys.argv[1]))))
