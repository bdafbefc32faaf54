"""The primary's side of a connection: writes the client's frames, and reads the answers."""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.frontends.rabbitmq.channel import RelayedChannel
from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.publishes import Publishes
from gateway.frontends.rabbitmq.requests import Requests
from gateway.frontends.rabbitmq.session import CLOSED, ClientSession
from gateway.wire.rabbitmq.errors import FORCED
from gateway.wire.rabbitmq.frames import HEARTBEAT, METHOD, ProtocolError
from gateway.wire.rabbitmq.relayed import (
    CONFIRMS,
    CONTENTS,
    FrameReader,
    RelayedContent,
    RelayedFrame,
    stream_offset,
)

# RabbitMQ says so itself when a node or a vhost goes away. Any other text is an operator's, who may
# give a reason (`rabbitmqctl close_connection`, the header X-Reason).
_OF_NODE: Final = ("broker forced connection closure", "maintenance mode", "is down")
_ANY_SIZE: Final = 2**63  # bytes of a body: the primary's own limit holds


@attrs.define(eq=False)
class PrimarySide:
    _session: ClientSession
    _publishes: Publishes
    _requests: Requests
    _ending: Ending
    heard: float = attrs.field(default=0.0, init=False)
    # Since when it is read: not while the client doesn't read, and the primary can't be heard.
    _reads_since: float = attrs.field(default=0.0, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def relay(self, stream: trio.abc.Stream, begin: Callable[[], Awaitable[None]]) -> None:
        """
        Relay the primary's frames until its connection ends, or is given up. `begin` runs beside.
        """
        self.heard = trio.current_time()
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, stream)
                    nursery.start_soon(self._begin, begin)
                    await self._read(stream)
                    nursery.cancel_scope.cancel()
        finally:
            self._session.is_on_wire = False
            self._session.target.alarm.finish(self._session)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    def has_been_read(self, seconds: float) -> bool:
        """True if it was read for as long as that, without a pause."""
        return trio.current_time() - self._reads_since >= seconds

    def give_up(self) -> None:
        """End `relay`: the primary is frozen, or reads no more."""
        self._scope.cancel()

    async def _begin(self, begin: Callable[[], Awaitable[None]]) -> None:
        try:
            await begin()
        except* trio.TooSlowError:
            self.give_up()

    async def _write(self, stream: trio.abc.Stream) -> None:
        try:
            await self._session.to_primary.run(stream)
        except CLOSED:
            return  # the reader sees the end

    async def _read(self, stream: trio.abc.Stream) -> None:
        reader = FrameReader(joins=True)
        while True:
            try:
                data = await stream.receive_some()
            except CLOSED:
                return
            if not data:
                return
            self.heard = trio.current_time()
            try:
                for frame in reader.feed(bytes(data)):
                    if self._on_frame(frame):
                        return
            except ProtocolError:
                return
            reader.max_frame = self._session.login.max_frame
            if self._session.to_client.is_full:
                self._reads_since = inf
                await self._session.to_client.wait_for_room()
                self._reads_since = self.heard = trio.current_time()

    def _on_frame(self, frame: RelayedFrame) -> bool:
        """Handle a frame; True: the connection is given up."""
        session = self._session
        if not session.login.is_done:
            session.to_client.put(session.login.from_primary(frame))
            if session.login.is_done:
                session.target.logins.record(session.login, trio.current_time())
            return False
        if frame.kind == HEARTBEAT:
            return False
        if not frame.channel:
            return self._on_connection(frame)
        channel = session.channels.get(frame.channel)
        if channel is None:
            session.to_client.put(frame.data)
        elif frame.kind == METHOD:
            self._on_method(channel, frame)
        else:
            self._on_content(channel, frame)
        return False

    def _on_connection(self, frame: RelayedFrame) -> bool:
        session = self._session
        match frame.method():
            case commands.Connection.Close() as close:
                of_node = any(text in close.reply_text for text in _OF_NODE)
                if close.reply_code == FORCED and of_node:
                    return True
                session.ask(0, commands.Connection.CloseOk())
                for channel in session.channels.values():
                    self._publishes.forget(channel)
                self._ending.finish_with(frame.data)
            case commands.Connection.Blocked() as blocked:
                session.target.alarm.begin(session, blocked.reason)
            case commands.Connection.Unblocked():
                session.target.alarm.finish(session)
            case commands.Connection.CloseOk():
                self._ending.finish_with(frame.data)
            case _:
                session.to_client.put(frame.data)
        return False

    def _on_method(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        index = frame.method_index
        if index in CONFIRMS:
            self._publishes.confirm(channel, frame)
        elif frame.content_at:
            channel.delivery = None
            self._session.to_client.put(channel.tags.delivered(frame))
            self._record_offset(channel, frame, frame.content_header)
        elif index in CONTENTS:
            channel.delivery = RelayedContent(frame)
        else:
            method = frame.method()
            if channel.replies is None or isinstance(method, commands.Basic.Cancel):
                self._requests.on_reply(channel, frame, method)
            else:
                channel.replies.put(method)

    def _on_content(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """Add to a message, which the client gets when it's whole: its end could be lost."""
        if (content := channel.delivery) is None:
            raise ProtocolError("content without a method")
        content.add(frame, _ANY_SIZE)
        if not content.is_whole:
            return
        channel.delivery = None
        if content.method.method_index != commands.Basic.Return.index:
            self._record_delivery(channel, content)
        self._session.to_client.put(b"".join(content.frames))

    def _record_delivery(self, channel: RelayedChannel, content: RelayedContent) -> None:
        content.frames[0] = channel.tags.delivered(content.method)
        if content.method.method_index == commands.Basic.GetOk.index:
            self._requests.record_answer(channel, content.method.method())
        else:
            self._record_offset(channel, content.method, content.header)

    def _record_offset(self, channel: RelayedChannel, method: RelayedFrame, header: bytes) -> None:
        """Note the place of a delivery in its stream, if it comes from one."""
        if (offset := stream_offset(header)) is not None:
            delivery = method.method()
            assert isinstance(delivery, commands.Basic.Deliver), "its index says so"
            if (consumer := channel.setup.consumers.get(delivery.consumer_tag or "")) is not None:
                consumer.offset = offset
