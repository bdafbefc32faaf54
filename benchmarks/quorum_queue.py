"""
RabbitMQ's durable quorum queue, by AMQP 0-9-1 with publisher confirms.

Each client has a connection with one channel: one publish that waits for its confirm, or a consumer
whose acknowledgements have, as in every client of RabbitMQ, no answer.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import trio
from pamqp import base, body, commands, frame, header
from pamqp.common import FieldTable

from benchmarks.closed_loop import BODY, RABBITMQ, Client, Way
from tests.harness.rabbitmq import INSTALLED, USER, rabbitmq

QUEUE: Final = "messages"
PREFETCH: Final = 10  # messages that a consumer may hold
_EVERYTHING: Final = 1_000_000_000
_CHANNEL: Final = 1
_PERSISTENT: Final = 2
_CHUNK: Final = 65536
_HEADER: Final = b"AMQP\x00\x00\x09\x01"

Part = TypeVar("Part", bound=base.Frame | body.ContentBody)


class ChannelFailed(Exception):
    """RabbitMQ hung up, refused something, or took a publish without keeping it."""


@attrs.define(eq=False)
class Channel:
    """The only channel of a connection. It skips frames of other kinds than the awaited one."""

    _stream: trio.SocketStream
    _data: bytes = b""

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def tell(self, method: base.Frame, channel: int = _CHANNEL) -> None:
        await self._stream.send_all(frame.marshal(method, channel))

    async def next(self, kind: type[Part]) -> Part:
        """
        Raises:
            ChannelFailed: there won't be one.
        """
        while True:
            found = await self._next()
            if isinstance(found, kind):
                return found
            if isinstance(
                found, commands.Basic.Nack | commands.Channel.Close | commands.Connection.Close
            ):
                raise ChannelFailed(f"{found!r} instead of {kind.__name__}")

    async def _next(self) -> Any:
        while True:
            # 4.2.3: type, channel, size, payload, end
            if len(self._data) >= 7:
                end = 8 + int.from_bytes(self._data[3:7], "big")
                if len(self._data) >= end:
                    _, _, found = frame.unmarshal(self._data[:end])
                    self._data = self._data[end:]
                    return found
            more = await self._stream.receive_some(_CHUNK)
            if not more:
                raise ChannelFailed("RabbitMQ hung up")
            self._data += more


@attrs.define(eq=False)
class QuorumQueueClient:
    _channel: Channel
    _consumes: bool = False

    async def send(self, number: int) -> None:
        properties = commands.Basic.Properties(delivery_mode=_PERSISTENT, message_id=str(number))
        await self._channel.send(
            frame.marshal(commands.Basic.Publish(routing_key=QUEUE), _CHANNEL)
            + frame.marshal(header.ContentHeader(0, len(BODY), properties), _CHANNEL)
            + frame.marshal(body.ContentBody(BODY), _CHANNEL)
        )
        await self._channel.next(commands.Basic.Ack)

    async def receive_and_complete(self) -> int:
        if not self._consumes:
            self._consumes = True
            await self._channel.tell(commands.Basic.Qos(prefetch_count=PREFETCH))
            await self._channel.tell(commands.Basic.Consume(queue=QUEUE))
        delivery = await self._channel.next(commands.Basic.Deliver)
        await self._channel.next(body.ContentBody)
        await self._channel.tell(commands.Basic.Ack(delivery.delivery_tag or 0))
        return 1


@asynccontextmanager
async def quorum_queue(folder: Path) -> AsyncIterator[Way]:
    """A node with one queue."""

    @asynccontextmanager
    async def open_client() -> AsyncIterator[Client]:
        async with _open_channel(port) as channel:
            await channel.tell(commands.Confirm.Select())
            await channel.next(commands.Confirm.SelectOk)
            yield QuorumQueueClient(channel)

    async with rabbitmq(folder) as (node, port):
        await declare(port)
        yield Way(
            name=RABBITMQ,
            open_client=open_client,
            most=_EVERYTHING,
            version=version(),
            server=node.pid,
        )


async def declare(port: int) -> int:
    """
    Return when the node has the queue, durable and replicated, if only to itself; the number of
    messages that wait there.
    """
    async with _open_channel(port) as channel:
        arguments: FieldTable = {"x-queue-type": "quorum"}
        await channel.tell(commands.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments))
        return (await channel.next(commands.Queue.DeclareOk)).message_count or 0


def version() -> str:
    return INSTALLED.home().name.rpartition("-")[2]


@asynccontextmanager
async def _open_channel(port: int) -> AsyncIterator[Channel]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        channel = Channel(stream)
        await channel.send(_HEADER)
        await channel.next(commands.Connection.Start)
        await channel.tell(
            commands.Connection.StartOk(mechanism="PLAIN", response=f"\0{USER}\0{USER}"), 0
        )
        tune = await channel.next(commands.Connection.Tune)
        await channel.tell(
            commands.Connection.TuneOk(tune.channel_max, tune.frame_max, heartbeat=0), 0
        )
        await channel.tell(commands.Connection.Open(), 0)
        await channel.next(commands.Connection.OpenOk)
        await channel.tell(commands.Channel.Open())
        await channel.next(commands.Channel.OpenOk)
        yield channel
        await channel.tell(commands.Connection.Close(200, "bye", 0, 0), 0)
        await channel.next(commands.Connection.CloseOk)
