"""
RabbitMQ's own client as a producer: pika, unmodified, with confirms, in a thread of its own. It
connects again when its connection has ended, as an application does.

A confirm doesn't say who gave it. So each message has a stamp as Pairgate's own have, by which its
copies are told apart: what was diverted comes home with another one.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import pika
import trio
from pika.adapters.select_connection import IOLoop

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, OutcomeUnknown, Unavailable
from gateway.domain.message import Message
from gateway.wire.rabbitmq.properties import COPY, CopyId
from tests.harness.rabbitmq_contents import AwaitedPublish

_PERSISTENT: Final = 2
_PAUSE: Final = 0.2  # seconds before it connects again


@attrs.define(eq=False)
class PikaProducer:
    _port: int
    _token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    _opened: trio.Event = attrs.field(factory=trio.Event, init=False)
    _loop: Any = attrs.field(factory=IOLoop, init=False)
    # Of the thread: the channel while it's open, and its publishes by their tags, which are Trio's.
    _channel: Any = attrs.field(default=None, init=False)
    _waiting: dict[int, AwaitedPublish] = attrs.field(factory=dict, init=False)
    _tag: int = attrs.field(default=0, init=False)
    stamps: dict[str, CopyId] = attrs.field(factory=dict, init=False)  # by message id

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        Publish one message to a queue. Returns when it is confirmed.

        Raises:
            Unavailable: there is no connection, or the publish was refused.
            OutcomeUnknown: the connection has ended meanwhile.
        """
        [message] = messages
        publish, identity = AwaitedPublish(), str(message.message_id)
        number = len(self.stamps)
        self.stamps[identity] = CopyId(time.time_ns() // 1_000_000, number, f"pika-{id(self)}")
        self._loop.add_callback_threadsafe(partial(self._publish, entity.name, message, publish))
        await publish.done.wait()
        if publish.error is not None:
            raise publish.error

    async def wait_until_open(self) -> None:
        """Return when the first connection is there."""
        await self._opened.wait()

    # --- in the thread

    def serve(self) -> None:
        """Connect, again and again; returns after `end`."""
        self._connect()
        self._loop.start()

    def _connect(self) -> None:
        pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=5),
            on_open_callback=lambda one: one.channel(on_open_callback=self._open),
            on_open_error_callback=self._lost,
            on_close_callback=self._lost,
            custom_ioloop=self._loop,
        )

    def _open(self, channel: Any) -> None:
        self._tag = 0
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._begin(channel))

    def _begin(self, channel: Any) -> None:
        self._channel = channel
        self._token.run_sync_soon(self._opened.set)

    def _publish(self, queue: str, message: Message, publish: AwaitedPublish) -> None:
        if self._channel is None or not self._channel.is_open:
            self._settle(publish, Unavailable("no connection"))
            return
        self._tag += 1
        self._waiting[self._tag] = publish
        properties = pika.BasicProperties(
            message_id=str(message.message_id),
            delivery_mode=_PERSISTENT,
            headers={**message.properties, COPY: str(self.stamps[str(message.message_id)])},
        )
        self._channel.basic_publish("", queue, message.body, properties)

    def _confirmed(self, frame: Any) -> None:
        last, accepted = frame.method.delivery_tag, isinstance(frame.method, pika.spec.Basic.Ack)
        tags = [tag for tag in self._waiting if tag <= last] if frame.method.multiple else [last]
        for tag in tags:
            refused = None if accepted else Unavailable("a nack")
            self._settle(self._waiting.pop(tag), refused)

    def _lost(self, _: Any, reason: Any) -> None:
        self._channel, waiting, self._waiting = None, self._waiting, {}
        for publish in waiting.values():
            self._settle(publish, OutcomeUnknown(str(reason)))
        self._loop.call_later(_PAUSE, self._connect)

    def _settle(self, publish: AwaitedPublish, error: BrokerError | None) -> None:
        self._token.run_sync_soon(publish.settle, error)

    # --- the end

    def end(self) -> None:
        """Let `serve` return."""
        self._loop.add_callback_threadsafe(self._loop.stop)


@asynccontextmanager
async def open_pika(port: int) -> AsyncIterator[PikaProducer]:
    """A producer of `guest` before that port. Its connection is dropped in the end."""
    producer = PikaProducer(port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, producer.serve)
        try:
            await producer.wait_until_open()
            yield producer
        finally:
            producer.end()
