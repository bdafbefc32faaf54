"""
A client's connection, from its protocol header to its end. Frames of its channels become work for
`ServedChannel`; while too much of it waits, the client isn't read.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.domain.access import Access, Right, TokenClaim
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, NotAuthorized
from gateway.frontends.amqp.pending import HeldBackStream, Pending
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.client_side import read_protocol_header
from gateway.frontends.rabbitmq.login import ClientLogin
from gateway.frontends.rabbitmq.outbox import Outbox
from gateway.frontends.rabbitmq.session import CLOSED
from gateway.frontends.rabbitmq_broker.channel import ServedChannel
from gateway.frontends.rabbitmq_broker.channel_owner import ChannelOwner, ConsumerCount
from gateway.frontends.rabbitmq_broker.direct_replies import DirectReplies
from gateway.frontends.rabbitmq_broker.logins import TUNE, admit, check_tuned, greeting
from gateway.frontends.rabbitmq_broker.publishing import ArrivedPublish
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused
from gateway.frontends.rabbitmq_broker.routed_sends import RoutedSends
from gateway.frontends.rabbitmq_broker.vhost import VHOST, ServedVhost
from gateway.net.turns import Waiters
from gateway.net.visits import current_visit
from gateway.wire.rabbitmq.errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FORCED,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
)
from gateway.wire.rabbitmq.frames import (
    BODY_SIZE,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    LEAST_HEADER,
    METHOD,
    OVERHEAD,
    ProtocolError,
    method_frame,
)
from gateway.wire.rabbitmq.relayed import (
    FrameReader,
    RelayedContent,
    RelayedFrame,
    check_heartbeat,
)
from gateway.wire.rabbitmq.stored import StoredContent

LARGEST: Final = 16 * 1024 * 1024  # bytes of a body: RabbitMQ 4's `max_message_size`
_MOST_UNFINISHED: Final = 64 * 1024 * 1024  # bytes of publishes whose frames haven't all arrived
_MISSED: Final = 2.5  # heartbeat intervals without a byte: as RabbitMQ, between two and three
_LOOK: Final = 0.5  # seconds between two looks at heartbeats, at most
_LOOKS: Final = 4  # in a heartbeat interval, at least: a silent client is gone before three
_GOODBYE: Final = 2.0  # seconds for a client to read the last frame, and to hang up
# The methods with which the tasks of a channel begin and end.
_OF_TASKS: Final = (commands.Channel.Open.index, commands.Channel.Close.index)
_OBJECTS: Final = 640  # bytes that a method takes: as `relayed` measured for a content


@attrs.frozen(kw_only=True)
class BrokerTarget:
    """The parts that all connections of one endpoint share."""

    vhost: ServedVhost
    sends: RoutedSends
    authorizer: Authorizer
    login_timeout: float  # seconds
    most_waiting: int  # methods and publishes of a connection without an answer
    most_bytes: int  # of these
    replies: DirectReplies = attrs.field(factory=DirectReplies)


@attrs.define(eq=False)
class _Unfinished:
    """The bytes of publishes whose frames haven't all arrived."""

    size: int = 0

    def count(self) -> int:
        return self.size


