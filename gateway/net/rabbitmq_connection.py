"""
A connection to RabbitMQ on Trio: one task reads, one writes an outbox, one keeps time.

What is written is told apart: handed to the socket, so that its outcome is unknown when the
connection is lost; or still in the outbox, so that it never left.
"""

import ssl
from collections.abc import Sequence
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.domain.errors import BrokerError, Busy, Unavailable, Untrusted
from gateway.net.dialing import open_tcp
from gateway.net.rabbitmq_channel import Channel
from gateway.wire.rabbitmq import (
    Blocked,
    ConnectionClosed,
    ContentArrived,
    Conversation,
    Event,
    Login,
    MethodArrived,
    Opened,
    ProtocolError,
    Unblocked,
    method_frame,
)
from gateway.wire.rabbitmq_errors import error_of

_RECEIVE_SIZE: Final = 64 * 1024
_HIGH_WATER: Final = 1024 * 1024  # bytes in the outbox: with more, senders wait
_MISSED: Final = 2  # heartbeats without a byte, until a peer is dead
_GRACE: Final = 0.2  # seconds
_CLOSE_TIMEOUT: Final = 2.0
_LARGEST: Final = 512 * 1024 * 1024  # bytes of a message: RabbitMQ's own limit


@attrs.frozen(kw_only=True)
class Target:
    """Where a broker is, and how to get in. `connect_timeout` includes the handshakes."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    login: Login
    connect_timeout: float

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def connect(target: Target, nursery: trio.Nursery) -> "RabbitmqConnection":
    """
    Return an open connection, whose tasks live in `nursery` until it is over.

    Raises:
        Unavailable: no broker answered in time as it should.
        Untrusted: its certificate isn't trusted.
        NotAuthorized: the login is refused.
        Busy: the broker has as many connections as it allows.
    """
    connection: RabbitmqConnection | None = None
    with trio.move_on_after(target.connect_timeout):
        connection = RabbitmqConnection(await _open_stream(target), target)
        await nursery.start(connection.run)
        return connection
    text = "no connection" if connection is None else "no handshake"
    raise Unavailable(f"{target}: {text} within {target.connect_timeout:g} s")


class RabbitmqConnection:
    """One connection. It never raises on its own: `error` says why it is over."""

    def __init__(self, stream: trio.abc.Stream, target: Target) -> None:
        self.blocked: str | None = None  # why the broker takes no messages now
        self.opened: Opened | None = None
        self.error: BrokerError | None = None
        self.ended = trio.Event()
        self.handed = 0  # bytes of those written that the socket was given
        self.written = 0
        self._target = target
        self._stream = stream
        self._conversation = Conversation(target.login, max_body=_LARGEST)
        self._channels: dict[int, Channel] = {}
        self._last_number = 0
        self._outbox: list[bytes] = []
        self._wake = trio.lowlevel.ParkingLot()  # the writer waits here
        self._room = trio.lowlevel.ParkingLot()
        self._heard = self._sent = 0.0
        self._scope = trio.CancelScope()

    @property
    def is_over(self) -> bool:
        return self.error is not None

    @property
    def max_frame(self) -> int:
        return self._conversation.max_frame

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Say hello and live; return when it is over.

        Raises:
            BrokerError: it was over before it was open.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._read, task_status)
                    await self._keep_time()
        finally:
            self._finish(Unavailable(f"{self._target}: the connection was closed"))
            with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                await trio.aclose_forcefully(self._stream)
        if self.opened is None and self.error is not None:
            raise self.error

    async def open_channel(self) -> Channel:
        """
        Return a channel that is ready.

        Raises:
            Busy: all that the broker allows are in use.
            BrokerError: the connection is over.
        """
        if self.error is not None:
            await trio.lowlevel.checkpoint()
            raise Unavailable(str(self.error))
        channel = Channel(self._free_number(), self)
        self._channels[channel.number] = channel
        try:
            await channel.call(commands.Channel.Open())
        except BaseException:
            channel.close()
            raise
        return channel

    @property
    def has_room(self) -> bool:
        """Whether the outbox isn't full, or the connection is over."""
        return self.written - self.handed <= _HIGH_WATER or self.error is not None

    async def wait_for_room(self) -> None:
        """Return when it has room."""
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            await self._room.park()

    def write(self, channel: int, *methods: base.Frame) -> None:
        self.write_frames([method_frame(channel, method) for method in methods])

    def write_frames(self, frames: Sequence[bytes]) -> None:
        """Put into the outbox what goes out together."""
        if self.error is None:
            self._outbox += frames
            self.written += sum(map(len, frames))
            self._wake.unpark_all()

    def forget(self, number: int) -> None:
        self._channels.pop(number, None)

    def fail(self, error: BrokerError) -> None:
        """End it now, for that reason."""
        self._finish(error)
        self._scope.cancel()

    async def close(self) -> None:
        """Say goodbye; return when the broker has heard it, or two seconds later."""
        goodbye = commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
        self.write(0, goodbye)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(_CLOSE_TIMEOUT):
            await self.ended.wait()
        self.fail(Unavailable("closed"))

    def _free_number(self) -> int:
        assert self.opened is not None
        most = self.opened.max_channels
        if len(self._channels) >= most:
            raise Busy(f"{self._target}: all {most} channels are in use", retry_after=1.0)
        while True:
            self._last_number = self._last_number % most + 1
            if self._last_number not in self._channels:
                return self._last_number

    async def _read(self, task_status: trio.TaskStatus[None]) -> None:
        while True:
            try:
                data = await self._stream.receive_some(_RECEIVE_SIZE)
            except (trio.BrokenResourceError, OSError) as error:
                return self.fail(self._lost(str(error) or "reset"))  # noqa: ASYNC910 over
            if not data:
                return self.fail(self._lost("the broker ended it"))  # noqa: ASYNC910 over
            self._heard = trio.current_time()
            try:
                events = self._conversation.feed(bytes(data))
            except ProtocolError as error:
                return self.fail(self._lost(str(error)))  # noqa: ASYNC910 over
            for event in events:
                self._handle(event)
            if self.opened is not None and task_status is not None:
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
            if self._conversation.has_own:
                self._wake.unpark_all()

    def _lost(self, why: str) -> Unavailable:
        return Unavailable(f"{self._target}: the connection was lost: {why}")

    def _handle(self, event: Event) -> None:
        match event:
            case MethodArrived() | ContentArrived():
                channel = self._channels.get(event.channel)
                if channel is not None:
                    channel.handle(event)
                elif isinstance(event.method, commands.Connection.CloseOk):
                    self.fail(Unavailable("closed"))
            case Opened():
                self.opened = event
            case Blocked():
                self.blocked = event.reason or "no reason given"
            case Unblocked():
                self.blocked = None
            case ConnectionClosed():
                error = error_of(event.code, event.text)
                # Once it is open, the end of it is an outage: who dials again learns what it is.
                self.fail(error if self.opened is None else self._lost(str(error)))

    async def _write(self) -> None:
        while True:
            if not self._outbox and not self._conversation.has_own:
                await self._wake.park()
                continue
            own = self._conversation.take()
            data = own + b"".join(self._outbox)
            self.written += len(own)
            self.handed += len(data)
            self._outbox = []
            self._sent = trio.current_time()
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, OSError) as error:
                return self.fail(self._lost(str(error) or "reset"))  # noqa: ASYNC910 over
            self._room.unpark_all()

    async def _keep_time(self) -> None:
        """Send heartbeats, and end a connection on which none come."""
        self._heard = self._sent = trio.current_time()
        interval = float(self._target.login.heartbeat)
        while True:
            await trio.sleep(interval / 2)
            if trio.current_time() - self._heard > _MISSED * interval:
                await trio.sleep(_GRACE)  # it may be us who stood still: read what came meanwhile
                silence = trio.current_time() - self._heard
                if silence > _MISSED * interval:
                    return self.fail(self._lost(f"not a byte for {silence:.1f} s"))
            now = trio.current_time()
            if not self._outbox and now - self._sent >= interval / 2:
                self.write_frames([self._conversation.beat()])

    def _finish(self, error: BrokerError) -> None:
        if self.error is not None:
            return
        self.error = error
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.end(error)
        self._outbox = []
        self._room.unpark_all()
        self.ended.set()


async def _open_stream(target: Target) -> trio.abc.Stream:
    try:
        tcp = await open_tcp(target.host, target.port)
    except OSError as error:
        raise Unavailable(f"{target}: {error}") from error
    if target.tls is None:
        return tcp
    stream = trio.SSLStream(tcp, target.tls, server_hostname=target.host)
    try:
        await _shake_hands(stream, target)
    except BaseException:
        await trio.aclose_forcefully(tcp)
        raise
    return stream


async def _shake_hands(stream: trio.SSLStream[trio.SocketStream], target: Target) -> None:
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            raise Untrusted(f"{target}: {error.__cause__.verify_message}") from error
        raise Unavailable(f"{target}: TLS: {error.__cause__ or error}") from error
