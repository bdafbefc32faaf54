"""Clients of RabbitMQ that harm others, and one that doesn't: AMQP 0-9-1, frame by frame."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio
from pamqp import base, commands, header

from benchmarks.aggressors import ALMOST_ALL
from gateway.wire.rabbitmq.frames import METHOD, content_frames, method_frame
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER, FrameReader

MAX_FRAME: Final = 131_072 - 8  # bytes of a payload: RabbitMQ's default, less the frame's own
WINDOW: Final = 1000  # publishes without a confirm
CHANNELS: Final = 200  # of one connection, at a time
SECOND: Final = 1.0
FIELDS: Final = 17_000  # of a table: some 119 KB
FIRST_FIELDS: Final = 2000  # of the table of a client that isn't logged in: 14 KB
LARGE: Final = 4 * 1024 * 1024  # bytes of a message that doesn't end
_ENDS: Final = (commands.Channel.Close, commands.Connection.Close)


def publish_of(queue: str, body: bytes, channel: int = 1) -> bytes:
    """The frames of a publish."""
    properties = commands.Basic.Properties(delivery_mode=2)
    head = header.ContentHeader(body_size=len(body), properties=properties).marshal()
    frames = content_frames(channel, head, body, MAX_FRAME)
    return method_frame(channel, commands.Basic.Publish(routing_key=queue)) + b"".join(frames)


@attrs.define(eq=False)
class RabbitClient:
    """A connection with a channel that has confirms."""

    stream: trio.SocketStream
    _reader: FrameReader = attrs.field(factory=FrameReader)
    _arrived: list[base.Frame] = attrs.field(factory=list)
    published: int = 0
    confirmed: int = 0

    async def ask(self, channel: int, request: base.Frame) -> base.Frame:
        await self.stream.send_all(method_frame(channel, request))
        return await self.next()

    async def next(self) -> base.Frame:
        """The next method; bodies are skipped. Raises: trio.BrokenResourceError."""
        while not self._arrived:
            data = await self.stream.receive_some()
            if not data:
                raise trio.BrokenResourceError("the connection has ended")
            frames = self._reader.feed(bytes(data))
            self._arrived += [each.method() for each in frames if each.kind == METHOD]
        method = self._arrived.pop(0)
        if isinstance(method, _ENDS):
            raise trio.BrokenResourceError(method.reply_text)
        return method

    async def publish(self, frames: bytes, window: int = 1) -> None:
        """Publish, with at most so many unconfirmed publishes."""
        self.published += 1
        await self.stream.send_all(frames)
        while self.published - self.confirmed >= window:
            confirm = await self.next()
            if not isinstance(confirm, commands.Basic.Ack):
                raise trio.BrokenResourceError(confirm.name)
            self.confirmed = confirm.delivery_tag if confirm.multiple else self.confirmed + 1


@asynccontextmanager
async def rabbit_client(port: int, user: str, password: str) -> AsyncIterator[RabbitClient]:
    """A client that has logged in, with channel 1 in confirm mode."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = RabbitClient(stream)
        await stream.send_all(PROTOCOL_HEADER)
        await client.next()
        start = commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US")
        await client.ask(0, start)
        tune = commands.Connection.TuneOk(2047, MAX_FRAME + 8, 0)
        await stream.send_all(method_frame(0, tune))
        await client.ask(0, commands.Connection.Open())
        await client.ask(1, commands.Channel.Open())
        await client.ask(1, commands.Confirm.Select())
        yield client


async def publish_without_end(client: RabbitClient, queue: str, body: bytes, window: int) -> None:
    """Publish for ever, with so many unconfirmed."""
    frames = publish_of(queue, body)
    while True:
        await client.publish(frames, window)


async def never_read(client: RabbitClient, queue: str) -> None:
    """Take deliveries of all messages without a limit, ask for more, and read no answer."""
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    consume = commands.Basic.Consume(queue=queue, consumer_tag="slow", no_ack=False)
    get = method_frame(1, commands.Basic.Get(queue=queue))
    await client.stream.send_all(method_frame(1, consume) + WINDOW * get)
    await trio.sleep_forever()


async def ask_without_end(client: RabbitClient, request: base.Frame, window: int) -> None:
    """Make a request again and again, so many at a time, and read the answers."""
    frames = window * method_frame(1, request)
    while True:
        await client.stream.send_all(frames)
        for _ in range(window):
            await client.next()


def declaration(queue: str) -> base.Frame:
    """A question for a queue, with a table of nearly a frame, which the broker doesn't read."""
    table = {f"{number:04x}": True for number in range(FIELDS)}
    return commands.Queue.Declare(queue=queue, passive=True, arguments=table)


async def consume_without_end(client: RabbitClient, queue: str) -> None:
    """Begin many consumers and end them."""
    begun = [commands.Basic.Consume(queue=queue, consumer_tag=str(each)) for each in range(WINDOW)]
    ended = [commands.Basic.Cancel(consumer_tag=str(each)) for each in range(WINDOW)]
    while True:
        for requests in (begun, ended):
            await client.stream.send_all(b"".join(method_frame(1, each) for each in requests))
            for _ in requests:
                await client.next()


async def begin_logins(port: int) -> None:
    """Begin a login with the largest properties that the gateway reads, and never finish it."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = RabbitClient(stream)
        await stream.send_all(PROTOCOL_HEADER)
        await client.next()
        table = {f"{number:04x}": True for number in range(FIRST_FIELDS)}
        start = commands.Connection.StartOk(table, "PLAIN", "\0nobody\0wrong", "en_US")
        await client.ask(0, start)


async def trickle(client: RabbitClient, queue: str) -> None:
    """Send a publish, a byte a second."""
    for byte in publish_of(queue, bytes(MAX_FRAME)):
        await client.stream.send_all(bytes([byte]))
        await trio.sleep(SECOND)


async def leave_unfinished(client: RabbitClient, queue: str) -> None:
    """Send a large message but for its end, and wait."""
    await client.stream.send_all(publish_of(queue, bytes(LARGE))[:-1])
    await client.next()


async def flood_channels(client: RabbitClient) -> None:
    """Open channels and close them."""
    numbers = range(2, CHANNELS + 2)
    opened = b"".join(method_frame(each, commands.Channel.Open()) for each in numbers)
    close = commands.Channel.Close(200, "", 0, 0)
    closed = b"".join(method_frame(each, close) for each in numbers)
    while True:
        for frames in (opened, closed):
            await client.stream.send_all(frames)
            for _ in numbers:
                await client.next()


async def fill_transactions(client: RabbitClient, queue: str) -> None:
    """Begin transactions with a large message each, and leave them open."""
    for channel in range(2, CHANNELS + 2):
        await client.ask(channel, commands.Channel.Open())
        await client.ask(channel, commands.Tx.Select())
        await client.stream.send_all(publish_of(queue, bytes(ALMOST_ALL), channel))
    await client.next()