@attrs.define(eq=False)
class ServedConnection:
    """
    Serves one client; `run` returns at its end. Nothing that it has refers to it then: Python finds
    a circle of objects much later than their bytes should be free.
    """

    _stream: trio.abc.Stream
    _target: BrokerTarget
    _nursery: trio.Nursery  # of this connection alone
    _login: ClientLogin = attrs.field(factory=ClientLogin, init=False)
    _claim: TokenClaim | None = attrs.field(default=None, init=False)
    _outbox: Outbox = attrs.field(factory=Outbox, init=False)
    _pending: Pending = attrs.field(init=False)
    _held_back: HeldBackStream = attrs.field(init=False)
    _channels: dict[int, ServedChannel] = attrs.field(factory=dict, init=False)
    _served: int = attrs.field(default=0, init=False)  # channels whose deliveries aren't back
    _channel_ended: Waiters = attrs.field(factory=Waiters, init=False)
    _consumers: ConsumerCount = attrs.field(factory=ConsumerCount, init=False)
    _unfinished: _Unfinished = attrs.field(factory=_Unfinished, init=False)
    _heard: float = attrs.field(default=0.0, init=False)
    _is_ending: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        target = self._target
        self._pending = Pending(
            target.most_waiting, target.most_bytes, load_now=current_visit().load
        )
        self._held_back = HeldBackStream(
            self._stream, self._pending, unfinished=self._unfinished.count
        )

    async def run(self) -> None:
        """Serve until one side ends the connection."""
        try:
            with trio.move_on_after(self._target.login_timeout):
                if not await read_protocol_header(self._stream):
                    return
                self._heard = trio.current_time()
                self._say(greeting(self._target.authorizer))
                self._nursery.start_soon(self._until_end_of, self._write)
                self._nursery.start_soon(self._until_end_of, self._read)
                await self._login.done.wait()
            if self._login.is_done:
                await self._keep_heartbeats()
        except CLOSED:
            return
        finally:
            self._pending.forget()
            self._target.vhost.finish_connection(self)
            self._channels.clear()

    async def _until_end_of(self, part: Callable[[], Awaitable[None]]) -> None:
        await part()
        self._nursery.cancel_scope.cancel()

    async def _write(self) -> None:
        try:
            await self._outbox.run(self._stream)
        except CLOSED:
            return

    async def _read(self) -> None:
        reader = FrameReader()
        while True:
            try:
                data = await self._held_back.receive_some()
            except CLOSED:
                return
            if not data:
                return
            self._heard = trio.current_time()
            if not self._is_ending:
                reader.max_frame = self._login.max_frame
                await self._handle(reader, bytes(data))
            self._held_back.record_processed()
            await self._outbox.wait_for_answers()

    async def _handle(self, reader: FrameReader, data: bytes) -> None:
        try:
            for frame in reader.feed(data):
                if self._is_ending:
                    return
                self._on_frame(frame)
                if frame.method_index in _OF_TASKS:
                    # The tasks of hundreds of channels would take tens of milliseconds at once.
                    await trio.lowlevel.checkpoint()
        except ClientRefused as refusal:
            self._close(refusal)
        except ProtocolError as error:
            self._close(ClientRefused(error.code, str(error)))
        except Busy as error:
            self._close(ClientRefused(RESOURCE_ERROR, str(error)))

    async def _keep_heartbeats(self) -> None:
        """Until cancelled: as long as the connection."""
        interval = self._login.heartbeat
        while True:
            await trio.sleep(min(_LOOK, interval / _LOOKS) if interval else math.inf)
            now = trio.current_time()
            if now - self._outbox.sent >= interval / 2 and not self._outbox.size:
                self._outbox.put(HEARTBEAT_FRAME)
            is_read = not self._pending.full and not self._outbox.size
            if is_read and now - self._heard > _MISSED * interval:
                self._nursery.cancel_scope.cancel()

    # --- the connection's own methods

    def _say(self, method: base.Frame) -> None:
        frame = RelayedFrame(METHOD, 0, method_frame(0, method))
        self._outbox.put_answer(self._login.from_primary(frame))

    def _on_frame(self, frame: RelayedFrame) -> None:
        if frame.kind == HEARTBEAT:
            check_heartbeat(frame)
        elif not self._login.is_done:
            self._log_in(frame)
        elif not frame.channel:
            self._on_connection(frame.method())
        else:
            self._on_channel(frame)

    def _log_in(self, frame: RelayedFrame) -> None:
        method = self._login.from_client(frame)
        match method:
            case commands.Connection.StartOk():
                self._admit(method)
            case commands.Connection.TuneOk():
                check_tuned(method)
            case commands.Connection.Open():
                if self._claim is None:
                    raise ProtocolError("connection.open before the login")
                if method.virtual_host != VHOST:
                    raise ClientRefused(NOT_ALLOWED, f"vhost {method.virtual_host} not found")
                self._say(commands.Connection.OpenOk())
            case commands.Connection.Close():
                self._finish(commands.Connection.CloseOk())

    def _admit(self, start: commands.Connection.StartOk) -> None:
        try:
            self._claim = admit(self._login, self._target.authorizer)
        except NotAuthorized:
            self._refuse_login(start)
        else:
            self._say(TUNE)

    def _refuse_login(self, start: commands.Connection.StartOk) -> None:
        capabilities = (start.client_properties or {}).get("capabilities")
        hears = isinstance(capabilities, dict) and capabilities.get("authentication_failure_close")
        text = (
            f"Login was refused using authentication mechanism {start.mechanism}."
            " For details see the broker logfile."
        )
        if hears:
            self._close(ClientRefused(ACCESS_REFUSED, text))
        else:
            self._nursery.cancel_scope.cancel()

    def _on_connection(self, method: base.Frame) -> None:
        match method:
            case commands.Connection.Close():
                self._is_ending = True
                self._nursery.start_soon(self._close_in_order)
            case commands.Connection.CloseOk():
                self._nursery.cancel_scope.cancel()
            case commands.Connection.UpdateSecret():
                self._renew(method)
                self._say(commands.Connection.UpdateSecretOk())
            case _:
                raise ClientRefused(COMMAND_INVALID, f"{method.name} on channel 0")

    def _renew(self, update: commands.Connection.UpdateSecret) -> None:
        """The client has a new token; a password stays as it was, as in RabbitMQ."""
        if self._claim is None or self._claim.identity is None:
            return
        self._login.update_secret(update.new_secret)
        try:
            self._claim = admit(self._login, self._target.authorizer)
        except NotAuthorized as error:
            raise ClientRefused(NOT_ALLOWED, str(error)) from error

    async def _close_in_order(self) -> None:
        """Answer `connection.close` once what came before it is done, and deliveries are back."""
        await self._wait_until_done()
        self._cancel_channels()
        with trio.move_on_after(self._target.sends.timeout):
            while self._served:
                await self._channel_ended.wait()
        self._finish(commands.Connection.CloseOk())

    def _cancel_channels(self) -> None:
        self._is_ending = True
        for channel in self._channels.values():
            channel.cancel()

    async def _wait_until_done(self) -> None:
        with trio.move_on_after(self._target.sends.timeout):
            await self._pending.wait_until_none()

    def _close(self, refusal: ClientRefused, index: int = 0) -> None:
        class_id, method_id = divmod(index, 0x10000)
        text = str(refusal)[:255]
        close = commands.Connection.Close(refusal.code, "", class_id, method_id)
        close.reply_text = text.encode()[:255].decode(errors="ignore")
        self._finish(close)

    def _finish(self, last: base.Frame) -> None:
        """Let that be the last frame for the client, which hangs up then."""
        self._cancel_channels()
        self._outbox.put(method_frame(0, last))
        self._nursery.start_soon(self._hang_up)

    async def _hang_up(self) -> None:
        await trio.sleep(_GOODBYE)
        self._nursery.cancel_scope.cancel()

    def close_soon(self, text: str) -> None:
        """Close the connection once what has arrived is done."""
        if not self._is_ending:
            self._is_ending = True
            self._nursery.start_soon(self._close_done, text)

    async def _close_done(self, text: str) -> None:
        await self._wait_until_done()
        self._close(ClientRefused(FORCED, text))

    # --- channels

    def _on_channel(self, frame: RelayedFrame) -> None:
        channel = self._channels.get(frame.channel)
        if channel is None:
            self._open(frame)
        elif channel.is_closed:
            self._on_closed(channel, frame)
        elif channel.incoming is not None:
            self._add(channel, channel.incoming, frame)
        elif frame.kind != METHOD:
            raise ClientRefused(UNEXPECTED_FRAME, "content without a method")
        elif frame.method_index == commands.Basic.Publish.index:
            channel.incoming = RelayedContent(frame)
            self._unfinished.size += channel.incoming.size
        else:
            method = frame.method()
            if isinstance(method, commands.Channel.Open):
                raise ClientRefused(CHANNEL_ERROR, "second 'channel.open' seen")
            if isinstance(method, commands.Channel.CloseOk):
                return
            size = len(frame.data) + _OBJECTS
            self._pending.begin(size)
            channel.put(method, size)

    def _open(self, frame: RelayedFrame) -> None:
        if frame.method_index == commands.Channel.CloseOk.index:
            return
        if frame.method_index != commands.Channel.Open.index:
            raise ClientRefused(CHANNEL_ERROR, "expected 'channel.open'")
        if frame.channel > self._login.max_channels:
            text = f"number of channels opened ({self._login.max_channels}) has reached the limit"
            raise ClientRefused(NOT_ALLOWED, text)
        channel = self._channels[frame.channel] = ServedChannel(self._as_owner(frame.channel))
        self._served += 1
        self._nursery.start_soon(self._serve, channel)
        self._outbox.put_answer(method_frame(frame.channel, commands.Channel.OpenOk()))

    def _as_owner(self, number: int) -> ChannelOwner:
        return ChannelOwner(
            number=number,
            vhost=self._target.vhost,
            sends=self._target.sends,
            replies=self._target.replies,
            outbox=self._outbox,
            user=self._login.user,
            max_frame=self._login.max_frame + OVERHEAD,
            hears_cancels=self._login.hears_cancels,
            check=self._check,
            refuse=lambda refusal, index: self._refuse(number, refusal, index),
            pending=self._pending,
            consumers=self._consumers,
            identity=self,
        )

    async def _serve(self, channel: ServedChannel) -> None:
        try:
            await channel.run()
        finally:
            self._served -= 1
            self._channel_ended.wake()
        if self._channels.get(channel.owner.number) is channel and not channel.is_closed:
            del self._channels[channel.owner.number]
            if not self._is_ending:
                close_ok = method_frame(channel.owner.number, commands.Channel.CloseOk())
                self._outbox.put_answer(close_ok)

    def _on_closed(self, channel: ServedChannel, frame: RelayedFrame) -> None:
        """Other frames were on their way (1.5.2.5)."""
        if frame.method_index == commands.Channel.CloseOk.index:
            del self._channels[channel.owner.number]
        elif frame.method_index == commands.Channel.Close.index:
            self._outbox.put_answer(method_frame(channel.owner.number, commands.Channel.CloseOk()))

    def _add(self, channel: ServedChannel, content: RelayedContent, frame: RelayedFrame) -> None:
        """Add a frame of a publish, which is the channel's when it's whole."""
        if frame.kind == HEADER and len(frame.payload) >= LEAST_HEADER:
            (size,) = BODY_SIZE.unpack_from(frame.payload, 4)
            if size > LARGEST:
                self._unfinished.size -= content.size
                channel.incoming = None
                text = f"message size {size} is larger than configured max size {LARGEST}"
                refusal = ClientRefused(PRECONDITION_FAILED, text)
                self._refuse(channel.owner.number, refusal, commands.Basic.Publish.index)
                return
        before = content.size
        content.add(frame, LARGEST)
        self._unfinished.size += content.size - before
        if self._unfinished.size > _MOST_UNFINISHED:
            raise ClientRefused(RESOURCE_ERROR, "too many unfinished messages at a time")
        if content.is_whole:
            self._publish(channel, content)

    def _publish(self, channel: ServedChannel, content: RelayedContent) -> None:
        channel.incoming = None
        self._unfinished.size -= content.size
        method = content.method.method()
        if not isinstance(method, commands.Basic.Publish):
            raise ClientRefused(SYNTAX_ERROR, "basic.publish expected")
        stored = StoredContent(
            method.exchange, method.routing_key or "", content.header, content.body()
        )
        self._pending.begin(content.size)
        channel.put(ArrivedPublish(method, stored, content.size), content.size)

    def _refuse(self, number: int, refusal: ClientRefused, index: int) -> None:
        """Close the channel, or the connection, for an error."""
        channel = self._channels.get(number)
        if channel is None or channel.is_closed or self._is_ending:
            return
        if not refusal.is_of_channel:
            self._close(refusal, index)
            return
        channel.is_closed = True
        if channel.incoming is not None:
            self._unfinished.size -= channel.incoming.size
            channel.incoming = None
        class_id, method_id = divmod(index, 0x10000)
        close = commands.Channel.Close(refusal.code, "", class_id, method_id)
        close.reply_text = str(refusal).encode()[:255].decode(errors="ignore")
        self._outbox.put_answer(method_frame(channel.owner.number, close))
        channel.cancel()

    def _check(self, right: Right, entity: EntityPath | None) -> None:
        """Raises: ClientRefused: the client hasn't the right."""
        assert self._claim is not None, "the login is done"
        access = Access(right=right, entity=entity, path=entity.name if entity else "")
        try:
            self._target.authorizer.check(self._claim, access)
        except NotAuthorized as error:
            raise ClientRefused(ACCESS_REFUSED, str(error)) from error
