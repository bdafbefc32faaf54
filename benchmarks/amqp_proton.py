"""
A client in a process of its own: Qpid Proton for Python as its users know it, `MessagingHandler`.

Sends for some seconds, with a limit of messages in flight, and then receives and completes them all
with as much credit. Prints one JSON object. Usage: python -m benchmarks.amqp_proton JOB
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import attrs
from proton import Delivery, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from benchmarks.stopwatch import Stopwatch

BODY: Final = b"x" * 1024


class OutcomeFailed(Exception):
    """A broker refused a message, or hung up."""


@attrs.frozen(kw_only=True)
class Job:
    port: int
    servers: Mapping[str, int]
    user: str
    password: str
    address: str
    window: int
    seconds: float
    confirms: bool


class _Handler(MessagingHandler):  # type: ignore[misc]  # Proton has no types
    def __init__(self, job: Job) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.job = job
        self.found: Mapping[str, Any] = {}
        self.watch: Stopwatch | None = None

    def connect(self, container: Container) -> Any:
        return container.connect(
            f"amqp://127.0.0.1:{self.job.port}",
            user=self.job.user,
            password=self.job.password,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
            reconnect=False,
        )

    def finish(self, event: Any) -> None:
        if self.watch is not None:
            self.found = self.watch.read()
        event.connection.close()

    def on_rejected(self, event: Any) -> None:
        raise OutcomeFailed(str(event.delivery.remote.condition))

    def on_released(self, event: Any) -> None:
        raise OutcomeFailed("released")

    def on_transport_error(self, event: Any) -> None:
        raise OutcomeFailed(str(event.transport.condition))

    def on_connection_error(self, event: Any) -> None:
        raise OutcomeFailed(str(event.connection.remote_condition))

    def on_session_error(self, event: Any) -> None:
        raise OutcomeFailed(str(event.session.remote_condition))

    def on_link_error(self, event: Any) -> None:
        raise OutcomeFailed(str(event.link.remote_condition))


class Sending(_Handler):
    """Sends until the time is up; `on_accepted` is called when the broker has a message."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._end = 0.0
        self._sent = self._in_flight = 0

    def on_start(self, event: Any) -> None:
        self._sender = event.container.create_sender(
            self.connect(event.container), self.job.address
        )

    def on_sendable(self, event: Any) -> None:
        if self.watch is None:
            self.watch = Stopwatch(self.job.servers)
            self._end = time.perf_counter() + self.job.seconds
        self._send()

    def on_accepted(self, event: Any) -> None:
        assert self.watch is not None, "it has sent"
        self.watch.add(time.perf_counter() - event.delivery.began)
        self._in_flight -= 1
        self._send()
        if not self._in_flight:
            self.finish(event)

    def _send(self) -> None:
        began = time.perf_counter()
        while self._in_flight < self.job.window and self._sender.credit and began < self._end:
            self._sent += 1
            self._in_flight += 1
            message = Message(body=BODY, inferred=True, durable=True, id=str(self._sent))
            self._sender.send(message).began = began
            began = time.perf_counter()


class Receiving(_Handler):
    """
    Takes, accepts and settles a number of messages, as Proton does by itself, without a
    confirmation. Where the broker `confirms`, the last message is done with its confirmation, and
    so are all others.
    """

    def __init__(self, job: Job, messages: int) -> None:
        super().__init__(job)
        self._left = messages
        self._free = 0  # credit that the broker hasn't got back yet

    def on_start(self, event: Any) -> None:
        connection = self.connect(event.container)
        self._receiver = event.container.create_receiver(connection, self.job.address)

    def on_link_opened(self, event: Any) -> None:
        self.watch = Stopwatch(self.job.servers)
        self._receiver.flow(self.job.window)

    def on_message(self, event: Any) -> None:
        assert self.watch is not None, "the link is open"
        self.watch.messages += 1
        self._left -= 1
        event.delivery.update(Delivery.ACCEPTED)
        if self._left == 0 and self.job.confirms:
            return
        event.delivery.settle()
        if self._left == 0:
            self.finish(event)
            return
        self._free += 1
        if self._free * 2 >= self.job.window:
            self._receiver.flow(self._free)
            self._free = 0

    def on_settled(self, event: Any) -> None:
        self.finish(event)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    sending = Sending(job)
    Container(sending).run()
    receiving = Receiving(job, int(sending.found["messages"]))
    Container(receiving).run()
    print(json.dumps({"send": sending.found, "receive": receiving.found}))


if __name__ == "__main__":
    main()
