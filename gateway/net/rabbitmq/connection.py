"""
A connection to RabbitMQ on Trio: one task reads, one writes the outbox, one keeps time.

Data handed to the socket has an unknown outcome when the connection is lost; data still in the
outbox was never sent. The two are counted separately.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.domain.errors import BrokerError, Unavailable, Unreachable
from gateway.domain.health.trust import Trust
from gateway.net.dialing import dial, late_refusal
from gateway.net.rabbitmq.channel import Channel
from gateway.net.server_address import ServerAddress
from gateway.wire.rabbitmq.errors import error_of, refusal_of_connection
from gateway.wire.rabbitmq.frames import (
    Blocked,
    BrokerClosed,
    ContentArrived,
    Conversation,
    Event,
    HandshakeDone,
    Login,
    MethodArrived,
    ProtocolError,
    Unblocked,
    method_frame,
)

_RECEIVE_SIZE: Final = 64 * 1024  # as many as Trio's streams receive at once by default
_HIGH_WATER: Final = 1024 * 1024  # bytes in the outbox, above which senders wait
_MISSED: Final = 2  # heartbeat intervals without a byte, after which the peer counts as lost
_GRACE: Final = 0.2  # seconds: enough for data that the kernel has already
_CLOSE_TIMEOUT: Final = 2.0  # seconds: a broker that is alive answers a close within a round trip
_LARGEST: Final = 512 * 1024 * 1024  # bytes of a message; RabbitMQ's own limit


@attrs.frozen(kw_only=True)
class BrokerLogin:
    """The address of a broker, and the login. `connect_timeout` includes the handshakes."""

    place: ServerAddress
    login: Login
    connect_timeout: float

    def __str__(self) -> str:
        return str(self.place)


async def connect(target: BrokerLogin, nursery: trio.Nursery) -> "RabbitmqConnection":
    """
    Return an open connection, whose tasks run in `nursery` until it ends.

    Raises:
        Unreachable: no broker answered correctly in time, or it takes no connections now, as it has
            as many as it allows.
        Untrusted: its certificate isn't trusted.
        NotAuthorized: the login is refused.
    """
    connection: RabbitmqConnection | None = None
    with trio.move_on_after(target.connect_timeout):
        connection = RabbitmqConnection(await dial(target.place), target)
        await nursery.start(connection.run)
        return connection
    text = "no connection" if connection is None else "no handshake"
    raise Unreachable(f"{target}: {text} within {target.connect_timeout:.3g} s")


class RabbitmqConnection:
    """A connection to RabbitMQ, which never raises by itself: `error` says why it has ended."""

    def __init__(self, stream: trio.abc.Stream, target: BrokerLogin) -> None:
        self.blocked: str | None = None  # why the broker takes no messages at the moment
        self.opened: HandshakeDone | None = None
        self.error: BrokerError | None = None
        self.ended = trio.Event()
        self.trust = Trust(trio.current_time())
        self._is_replaced = False
        self.handed = 0  # written bytes that were handed to the socket
        self.written = 0
        self._target = target
        self._stream = stream
        self._conversation = Conversation(target.login, max_body=_LARGEST)
        self._channels: dict[int, Channel] = {}
        self._last_number = 0
        self._outbox: list[bytes] = []
        self._wake = trio.lowlevel.ParkingLot()  # the writer waits here
        self._room = trio.lowlevel.ParkingLot()
        self._asking = 0  # callers that wait for new channels
        self._asked = trio.lowlevel.ParkingLot()
        self._heard = self._sent = 0.0
        self._scope = trio.CancelScope()

    def __str__(self) -> str:
        return str(self._target)

    @property
    def is_over(self) -> bool:
        return self.error is not None

    @property
    def max_frame(self) -> int:
        return self._conversation.max_frame

    @property
    def channels(self) -> int:
        """The channels in use, with those that the broker hasn't confirmed as closed yet."""
        return len(self._channels)

    @property
    def holds(self) -> bool:
        """True if the end of the connection would cost the user of a channel a lock."""
        return any(each.holds() for each in self._channels.values() if not each.is_over)

    @property
    def asks_for_channels(self) -> bool:
        """True if the broker hasn't answered yet if there may be further channels."""
        return bool(self._asking)

    @property
    def max_channels(self) -> int:
        """The channels that the broker allows on this connection."""
        assert self.opened is not None, "it is open"
        return self.opened.max_channels

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Open the connection and run it; return when it has ended.

        Raises:
            BrokerError: it ended before it was open.
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
        """As `open_channels`, for one."""
        [channel] = await self.open_channels(1)
        return channel

    async def open_channels(self, number: int) -> list[Channel]:
        """
        Open so many channels at once, or none.

        Raises:
            Unavailable: all channels that the broker allows are in use, or the connection ended.
        """
        if self.error is not None:
            raise Unavailable(str(self.error))
        opened: list[Channel] = []
        self._asking += 1
        try:
            for _ in range(number):
                opened.append(Channel(self._free_number(), self))
                self._channels[opened[-1].number] = opened[-1]
            for answer in [each.ask(commands.Channel.Open())[0] for each in opened]:
                await answer.wait()
        except BaseException:
            for each in opened:
                each.close()
            raise
        finally:
            self._asking -= 1
            self._asked.unpark_all()
        return opened

    async def wait_for_channels(self) -> None:
        """Return when it doesn't ask for channels."""
        while self.asks_for_channels:
            await self._asked.park()

    @property
    def has_room(self) -> bool:
        """True if the outbox is below its limit, or the connection has ended."""
        return self.written - self.handed <= _HIGH_WATER or self.error is not None

    async def wait_for_room(self) -> None:
        """Return when `has_room`."""
        while not self.has_room:
            await self._room.park()

    def write(self, channel: int, *methods: base.Frame) -> None:
        self.write_frames([method_frame(channel, method) for method in methods])

    def write_frames(self, frames: Sequence[bytes]) -> None:
        """Add frames to the outbox, to be written together."""
        if self.error is None:
            self._outbox += frames
            self.written += sum(map(len, frames))
            self._wake.unpark_all()

    def forget(self, number: int) -> None:
        self._channels.pop(number, None)
        self._close_if_replaced()

    def replaced(self) -> None:
        """Note that another connection is used from now on: this one ends with its channels."""
        self._is_replaced = True
        self._close_if_replaced()

    def fail(self, error: BrokerError) -> None:
        """End the connection now, for the given reason."""
        self._finish(error)
        self._scope.cancel()

    async def close(self) -> None:
        """Close in order; return when the broker has answered, or after two seconds."""
        goodbye = commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
        self.write(0, goodbye)
        with trio.move_on_after(_CLOSE_TIMEOUT):
            await self.ended.wait()
        self.fail(Unavailable("closed"))

    def _close_if_replaced(self) -> None:
        if self._is_replaced and all(each.is_over for each in self._channels.values()):
            self.fail(Unavailable(f"{self._target}: the connection was replaced"))

    def _free_number(self) -> int:
        most = self.max_channels
        if len(self._channels) >= most:
            raise Unavailable(f"{self._target}: all {most} channels are in use")
        while True:
            self._last_number = self._last_number % most + 1
            if self._last_number not in self._channels:
                return self._last_number

    async def _read(self, task_status: trio.TaskStatus[None]) -> None:
        while True:
            try:
                data = await self._stream.receive_some(_RECEIVE_SIZE)
            except (trio.BrokenResourceError, OSError) as error:
                return self.fail(self._broken(error))
            if not data:
                return self.fail(self._lost("the broker ended it"))
            self._heard = trio.current_time()
            try:
                events = self._conversation.feed(bytes(data))
            except ProtocolError as error:
                return self.fail(self._lost(str(error)))
            for event in events:
                self._handle(event)
            if self.opened is not None and task_status is not None:
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
            if self._conversation.has_own:
                self._wake.unpark_all()

    def _broken(self, error: Exception) -> BrokerError:
        refused = None
        if self.opened is None:
            refused = late_refusal(self._target, self._target.place.tls, error)
        return refused or self._lost(str(error) or "reset")

    def _lost(self, why: str) -> Unavailable:
        kind = Unreachable if self.opened is None else Unavailable
        return kind(f"{self._target}: the connection was lost: {why}")

    def _handle(self, event: Event) -> None:
        match event:
            case MethodArrived() | ContentArrived():
                channel = self._channels.get(event.channel)
                if channel is not None:
                    channel.handle(event)
                elif isinstance(event.method, commands.Connection.CloseOk):
                    self.fail(Unavailable("closed"))
            case HandshakeDone():
                self.opened = event
            case Blocked():
                self.blocked = event.reason or "no reason given"
            case Unblocked():
                self.blocked = None
            case BrokerClosed():
                self.fail(self._end_of(event.code, event.text))

    def _end_of(self, code: int, text: str) -> BrokerError:
        if self.opened is None:
            return refusal_of_connection(code, text)
        # The end of an open connection is an outage: the next dial finds out the reason.
        return self._lost(str(error_of(code, text)))

    async def _write(self) -> None:
        while True:
            if not self._outbox and not self._conversation.has_own:
                await self._wake.park()
                continue
            own = self._conversation.data_to_send()
            data = own + b"".join(self._outbox)
            self.written += len(own)
            self.handed += len(data)
            self._outbox = []
            self._sent = trio.current_time()
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, OSError) as error:
                return self.fail(self._broken(error))
            self._room.unpark_all()

    async def _keep_time(self) -> None:
        """Send heartbeats, and end the connection if none arrive."""
        self._heard = self._sent = trio.current_time()
        interval = float(self._target.login.heartbeat)
        while True:
            await trio.sleep(interval / 2)
            self._close_if_replaced()  # channels that were closed without an answer
            if trio.current_time() - self._heard > _MISSED * interval:
                # This process may have been paused: read the data that arrived meanwhile.
                await trio.sleep(_GRACE)
                silence = trio.current_time() - self._heard
                if silence > _MISSED * interval:
                    return self.fail(self._lost(f"not a byte for {silence:.1f} s"))
            now = trio.current_time()
            if not self._outbox and now - self._sent >= interval / 2:
                self.write_frames([self._conversation.heartbeat()])

    def _finish(self, error: BrokerError) -> None:
        if self.error is not None:
            return
        self.error = error
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.fail(error)
        self._outbox = []
        self._room.unpark_all()
        self.ended.set()
