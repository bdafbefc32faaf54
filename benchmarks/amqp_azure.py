"""
A client in a process of its own: azure-servicebus as its users know it, without asyncio.

A sender of the SDK has one call on its way. Messages in flight are therefore a list of up to a
hundred in one call, and beyond that a thread for each hundred, with a connection of its own.
A receiver has prefetched as many, and completes one at a time. Runs in `.venv-azure`, and prints
one JSON object.
Usage: python -m benchmarks.amqp_azure JOB
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from benchmarks.stopwatch import Stopwatch

BODY: Final = b"x" * 1024
BATCH: Final = 100
WAIT: Final = 2.0  # seconds for messages that may come


class Work:
    """The state that the threads share."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.batch = min(job["window"], BATCH)
        self.threads = max(1, job["window"] // BATCH)
        self.left = 0  # messages that are to be received
        self.watch: Stopwatch | None = None
        self._ready = threading.Barrier(self.threads, self._start)

    def _start(self) -> None:
        self.watch = Stopwatch(self.job["servers"])
        self.end = time.perf_counter() + self.job["seconds"]

    def measure(self, loop: Callable[[ServiceBusClient], None]) -> dict[str, Any]:
        """Run the loop in every thread; return the figures of all threads together."""
        with ThreadPoolExecutor(self.threads) as threads:
            for done in [threads.submit(self._run, loop) for _ in range(self.threads)]:
                done.result()
        return dict(self.found)

    def _run(self, loop: Callable[[ServiceBusClient], None]) -> None:
        key = f"SharedAccessKeyName={self.job['user']};SharedAccessKey={self.job['password']}"
        endpoint = f"Endpoint=sb://127.0.0.1:{self.job['port']};{key};UseDevelopmentEmulator=true;"
        with ServiceBusClient.from_connection_string(endpoint) as client:
            loop(client)

    def begin(self) -> Stopwatch:
        """Wait until every thread's link is open; closing it isn't measured either."""
        self._ready.wait()
        assert self.watch is not None, "the last one has made it"
        return self.watch

    def stop(self) -> None:
        """Read the watch; the last call counts."""
        assert self.watch is not None, "it has begun"
        self.found = self.watch.read()

    def send(self, client: ServiceBusClient) -> None:
        with client.get_queue_sender(self.job["address"]) as sender:
            watch = self.begin()
            while time.perf_counter() < self.end:
                messages = [ServiceBusMessage(BODY) for _ in range(self.batch)]
                began = time.perf_counter()
                sender.send_messages(messages)
                watch.add(time.perf_counter() - began, len(messages))
            self.stop()

    def receive(self, client: ServiceBusClient) -> None:
        receiver = client.get_queue_receiver(self.job["address"], prefetch_count=self.batch)
        with receiver:
            watch = self.begin()
            while watch.messages < self.left:
                messages = receiver.receive_messages(self.batch, max_wait_time=WAIT)
                self._complete(receiver, messages, watch)

    def _complete(self, receiver: Any, messages: Sequence[Any], watch: Stopwatch) -> None:
        for message in messages:
            began = time.perf_counter()
            receiver.complete_message(message)
            watch.add(time.perf_counter() - began)
        if messages:
            self.stop()  # the last waits, which end without a message, don't count


def main() -> None:
    job = json.loads(sys.argv[1])
    sending = Work(job)
    sent = sending.measure(sending.send)
    receiving = Work(job)
    receiving.left = int(sent["messages"])
    print(json.dumps({"send": sent, "receive": receiving.measure(receiving.receive)}))


if __name__ == "__main__":
    main()
