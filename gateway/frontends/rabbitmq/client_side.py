"""The client's side of a connection: reads its frames, and answers what the primary needn't."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.domain.errors import Busy
from gateway.frontends.rabbitmq.channel import RelayedChannel
from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.greeting import Greeting
from gateway.frontends.rabbitmq.publishes import Publishes
from gateway.frontends.rabbitmq.requests import Requests
from gateway.frontends.rabbitmq.session import CLOSED, ClientSession
from gateway.net.visits import current_visit, processing, record_authorized
from gateway.wire.rabbitmq.errors import RESOURCE_ERROR, text_of_reply
from gateway.wire.rabbitmq.frames import HEARTBEAT, ProtocolError, method_frame
from gateway.wire.rabbitmq.relayed import (
    PROTOCOL_HEADER,
    SETTLEMENTS,
    FrameReader,
    RelayedFrame,
    check_heartbeat,
)

_SLICE: Final = 32  # frames between two chances of others: some milliseconds
_MOST_EARLY: Final = 64 * 1024  # bytes: a client opens some channels, and declares some queues
_SELECT_SIZE: Final = len(method_frame(1, commands.Tx.Select()))
_CLOSES: Final = (commands.Channel.Close.index, commands.Channel.CloseOk.index)


@attrs.define(eq=False)
class ClientSide:
    _stream: trio.abc.Stream
    _session: ClientSession
    _publishes: Publishes
    _requests: Requests
    _ending: Ending
    _greeting: Greeting
    # The frames that have come before the login was done; None: it is.
    _early: list[RelayedFrame] | None = attrs.field(factory=list, init=False)
    _early_bytes: int = attrs.field(default=0, init=False)
    _heard: float = attrs.field(default=0.0, init=False)
    _is_read: bool = attrs.field(default=False, init=False)

    async def write(self) -> None:
        """Write what waits for the client; returns when it is gone."""
        try:
            await self._session.to_client.run(self._stream)
        except CLOSED:
            return

    async def read(self) -> None:
        """
        Handle the client's frames; returns when it is gone. At the end the rest is read and
        dropped: a socket that is closed with unread bytes takes the last frame back.
        """
        reader = FrameReader()
        while True:
            self._heard, self._is_read = trio.current_time(), True
            try:
                data = await self._stream.receive_some()
            except CLOSED:
                return
            if not data:
                return
            self._heard, self._is_read = trio.current_time(), False
            if self._session.is_ending:
                continue
            reader.max_frame = self._session.login.max_frame
            try:
                await self._handle_in_turns(reader.feed(bytes(data)))
            except ProtocolError as error:
                self._refuse(error)
                continue
            await self._requests.wait_for_answers()
            await self._session.to_primary.wait_for_room()
            await self._session.to_client.wait_for_answers()
            await self._publishes.wait_for_room()

    def is_silent(self, seconds: float) -> bool:
        """
        True if nothing has come for longer than that. While others are slow, the client isn't read,
        and isn't silent; but it is if it takes nothing either.
        """
        moment, outbox = trio.current_time() - seconds, self._session.to_client
        takes_nothing = outbox.is_full and outbox.sent < moment
        return self._heard < moment and (self._is_read or takes_nothing)

    async def begin(self) -> None:
        """
        Handle the frames that came before the login was done (7.0 of RabbitMQ.Client's do). No
        transaction is prepared: nothing is published before the answer to `channel.open`.
        """
        await self._session.login.done.wait()
        try:
            record_authorized(self._session.login.user)
        except Busy as error:
            self._ending.close(RESOURCE_ERROR, text_of_reply(RESOURCE_ERROR, str(error)))
        self._session.load = current_visit().load()
        early, self._early = self._early, None
        self._handle(early or ())

    async def _handle_in_turns(self, frames: Iterator[RelayedFrame]) -> None:
        some = list(islice(frames, _SLICE))
        while some:
            for part in _parts(some):
                if part[0].method_index == commands.Tx.Select.index:
                    await self._requests.prepare_transaction(part[0].channel)
                await self._handle_in_turn(part)
            if some := list(islice(frames, _SLICE)):
                await trio.lowlevel.checkpoint()  # between two slices others may run

    async def _handle_in_turn(self, frames: Sequence[RelayedFrame]) -> None:
        size = sum(len(frame.data) for frame in frames)
        turn = None
        if any(frame.method_index not in SETTLEMENTS for frame in frames):
            turn = await self._session.turns.acquire(size)
        try:
            async with processing(size):
                self._handle(frames)
        finally:
            if turn is not None:
                turn.release()

    def _handle(self, frames: Iterable[RelayedFrame]) -> None:
        try:
            for frame in frames:
                self._on_frame(frame)
        except ProtocolError as error:
            self._refuse(error)

    def _refuse(self, error: ProtocolError) -> None:
        self._ending.close(error.code, text_of_reply(error.code, str(error)))

    def _on_frame(self, frame: RelayedFrame) -> None:
        session, login = self._session, self._session.login
        if self._early is not None and (login.is_done or login.is_opening):
            self._early.append(frame)
            self._early_bytes += len(frame.data)
            if self._early_bytes > _MOST_EARLY:
                raise ProtocolError("too many bytes before the login is done")
        elif self._early is not None:
            login.from_client(frame)
            if session.is_greeted:
                self._greeting.handle(frame)
            else:
                session.to_primary.put(frame.data)
        elif session.is_ending:
            return
        elif frame.kind == HEARTBEAT:
            check_heartbeat(frame)
        elif not frame.channel:
            self._on_connection(frame)
        else:
            self._on_channel(frame)

    def _on_connection(self, frame: RelayedFrame) -> None:
        session = self._session
        if frame.method_index == commands.Connection.Close.index:
            session.is_closing = True
            if not session.is_on_wire or self._publishes.pair_has_any:
                self._ending.close_in_order()
                return
        method = frame.method()
        if isinstance(method, commands.Connection.UpdateSecret):
            session.login.update_secret(method.new_secret)
            session.target.policies.renew(session.login)
        if session.is_on_wire:
            session.to_primary.put(frame.data)
        elif isinstance(method, commands.Connection.UpdateSecret):
            # The primary judges it at the return.
            session.answer(0, commands.Connection.UpdateSecretOk())
        else:
            self._ending.close_away()

    def _on_channel(self, frame: RelayedFrame) -> None:
        session, index = self._session, frame.method_index
        channel = session.channels.get(frame.channel)
        if channel is None:
            if index == commands.Channel.Open.index:
                self._open_channel(frame)
            elif session.is_on_wire:
                session.to_primary.put(frame.data)  # the primary says what is wrong
            return
        if channel.is_closed and index not in _CLOSES:
            return  # it was on its way (1.5.2.5)
        if channel.incoming is not None:
            self._publishes.add(channel, channel.incoming, frame)
        elif index == commands.Basic.Publish.index:
            self._publishes.begin(channel, frame)
        elif index == commands.Confirm.Select.index and not (
            session.is_on_wire and channel.is_open_upstream
        ):
            self._select(channel, frame)
        else:
            self._requests.handle(channel, frame)

    def _open_channel(self, frame: RelayedFrame) -> None:
        session = self._session
        if len(session.channels) >= session.login.max_channels:
            raise ProtocolError(f"more than {session.login.max_channels} channels")
        channel = session.channels[frame.channel] = RelayedChannel(frame.channel)
        if not session.is_on_wire:
            session.answer(channel.number, commands.Channel.OpenOk())
            return
        channel.is_open_upstream = True
        self._requests.handle(channel, frame)

    def _select(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """
        Answer `confirm.select` where the primary can't. It can again and again, and its answer
        comes behind what it has to say of earlier publishes.
        """
        channel.client_confirms = True
        if not getattr(frame.method(), "nowait", False):
            self._session.answer(channel.number, commands.Confirm.SelectOk())


def _parts(frames: Sequence[RelayedFrame]) -> Iterator[Sequence[RelayedFrame]]:
    """The frames in parts: each `tx.select` begins one, as what came before is done first."""
    begin = 0
    for at, frame in enumerate(frames):
        has_size = len(frame.data) == _SELECT_SIZE  # which costs less to ask than the method
        if at and has_size and frame.method_index == commands.Tx.Select.index:
            yield frames[begin:at]
            begin = at
    yield frames[begin:]


async def read_protocol_header(stream: trio.abc.Stream) -> bool:
    """True if the client speaks AMQP 0-9-1. Another is told so (4.2.2)."""
    header = b""
    while len(header) < len(PROTOCOL_HEADER):
        data = await stream.receive_some(len(PROTOCOL_HEADER) - len(header))
        if not data:
            return False
        header += data
    if header != PROTOCOL_HEADER:
        await stream.send_all(PROTOCOL_HEADER)
        return False
    return True
