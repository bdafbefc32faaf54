"""
A client's connection to RabbitMQ through the gateway.

    wire    the client's frames pass to a connection of its own at the primary, in their order, and
            the primary's frames to the client. Each publish is kept until it's confirmed.
    away    that connection is lost: the publishes that are kept, and new ones, go through the pair.
            Meanwhile another connection is dialled, logged in as the client did, and its channels
            are opened; then the client is on the wire again.

A connection that has more at the primary than channels for publishes, as consumers or exclusive
queues, can't be away: once its publishes have their verdicts it's closed with 320, as by a broker
that shuts down (`connection-forced`, AMQP 0-9-1, 1.1).
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Unavailable
from gateway.domain.failover import State
from gateway.frontends.rabbitmq.by_pair import PairSends, WatchesEntities, WireEvidence
from gateway.frontends.rabbitmq.channel import KeptPublish, RelayedChannel
from gateway.frontends.rabbitmq.login import ClientLogin, LoginFailed
from gateway.frontends.rabbitmq.outbox import Outbox
from gateway.net.clients import ClientLoad
from gateway.net.visits import current_visit, record_authorized
from gateway.ports import Broker
from gateway.wire.rabbitmq.frames import (
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    ProtocolError,
    method_frame,
)
from gateway.wire.rabbitmq.relayed import (
    PROTOCOL_HEADER,
    FrameReader,
    RelayedContent,
    RelayedFrame,
    read_publish,
)

Dial = Callable[[], Awaitable[trio.abc.Stream]]

# Bytes of publishes that a connection may have without a confirm, before it is read again: several
# of the largest that RabbitMQ 4 takes by default.
MAX_KEPT: Final = 64 * 1024 * 1024
MAX_CHANNELS: Final = 2047  # of a connection: RabbitMQ's default of `channel_max`
LARGEST: Final = 128 * 1024 * 1024  # bytes of a body: RabbitMQ's own limit up to 3.13
FORCED: Final = 320  # connection-forced
FRAME_ERROR: Final = 501
RESOURCE_ERROR: Final = 506
_MISSED: Final = 2.5  # heartbeat intervals without a byte, after which a peer is gone
_LOOK: Final = 0.25  # seconds between two looks at what is late
_PAUSE: Final = 1.0  # seconds between two dials of one gateway while the primary is away
_UNREACHED: Final = (
    BrokerError,
    ProtocolError,
    trio.TooSlowError,
    trio.BrokenResourceError,
    OSError,
)
_GOODBYE: Final = 2.0  # seconds for the last bytes to a client
# The methods of a client whose effect ends with its channel or connection at the primary.
_HOLDS: Final = (
    commands.Basic.Consume,
    commands.Basic.Get,
    commands.Tx.Select,
    commands.Channel.Flow,
)
_BY_OPERATOR: Final = (
    "Closed via management plugin"  # rabbitmq_management; `rabbitmqctl` asks for a reason
)


@attrs.frozen(kw_only=True)
class RelayTarget:
    """The primary, and the pair, of all connections of one endpoint."""

    dial: Dial
    broker: Broker
    states: WatchesEntities
    login_timeout: float  # seconds
    slow: float  # seconds without a confirm, after which a publish goes through the pair
    vhost: str  # of the namespace: the pair knows no other
    # Logins that have published to the default exchange, with the primary's consent.
    may_publish: Bounded[bytes, None] = attrs.field(factory=lambda: Bounded(10_000))
    door: trio.Lock = attrs.field(factory=trio.Lock)  # of who dials while the primary is away


@attrs.define(eq=False)
class RelayedConnection:
    """Serves one client; `run` returns at its end."""

    _stream: trio.abc.Stream
    _target: RelayTarget
    _login: ClientLogin = attrs.field(factory=ClientLogin, init=False)
    _channels: dict[int, RelayedChannel] = attrs.field(factory=dict, init=False)
    _to_client: Outbox = attrs.field(factory=Outbox, init=False)
    _to_primary: Outbox = attrs.field(factory=Outbox, init=False)
    _evidence: WireEvidence = attrs.field(init=False)
    _pair: PairSends = attrs.field(init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _upstream: trio.CancelScope | None = attrs.field(default=None, init=False)  # None: away
    _load: ClientLoad | None = attrs.field(default=None, init=False)  # None: it has no limits
    _kept_bytes: int = attrs.field(default=0, init=False)
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _heard_client: float = attrs.field(default=0.0, init=False)
    _heard_primary: float = attrs.field(default=0.0, init=False)
    _holds: bool = attrs.field(default=False, init=False)
    _is_blocked: bool = attrs.field(default=False, init=False)
    # The client has asked for the end, which the primary, or the gateway, is to answer.
    _is_closing: bool = attrs.field(default=False, init=False)
    _is_ending: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._evidence = WireEvidence(self._target.states)

    async def run(self) -> None:
        """Serve until one side ends the connection, or the gateway must."""
        try:
            await self._serve()
        finally:
            if self._load is not None:
                self._load.finish(self)
                self._load.release(self._kept_bytes)

    async def _serve(self) -> None:
        if not await self._read_protocol_header():
            return
        try:
            upstream = await self._target.dial()
        except BrokerError:
            return  # before its login nothing can be said to a client
        async with trio.open_nursery() as self._nursery:
            self._pair = PairSends(
                broker=self._target.broker, nursery=self._nursery, on_verdict=self._record_verdict
            )
            self._nursery.start_soon(self._write_client)
            self._nursery.start_soon(self._live_upstream, upstream)
            self._nursery.start_soon(self._keep_time)
            await self._read_client()
            self._nursery.cancel_scope.cancel()

    async def _read_protocol_header(self) -> bool:
        header = b""
        while len(header) < len(PROTOCOL_HEADER):
            data = await self._stream.receive_some(len(PROTOCOL_HEADER) - len(header))
            if not data:
                return False
            header += data
        if header != PROTOCOL_HEADER:  # AMQP 0-9-1, 4.2.2: the version that is spoken here
            await self._stream.send_all(PROTOCOL_HEADER)
            return False
        return True

    # --- the client's side

    async def _read_client(self) -> None:
        reader = FrameReader()
        while not self._is_ending:
            try:
                data = await self._stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                return
            if not data:
                return
            self._heard_client = trio.current_time()
            try:
                for frame in reader.feed(bytes(data)):
                    await self._from_client(frame)
            except ProtocolError as error:
                await self._close(FRAME_ERROR, f"FRAME_ERROR - {error}")
                return
            reader.max_frame = self._login.max_frame
            await self._to_primary.wait_for_room()
            await self._wait_for_room()
        await trio.sleep_forever()  # until the last bytes are written

    async def _wait_for_room(self) -> None:
        """Return when the connection and its client may have more bytes."""
        while self._kept_bytes > MAX_KEPT and not self._has_unfinished:
            await self._room.park()
        while self._load is not None and self._load.is_full and not self._load.may_finish(self):
            await self._load.wait_for_less()

    @property
    def _has_unfinished(self) -> bool:
        return any(channel.incoming is not None for channel in self._channels.values())

    def _hold(self, size: int) -> None:
        self._kept_bytes += size
        if self._load is not None:
            self._load.hold(size)

    async def _from_client(self, frame: RelayedFrame) -> None:
        if not self._login.is_done:
            self._login.from_client(frame)
            self._to_primary.put(frame.data)
        elif frame.kind == HEARTBEAT or self._is_ending:
            return
        elif not frame.channel:
            await self._on_connection(frame)
        else:
            self._on_channel(frame)

    async def _on_connection(self, frame: RelayedFrame) -> None:
        if frame.method_index == commands.Connection.Close.index:
            self._is_closing = True
            if self._upstream is None or self._pair_has_any():
                self._nursery.start_soon(self._close_in_order)
                return
        if self._upstream is None:
            await self._close_away()
        else:
            self._to_primary.put(frame.data)

    def _on_channel(self, frame: RelayedFrame) -> None:
        channel = self._channels.get(frame.channel)
        index = frame.method_index
        if channel is None:
            if index == commands.Channel.Open.index:
                self._open_channel(frame)
            elif self._upstream is not None:
                self._to_primary.put(frame.data)  # the primary says what is wrong
            return
        if channel.incoming is not None:
            self._add_to_content(channel, channel.incoming, frame)
        elif index == commands.Basic.Publish.index:
            channel.incoming = RelayedContent(frame)
            self._hold(len(frame.data))
        elif index == commands.Confirm.Select.index and self._selects_here(channel):
            self._select(channel, frame)
        elif self._upstream is None or not channel.is_open_upstream:
            self._on_channel_away(channel, frame)
        else:
            self._pass_on(channel, frame)

    def _open_channel(self, frame: RelayedFrame) -> None:
        if len(self._channels) >= MAX_CHANNELS:
            raise ProtocolError(f"more than {MAX_CHANNELS} channels")
        channel = self._channels[frame.channel] = RelayedChannel(frame.channel)
        if self._upstream is None:
            self._to_client.put(method_frame(channel.number, commands.Channel.OpenOk()))
            return
        channel.is_open_upstream = True
        self._pass_on(channel, frame)

    def _pass_on(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """Pass a method to the primary; note what would be lost with the connection."""
        if frame.method_index not in _SETTLEMENTS:
            method = frame.method()
            self._holds = self._holds or _holds(method)
            if isinstance(method, commands.Tx.Select):
                channel.is_transacted = True
            if isinstance(method, commands.Channel.CloseOk):
                del self._channels[channel.number]
            if isinstance(method, commands.Confirm.Select):
                channel.upstream_confirms = channel.client_confirms = True
            if method.synchronous and not getattr(method, "nowait", False):
                channel.awaited.append(tuple(method.valid_responses))
        self._to_primary.put(frame.data)

    def _selects_here(self, channel: RelayedChannel) -> bool:
        return channel.upstream_confirms or not channel.is_open_upstream

    def _select(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """Answer `confirm.select` for a channel that the gateway has in that mode already."""
        channel.client_confirms = True
        if not getattr(frame.method(), "nowait", False):
            self._to_client.put(method_frame(channel.number, commands.Confirm.SelectOk()))

    def _on_channel_away(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        match frame.method():
            case commands.Channel.Close():
                self._nursery.start_soon(self._close_channel, channel)
            case commands.Channel.CloseOk():
                del self._channels[channel.number]
            case _:
                self._nursery.start_soon(self._close_away)

    # --- publishes

    def _add_to_content(
        self, channel: RelayedChannel, content: RelayedContent, frame: RelayedFrame
    ) -> None:
        content.add(frame, LARGEST)
        self._hold(len(frame.data))
        if content.is_whole:
            channel.incoming = None
            if self._load is not None and not self._has_unfinished:
                self._load.finish(self)
            self._publish(channel, content)
        elif self._kept_bytes > MAX_KEPT + LARGEST:
            raise ProtocolError("too many unfinished messages at a time")

    def _publish(self, channel: RelayedChannel, content: RelayedContent) -> None:
        publish = read_publish(content.method)
        kept = channel.counted(content, publish, trio.current_time())
        if self._is_on_wire(channel, kept.entity):
            self._write_publish(channel, kept)
        else:
            self._give_to_pair(channel, kept)

    def _is_on_wire(self, channel: RelayedChannel, entity: EntityPath | None) -> bool:
        if self._upstream is None or not channel.is_open_upstream:
            return False
        if entity is None or channel.is_transacted or not self._may_use_pair:
            return True
        if self._is_blocked or self._pair.has(entity):
            return False
        return self._target.states.state_of(entity) is State.PRIMARY

    def _write_publish(self, channel: RelayedChannel, kept: KeptPublish) -> None:
        if not channel.upstream_confirms and not channel.is_transacted:
            channel.upstream_confirms = True
            select = commands.Confirm.Select(nowait=True)
            self._to_primary.put(method_frame(channel.number, select))
        self._to_primary.put(b"".join(kept.content.frames))
        if channel.is_transacted:
            self._release(kept)
            return
        channel.keep(kept)
        if kept.entity is not None:
            self._evidence.written(kept.entity)

    @property
    def _may_use_pair(self) -> bool:
        """True if the primary has let this login publish; the pair has rights of its own."""
        return (
            self._login.vhost == self._target.vhost
            and self._login.digest in self._target.may_publish
        )

    def _give_to_pair(self, channel: RelayedChannel, kept: KeptPublish) -> None:
        channel.with_pair += 1
        if kept.entity is None or not self._may_use_pair:
            self._record_verdict(kept, Unavailable("the primary can't be reached"))
            if not self._is_ending:
                self._nursery.start_soon(self._close_away)
            return
        self._pair.add(kept.entity, kept)

    def _record_verdict(self, kept: KeptPublish, verdict: BrokerError | None) -> None:
        channel = kept.channel
        channel.with_pair -= 1
        self._release(kept)
        if self._channels.get(channel.number) is channel:
            self._to_client.put(channel.confirms([kept], accepted=verdict is None))

    def _release(self, kept: KeptPublish) -> None:
        size = kept.content.size
        self._kept_bytes -= size
        self._room.unpark_all()
        if self._load is not None:
            self._load.release(size)

    def _pair_has_any(self) -> bool:
        return any(channel.with_pair for channel in self._channels.values())

    # --- the primary's side

    async def _live_upstream(self, stream: trio.abc.Stream) -> None:
        self._to_primary.put(PROTOCOL_HEADER)
        while True:
            await self._relay(stream)
            if not self._login.is_done:
                await self._finish()
                return
            self._lose()
            if self._is_ending:
                return
            stream = await self._return()

    async def _relay(self, stream: trio.abc.Stream) -> None:
        """Relay the primary's frames until its connection ends, or is given up."""
        try:
            with trio.CancelScope() as self._upstream:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_primary, stream)
                    await self._read_primary(stream)
                    nursery.cancel_scope.cancel()
        finally:
            self._upstream = None
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _write_primary(self, stream: trio.abc.Stream) -> None:
        try:
            await self._to_primary.run(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            return  # the reader sees the end

    async def _read_primary(self, stream: trio.abc.Stream) -> None:
        reader = FrameReader()
        while True:
            try:
                data = await stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                return
            if not data:
                return
            self._heard_primary = trio.current_time()
            try:
                for frame in reader.feed(bytes(data)):
                    if self._from_primary(frame):
                        return
            except ProtocolError:
                return
            reader.max_frame = self._login.max_frame
            await self._to_client.wait_for_room()

    def _from_primary(self, frame: RelayedFrame) -> bool:
        """Handle a frame; True: the connection is given up."""
        if not self._login.is_done:
            self._to_client.put(self._login.from_primary(frame))
            if self._login.is_done:
                self._logged_in()
            return False
        if frame.kind == HEARTBEAT:
            return False
        if not frame.channel:
            return self._on_connection_upstream(frame)
        channel = self._channels.get(frame.channel)
        if channel is not None and frame.kind == METHOD:
            self._on_method_upstream(channel, frame)
        else:
            self._to_client.put(frame.data)
        return False

    def _logged_in(self) -> None:
        self._heard_client = trio.current_time()
        try:
            record_authorized(self._login.user)
        except Busy as error:
            self._nursery.start_soon(self._close, RESOURCE_ERROR, f"RESOURCE_ERROR - {error}")
        self._load = current_visit().load()

    def _on_connection_upstream(self, frame: RelayedFrame) -> bool:
        match frame.method():
            case commands.Connection.Close() as close:
                if close.reply_code == FORCED and _BY_OPERATOR not in close.reply_text:
                    return True  # the node shuts down
                self._to_primary.put(method_frame(0, commands.Connection.CloseOk()))
                for channel in self._channels.values():
                    self._forget_publishes(channel)
                self._finish_with(frame)
                return False
            case commands.Connection.Blocked():
                self._is_blocked = True
                return False
            case commands.Connection.Unblocked():
                self._is_blocked = False
                return False
            case commands.Connection.CloseOk():
                self._finish_with(frame)
                return False
        self._to_client.put(frame.data)
        return False

    def _finish_with(self, frame: RelayedFrame) -> None:
        """Let that be the last frame for the client."""
        self._to_client.put(frame.data)
        self._is_ending = True
        self._nursery.start_soon(self._finish)

    def _on_method_upstream(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        index = frame.method_index
        if index in _CONFIRMS:
            self._on_confirm(channel, frame)
            return
        if index not in _DELIVERIES:
            method = frame.method()
            if channel.is_reopening and isinstance(method, commands.Channel.OpenOk):
                channel.is_reopening = False
                return
            _answered(channel, method)
            if isinstance(method, commands.Channel.Close | commands.Channel.CloseOk):
                self._forget_publishes(channel)
                if isinstance(method, commands.Channel.CloseOk):
                    del self._channels[channel.number]
        self._to_client.put(frame.data)

    def _on_confirm(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        method = frame.method()
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack), "its index says so"
        found = channel.settle(method.delivery_tag, multiple=bool(method.multiple))
        accepted = isinstance(method, commands.Basic.Ack)
        for kept in found:
            self._release(kept)
            if kept.is_moved:
                continue
            if (entity := kept.entity) is not None:
                self._evidence.confirmed(entity)
                if accepted:
                    self._target.may_publish[self._login.digest] = None
        mine = [kept for kept in found if not kept.is_moved]
        self._to_client.put(channel.confirms(mine, accepted=accepted))

    def _forget_publishes(self, channel: RelayedChannel) -> None:
        """The primary has closed the channel: its publishes without a confirm have no outcome."""
        for kept in channel.lose():
            self._release(kept)
            if not kept.is_moved and (entity := kept.entity) is not None:
                self._evidence.dropped(entity)

    # --- away

    def _lose(self) -> None:
        """The connection upstream is lost: give the pair all that has no confirm."""
        self._to_primary.clear()
        self._is_blocked = False
        must_end = self._holds
        left: list[tuple[RelayedChannel, KeptPublish]] = []
        for channel in self._channels.values():
            must_end = must_end or bool(channel.awaited) or channel.is_transacted
            left += [(channel, each) for each in channel.lose()]
        self._evidence.lost(Unavailable("the connection to the primary was lost"))
        for channel, kept in left:
            if kept.is_moved:
                self._release(kept)
            else:
                kept.in_doubt = True
                self._give_to_pair(channel, kept)
        if self._is_closing:
            self._nursery.start_soon(self._close_in_order)
        elif must_end and not self._is_ending:
            self._nursery.start_soon(self._close_away)

    async def _return(self) -> trio.abc.Stream:
        """Return a connection to the primary that is logged in, with all channels."""
        while True:
            async with self._target.door:
                try:
                    with trio.fail_after(self._target.slow * 2):
                        stream = await self._target.dial()
                        try:
                            await self._login.repeat(stream)
                        except BaseException:
                            await trio.aclose_forcefully(stream)
                            raise
                except _UNREACHED:
                    await trio.sleep(_PAUSE)
                    continue
                except LoginFailed as error:
                    await self._close(FORCED, f"CONNECTION_FORCED - {error}")
                    await trio.sleep_forever()
            self._to_primary = Outbox()
            for channel in self._channels.values():
                channel.is_open_upstream = channel.is_reopening = True
                self._to_primary.put(method_frame(channel.number, commands.Channel.Open()))
            return stream

    async def _close_away(self) -> None:
        await self._close(FORCED, "CONNECTION_FORCED - the primary can't be reached")

    async def _close(self, code: int, text: str) -> None:
        """Close the connection once its publishes have their verdicts."""
        if self._is_ending:
            return
        self._is_ending = True
        with trio.move_on_after(self._target.slow):
            while any(channel.by_tag for channel in self._channels.values()):
                await self._room.park()
        await self._pair.wait_until_done()
        close = commands.Connection.Close(
            reply_code=code, reply_text=text[:255], class_id=0, method_id=0
        )
        self._to_client.put(method_frame(0, close))
        await self._finish()

    async def _close_in_order(self) -> None:
        """Answer the client's `connection.close`, once its publishes have their verdicts."""
        self._is_ending = True
        await self._pair.wait_until_done()
        self._to_client.put(method_frame(0, commands.Connection.CloseOk()))
        await self._finish()

    async def _close_channel(self, channel: RelayedChannel) -> None:
        await self._pair.wait_until_done()
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]
            self._to_client.put(method_frame(channel.number, commands.Channel.CloseOk()))

    async def _finish(self) -> None:
        with trio.move_on_after(_GOODBYE):
            await self._to_client.wait_until_empty()
        self._nursery.cancel_scope.cancel()

    async def _write_client(self) -> None:
        try:
            await self._to_client.run(self._stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self._nursery.cancel_scope.cancel()

    def close_soon(self, text: str) -> None:
        """Close the connection once its publishes have their verdicts."""
        self._nursery.start_soon(self._close, FORCED, f"CONNECTION_FORCED - {text}")

    # --- time

    async def _keep_time(self) -> None:
        """Send heartbeats to both sides; give up who is silent, and publishes that are late."""
        began = trio.current_time()
        while True:
            await trio.sleep(_LOOK)
            now, interval = trio.current_time(), self._login.heartbeat
            if not self._login.is_done and now > began + self._target.login_timeout:
                self._nursery.cancel_scope.cancel()
            if interval and self._login.is_done:
                for outbox in (self._to_client, self._to_primary):
                    if now - outbox.sent >= interval / 2 and not outbox.size:
                        outbox.put(HEARTBEAT_FRAME)
                if now - self._heard_client > _MISSED * interval:
                    self._nursery.cancel_scope.cancel()
            if self._upstream is not None and self._login.is_done:
                self._watch_publishes(now)

    def _watch_publishes(self, now: float) -> None:
        late = now - self._target.slow
        found = False
        for channel in self._channels.values():
            for kept in channel.by_tag.values():
                if kept.since > late:
                    break
                if kept.is_moved or (entity := kept.entity) is None or not self._may_use_pair:
                    continue
                found = True
                if self._heard_primary >= kept.since:  # the entity alone is late
                    kept.is_moved = True
                    self._evidence.silent(entity)
                    self._hold(kept.content.size)  # the wire has it, too
                    self._give_to_pair(channel, attrs.evolve(kept, is_moved=False, in_doubt=True))
        if found and self._heard_primary <= late and self._upstream is not None:
            self._silence()

    def _silence(self) -> None:
        """The primary is frozen: give its connection up."""
        assert self._upstream is not None, "it is relayed"
        for channel in self._channels.values():
            for kept in channel.by_tag.values():
                if not kept.is_moved and (entity := kept.entity) is not None:
                    self._evidence.silent(entity)
        self._upstream.cancel()


_CONFIRMS: Final = frozenset({commands.Basic.Ack.index, commands.Basic.Nack.index})
_SETTLEMENTS: Final = _CONFIRMS | {commands.Basic.Reject.index}
_DELIVERIES: Final = frozenset({commands.Basic.Deliver.index, commands.Basic.Return.index})


def _holds(method: base.Frame) -> bool:
    """True if the effect of that method ends with the connection or the channel."""
    if isinstance(method, commands.Queue.Declare):
        lasts = method.durable and not method.exclusive and not method.auto_delete
        return not (method.passive or (lasts and method.queue))
    if isinstance(method, commands.Exchange.Declare):
        return not (method.passive or (method.durable and not method.auto_delete))
    return isinstance(method, _HOLDS)


def _answered(channel: RelayedChannel, method: base.Frame) -> None:
    for answers in channel.awaited:
        if method.name in answers:
            channel.awaited.remove(answers)
            return
