"""
An AMQP connection on a stream, for clients and servers: one task reads and keeps time, one writes.

All events of the peer go to one function, in order. It answers with the engine's methods, at once
or later, from any task. Calls don't write: the output of several calls goes out in one write.
"""

import contextlib
import math
from collections.abc import Awaitable, Callable

import attrs
import trio

from gateway.net.turns import Waiters
from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import AmqpError, ConnectionClosed, ConnectionOpened, Event
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials, SaslClient, SaslServer

_RECEIVE_SIZE = 64 * 1024
_WRITE_SIZE = 256 * 1024


@attrs.frozen(kw_only=True)
class AmqpConnectionOptions:
    """Limits of one connection besides those of its engine."""

    # Seconds from the first byte until the peer has opened the connection.
    open_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    # Seconds to write what is left, and for the peer to answer the close.
    close_timeout: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    # Seconds in which the peer must read what is written to it in one go, `_WRITE_SIZE` at most.
    write_timeout: float = attrs.field(default=240.0, validator=attrs.validators.gt(0))
    # Bytes of unsettled messages, above which reading pauses.
    max_unsettled: int = attrs.field(default=16 * 1024 * 1024, validator=attrs.validators.ge(1))
    # Bytes that wait to be written, above which `wait_for_room` waits.
    high_water: int = attrs.field(default=1024 * 1024, validator=attrs.validators.ge(1))
    # Bytes that wait to be written without a caller of `wait_for_room`. Above this, the peer sends
    # requests without reading the answers, and the connection ends.
    max_unsent: int = attrs.field(default=64 * 1024 * 1024, validator=attrs.validators.ge(1))
    # True: our close also ends the sending half of the stream, if the stream has halves. Node's SDK
    # connects again as soon as it has read a close; the end of the old stream, when it comes later,
    # ends the new connection.
    half_closes: bool = False


_DEFAULTS = AmqpConnectionOptions()

Judge = Callable[[Credentials], Awaitable[int]]
"""Decides about a client's credentials, and returns a code of `gateway.wire.amqp.sasl`."""


def _never() -> float:
    return math.inf


def _ignore() -> None:
    """Nobody counts what is processed."""


