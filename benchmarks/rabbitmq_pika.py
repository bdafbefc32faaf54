"""
A client in a process of its own: pika, with publisher confirms and many messages in flight.

Sends for some seconds, and then consumes and acknowledges all messages with as much prefetch.
Prints one JSON object. Usage: python -m benchmarks.rabbitmq_pika JOB
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import attrs
import pika

from benchmarks.stopwatch import Stopwatch

BODY: Final = b"x" * 1024
_PERSISTENT: Final = 2


class OutcomeFailed(Exception):
    """RabbitMQ refused or returned a message, or hung up."""


@attrs.define(eq=False)
class _User(ABC):
    """A user with a connection and its channel."""

    job: Mapping[str, Any]
    found: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    channel: Any = attrs.field(default=None, init=False)
    watch: Stopwatch = attrs.field(init=False)
    _connection: Any = attrs.field(init=False)

    def run(self) -> Mapping[str, Any]:
        parameters = pika.ConnectionParameters(
            host="127.0.0.1",
            port=self.job["port"],
            credentials=pika.PlainCredentials(self.job["user"], self.job["password"]),
        )
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._lost,
            on_close_callback=self._closed,
        )
        self._connection.ioloop.start()
        return self.found

    def finish(self) -> None:
        """
        Close the connection: the broker handles the acknowledgements before it answers the close.
        """
        self.found = self.watch.read()
        self._connection.close()

    @abstractmethod
    def begin(self) -> None:
        """The channel is open."""

    def _opened(self, channel: Any) -> None:
        self.channel = channel
        self.channel.add_on_return_callback(self._returned)
        self.watch = Stopwatch(self.job["servers"])
        self.begin()

    def _returned(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        raise OutcomeFailed(f"returned: {method.reply_text}")

    def _lost(self, _connection: Any, error: Any) -> None:
        raise OutcomeFailed(repr(error))

    def _closed(self, connection: Any, reason: Any) -> None:
        if not self.found:
            raise OutcomeFailed(str(reason))
        connection.ioloop.stop()


@attrs.define(eq=False)
class Sending(_User):
    """As many as the window has room for, as long as there is time."""

    _end: float = 0.0
    _sent: int = 0
    _began: dict[int, float] = attrs.field(factory=dict)  # by delivery tag

    def begin(self) -> None:
        self.channel.confirm_delivery(self._confirmed, callback=lambda _: self._start())

    def _start(self) -> None:
        self.watch = Stopwatch(self.job["servers"])
        self._end = time.perf_counter() + self.job["seconds"]
        self._send()

    def _send(self) -> None:
        began = time.perf_counter()
        while len(self._began) < self.job["window"] and began < self._end:
            self._sent += 1
            self._began[self._sent] = began
            properties = pika.BasicProperties(delivery_mode=_PERSISTENT, message_id=str(self._sent))
            self.channel.basic_publish("", self.job["address"], BODY, properties, mandatory=True)
            began = time.perf_counter()

    def _confirmed(self, frame: Any) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            raise OutcomeFailed("refused")
        last, now = frame.method.delivery_tag, time.perf_counter()
        tags = [last]
        if frame.method.multiple:
            tags = [tag for tag in self._began if tag <= last]
        for tag in tags:
            self.watch.add(now - self._began.pop(tag))
        self._send()
        if not self._began:
            self.finish()


@attrs.define(eq=False)
class Receiving(_User):
    """Takes and acknowledges a number of messages, without a confirmation."""

    left: int = 0

    def begin(self) -> None:
        self.channel.basic_qos(prefetch_count=self.job["window"])
        self.channel.basic_consume(self.job["address"], self._take)

    def _take(self, channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        self.watch.messages += 1
        self.left -= 1
        if self.left == 0:
            self.finish()


def main() -> None:
    job = json.loads(sys.argv[1])
    sent = Sending(job).run()
    received = Receiving(job, left=int(sent["messages"])).run()
    print(json.dumps({"send": sent, "receive": received}))


if __name__ == "__main__":
    main()
