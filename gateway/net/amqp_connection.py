"""
An AMQP connection on a stream: one task reads, one writes, one keeps time. Both roles.

What the peer does reaches one function, in order; it answers with the engine's methods, at once or
later, from any task. Nothing is written per call: what several of them leave goes in one write.
"""

import contextlib
import math
from collections.abc import Callable
from functools import partial

import attrs
import trio

from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import AmqpError, ConnectionClosed, ConnectionOpened, Event
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import SaslClient, SaslServer

_RECEIVE_SIZE = 64 * 1024
_WRITE_SIZE = 256 * 1024


@attrs.frozen(kw_only=True)
class AmqpConnectionOptions:
    """Limits of one connection besides those of its engine."""

    # Seconds until the peer has opened, from the first byte on.
    open_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    # Seconds for what is left to be written, and for the peer to answer our close.
    close_timeout: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    # Bytes of messages that wait for their settlement: with more, reading pauses.
    max_unsettled: int = attrs.field(default=16 * 1024 * 1024, validator=attrs.validators.ge(1))
    # Bytes that wait to be written: with more, `wait_for_room` waits.
    high_water: int = attrs.field(default=1024 * 1024, validator=attrs.validators.ge(1))
    # Bytes that wait to be written although nobody waited for room: with more, the peer asks and
    # doesn't read, and the connection ends.
    max_unsent: int = attrs.field(default=64 * 1024 * 1024, validator=attrs.validators.ge(1))


class AmqpConnection:
    """One connection. Its `engine` may be used until `ConnectionClosed`, and does nothing later."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        engine: EngineOptions,
        sasl: SaslServer | SaslClient | None,
        options: AmqpConnectionOptions | None = None,
    ) -> None:
        self._touched = trio.lowlevel.ParkingLot()  # who waits for the engine to change
        self._written = trio.lowlevel.ParkingLot()  # who waits for room
        self.engine = Engine(engine, sasl=sasl, wake=partial(_unpark, self._touched))
        self._stream = stream
        self._options = options or AmqpConnectionOptions()
        self._opened = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._silent = False

    async def run(  # noqa: ASYNC910 the nursery waits
        self, handle: Callable[[Event], None]
    ) -> None:
        """
        Return when the connection has ended, in whichever way; `stream` is closed then.

        `handle` gets every event, at last a `ConnectionClosed`, whatever happens. A cancellation
        ends the connection at once, without a farewell.

        Raises:
            ExceptionGroup: of what `handle` raised; the connection is closed then.
        """
        self._handle = handle
        self._scope.deadline = trio.current_time() + self._options.open_timeout
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read)
                    nursery.start_soon(self._keep_time)
                    await self._write()
                    nursery.cancel_scope.cancel()
        finally:
            try:
                self.engine.feed_eof()
                self._dispatch()
            finally:
                self._ended.set()
                self._written.unpark_all()
                with trio.move_on_after(self._options.close_timeout, shield=True):
                    # A peer that has gone doesn't hear TLS's goodbye.
                    with contextlib.suppress(trio.BrokenResourceError):
                        await self._stream.aclose()

    @property
    def has_room(self) -> bool:
        """Whether less than `high_water` is left to be written, or the connection has ended."""
        return self.engine.unsent < self._options.high_water or self._ended.is_set()

    async def wait_for_room(self) -> None:
        """Wait until it has room."""
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            await self._written.park()

    def be_silent(self) -> None:
        """Write nothing until `speak` or `close`; reading goes on."""
        self._silent = True

    def speak(self) -> None:
        """Write what there is, in one go."""
        self._silent = False
        _unpark(self._touched)

    async def close(self, error: AmqpError | None = None) -> None:
        """
        Tell the peer that it is over, and wait until `run` is about to return.

        A peer that doesn't answer within `close_timeout` is cut off.
        """
        self.engine.close(error)
        self.speak()
        with trio.move_on_after(self._options.close_timeout) as scope:
            await self._ended.wait()
        if scope.cancelled_caught:
            self._scope.cancel()

    async def _read(self) -> None:
        while True:
            # With more, the peer waits in the kernel's buffers until we have settled. Its
            # heartbeats wait there too: it has the idle time for that.
            while self.engine.unsettled > self._options.max_unsettled:
                await self._touched.park()
            data = await self._receive()
            if not data:
                self.engine.feed_eof()
                self._dispatch()
                return
            self.engine.feed(data)
            self._dispatch()
            if self.engine.unsent > self._options.max_unsent and self._scope.deadline == math.inf:
                self._give_up()

    async def _receive(self) -> bytes | bytearray:
        """Some bytes, or none when the peer has ended or reset the connection."""
        try:
            return await self._stream.receive_some(_RECEIVE_SIZE)
        except trio.BrokenResourceError:
            return b""  # noqa: ASYNC910 the receive has waited

    async def _write(self) -> None:  # noqa: ASYNC910 there is a greeting at least, or a wait
        """Write what there is, until there will be nothing more."""
        while not self.engine.finished:
            data = b"" if self._silent else self.engine.take(_WRITE_SIZE)
            if data:
                try:
                    await self._stream.send_all(data)
                except trio.BrokenResourceError:
                    return  # noqa: ASYNC910 the write has waited
                self._written.unpark_all()
            elif not self.engine.finished:
                await self._touched.park()

    async def _keep_time(self) -> None:
        await self._opened.wait()  # only then it is known which heartbeats the peer wants
        while True:
            deadline = self.engine.tick(trio.current_time())
            self._dispatch()
            await trio.sleep_until(deadline)

    def _give_up(self) -> None:
        text = "The peer doesn't read what it asks for."
        self.engine.close(AmqpError(condition="amqp:resource-limit-exceeded", description=text))
        self._scope.deadline = trio.current_time() + self._options.close_timeout

    def _dispatch(self) -> None:
        for event in self.engine.events():
            if isinstance(event, ConnectionOpened):
                self._opened.set()
                self._scope.deadline = math.inf
            elif isinstance(event, ConnectionClosed):
                self._scope.deadline = trio.current_time() + self._options.close_timeout
            self._handle(event)


def _unpark(waiting: trio.lowlevel.ParkingLot) -> None:
    if waiting:  # for each message: mostly the writer is awake already
        waiting.unpark_all()
