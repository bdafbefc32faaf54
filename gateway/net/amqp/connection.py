"""
An AMQP connection on a stream, for clients and servers: one task reads, one writes, one keeps time.

All events of the peer go to one function, in order. It answers with the engine's methods, at once
or later, from any task. Calls don't write: the output of several calls goes out in one write.
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

    # Seconds from the first byte until the peer has opened the connection.
    open_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    # Seconds to write what is left, and for the peer to answer the close.
    close_timeout: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    # Bytes of unsettled messages, above which reading pauses.
    max_unsettled: int = attrs.field(default=16 * 1024 * 1024, validator=attrs.validators.ge(1))
    # Bytes that wait to be written, above which `wait_for_room` waits.
    high_water: int = attrs.field(default=1024 * 1024, validator=attrs.validators.ge(1))
    # Bytes that wait to be written without a caller of `wait_for_room`. Above this, the peer sends
    # requests without reading the answers, and the connection ends.
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
        self._touched = trio.lowlevel.ParkingLot()  # waiters for a change of the engine
        self._written = trio.lowlevel.ParkingLot()  # waiters for room
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
        Run the connection to its end, of whatever kind; `stream` is closed then.

        `handle` is called with every event, in any case with a `ConnectionClosed` at the end. A
        cancellation ends the connection at once, without a close frame.

        Raises:
            ExceptionGroup: the exceptions of `handle`; the connection is closed then.
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
                    # a peer that has left doesn't get TLS's close
                    with contextlib.suppress(trio.BrokenResourceError):
                        await self._stream.aclose()

    @property
    def has_room(self) -> bool:
        """True if less than `high_water` waits to be written, or the connection has ended."""
        return self.engine.unsent < self._options.high_water or self._ended.is_set()

    async def wait_for_room(self) -> None:
        """Wait until `has_room`."""
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            await self._written.park()

    def be_silent(self) -> None:
        """Write nothing until `speak` or `close`; reading goes on."""
        self._silent = True

    def speak(self) -> None:
        """Write everything that waits, in one go."""
        self._silent = False
        _unpark(self._touched)

    async def close(self, error: AmqpError | None = None) -> None:
        """
        Close the connection, and wait until `run` is about to return.

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
            # Above the limit, the peer's data wait in the kernel's buffers until messages are
            # settled. So do its heartbeats, for which the idle timeout leaves time.
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
        """Return some bytes, or none if the peer has closed or reset the connection."""
        try:
            return await self._stream.receive_some(_RECEIVE_SIZE)
        except trio.BrokenResourceError:
            return b""  # noqa: ASYNC910 the receive has waited

    async def _write(self) -> None:  # noqa: ASYNC910 there is a greeting at least, or a wait
        """Write what there is, until the engine has finished."""
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
        await self._opened.wait()  # the heartbeat interval that the peer wants is known only then
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
    if waiting:  # called for each message: mostly the writer is awake already
        waiting.unpark_all()