class AmqpConnection:
    """A connection. Its `engine` may be used until `ConnectionClosed`, and does nothing later."""

    # A process may have very many idle connections: there is no dict for each, and what few of them
    # need is made when it is needed.
    __slots__ = (
        "_ended",
        "_handle",
        "_judge",
        "_opened",
        "_options",
        "_processed",
        "_scope",
        "_silent",
        "_speaks_once",
        "_stream",
        "_ticking",
        "_touched",
        "_write_began",
        "_written",
        "broken",
        "engine",
        "on_tick",
    )

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        engine: EngineOptions,
        sasl: SaslServer | SaslClient | None,
        options: AmqpConnectionOptions | None = None,
        judge: Judge | None = None,
        processed: Callable[[], None] = _ignore,
    ) -> None:
        """
        `judge` decides about credentials about which `sasl` can't; nothing is read meanwhile.
        `processed` is called each time that bytes which were read have been processed, before
        anything else of the connection waits.
        """
        self._judge = judge
        self._processed = processed
        self._touched = Waiters()  # of tasks that wait for a change of the engine
        self._written = Waiters()  # of tasks that wait for room
        self.engine = Engine(engine, sasl=sasl, wake=self._touched.wake)
        self._stream = stream
        self._options = options or _DEFAULTS
        # Called with each tick; returns when (by Trio's clock) it wants the next one.
        self.on_tick: Callable[[], float] = _never
        self.broken: BaseException | None = None  # with which the peer was read last
        self._opened = False
        self._ended = False
        self._silent = False
        self._speaks_once = False
        self._write_began = math.inf  # while nothing is written
        self._scope = trio.CancelScope()  # of the tasks, once they run
        self._ticking = trio.CancelScope()  # its deadline is the next tick

    async def run(self, handle: Callable[[Event], None]) -> None:
        """
        Run the connection to its end, of whatever kind; `stream` is closed then.

        `handle` is called with every event, in any case with a `ConnectionClosed` at the end. A
        cancellation ends the connection at once, without a close frame.

        Raises:
            ExceptionGroup: the exceptions of `handle`; the connection is closed then.
        """
        self._handle = handle
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                self._scope.deadline = trio.current_time() + self._options.open_timeout
                nursery.start_soon(self._read_and_tick)
                await self._write()
                nursery.cancel_scope.cancel()
        finally:
            try:
                self.engine.feed_eof()
                self._dispatch()
            finally:
                self._ended = True
                # References in a cycle may keep the connection for long, but no bodies with it.
                self.engine.discard_output()
                self._written.wake()
                with trio.move_on_after(self._options.close_timeout, shield=True):
                    # a peer that has left doesn't get TLS's close
                    with contextlib.suppress(trio.BrokenResourceError):
                        await self._stream.aclose()

    @property
    def has_room(self) -> bool:
        """True if less than `high_water` waits to be written, or the connection has ended."""
        return self.engine.unsent < self._options.high_water or self._ended

    async def wait_for_room(self) -> None:
        """Wait until `has_room`."""
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            await self._written.wait()

    def be_silent(self) -> None:
        """Write nothing until `speak`, `speak_once` or `close`; reading goes on."""
        self._silent = True

    def speak(self) -> None:
        """Write everything that waits, in one go."""
        self._silent = False
        self._touched.wake()

    def speak_once(self) -> None:
        """Write everything that waits, in one go, and be silent again if it was before."""
        self._speaks_once = True
        self._touched.wake()

    def tick_by(self, when: float) -> None:
        """Have the next tick at that time, unless it is earlier anyway."""
        self._ticking.deadline = min(self._ticking.deadline, when)

    async def close(self, error: AmqpError | None = None) -> None:
        """
        Close the connection, and wait until `run` is about to return.

        A peer that doesn't answer within `close_timeout` is cut off, and at once if it hasn't
        opened the connection: Node's SDK leaves such connections behind.
        """
        self.engine.close(error)
        self.speak()
        with trio.move_on_after(self._options.close_timeout if self._opened else 0) as scope:
            while not self._ended:
                await self._written.wait()
        if scope.cancelled_caught:
            self._scope.cancel()

    async def _read_and_tick(self) -> None:
        """
        Read until the peer closes. A tick interrupts the wait for the peer's data, which costs a
        connection less than a task of its own.
        """
        ended = False
        while not ended:
            with self._ticking:
                await self._read()
                ended = True
            if not ended:
                self._ticking = trio.CancelScope()
                self.tick_by(self._tick())

    async def _read(self) -> None:
        while True:
            if self._judge is not None and (asked := self.engine.asked) is not None:
                self.engine.decide(await self._judge(asked))
                self._dispatch()
            if self.engine.unsettled > self._options.max_unsettled:
                await self._wait_for_settlements()
            data = await self._receive()
            if not data:
                self.engine.feed_eof()
                self._dispatch()
                return
            self.engine.feed(data)
            self._dispatch()
            self._processed()
            if self.engine.unsent > self._options.max_unsent and self._scope.deadline == math.inf:
                self._give_up()

    async def _wait_for_settlements(self) -> None:
        """
        Wait until fewer bytes are unsettled. Meanwhile the peer's data wait in the kernel's
        buffers: so do its heartbeats, for which the idle timeout leaves time, and the rest of
        frames and messages, for which the peer gets this time in addition.
        """
        began = trio.current_time()
        try:
            while self.engine.unsettled > self._options.max_unsettled:
                await self._touched.wait()
        finally:
            self.engine.allow_partial_for(trio.current_time() - began)

    async def _receive(self) -> bytes | bytearray:
        """Return some bytes, or none if the peer has closed or reset the connection."""
        try:
            return await self._stream.receive_some(_RECEIVE_SIZE)
        except trio.BrokenResourceError as error:
            self.broken = error.with_traceback(None)  # which would lead back to this frame
            return b""

    async def _write(self) -> None:
        """Write what there is, until the engine has finished."""
        has_ended = False
        while not self.engine.finished:
            may_speak = not self._silent or self._speaks_once
            data = self.engine.data_to_send(_WRITE_SIZE) if may_speak else b""
            self._speaks_once = self._speaks_once and bool(data)
            try:
                if data:
                    self._write_began = trio.current_time()
                    await self._stream.send_all(data)
                    self._write_began = math.inf
                    self._written.wake()
                elif self.engine.has_closed and not has_ended:
                    has_ended = True
                    await self._end_output()
                elif not self.engine.finished:
                    await self._touched.wait()
            except trio.BrokenResourceError:
                return

    async def _end_output(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._options.half_closes and isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    def _tick(self) -> float:
        """Do what is due; return the time of the next tick."""
        due = self.on_tick()
        if self._opened:  # before, the heartbeat interval that the peer wants isn't known
            due = min(due, self.engine.tick(trio.current_time()))
            self._dispatch()
            due = min(due, self._unread_by())
        return due

    def _unread_by(self) -> float:
        """Give up a peer that doesn't read; return when a write may have taken too long."""
        now = trio.current_time()
        limit = min(self._write_began, now) + self._options.write_timeout  # min: nothing is written
        if now < limit:
            return limit
        if self._scope.deadline == math.inf:
            self._give_up()
        return math.inf

    def _give_up(self) -> None:
        text = "The peer doesn't read what it gets."
        self.engine.close(AmqpError(condition="amqp:resource-limit-exceeded", description=text))
        self._scope.deadline = trio.current_time() + self._options.close_timeout

    def _dispatch(self) -> None:
        for event in self.engine.events():
            if isinstance(event, ConnectionOpened):
                self._opened = True
                self._scope.deadline = math.inf
                self.tick_by(-math.inf)
            elif isinstance(event, ConnectionClosed):
                self._scope.deadline = trio.current_time() + self._options.close_timeout
            self._handle(event)
