"""
An AMQP 1.0 connection without I/O, for both roles: bytes in, events out; methods in, bytes out.

The protocol's state is in `registry`, and its rules are the tables in `states`. `arrivals` reads
the peer's frames, `output` writes ours, and `sasl` comes before both. No method blocks, and no two
may run in different threads at once.

    feed, feed_eof, events              actions of the peer
    open, close, begin, end             our actions; with a void id they do nothing
    accept, send, settle, ...           the same for links, in `links`
    take, finished, tick                bytes to write, and when to call again

Values inside of maps are encoded and decoded by `gateway.wire.amqp.types`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.wire.amqp.arrivals import Arrivals
from gateway.wire.amqp.deliveries import LIMIT_EXCEEDED
from gateway.wire.amqp.events import NOTHING, AmqpError, Event, SessionId
from gateway.wire.amqp.frames import FrameError, decoding
from gateway.wire.amqp.links import Links
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.output import Output
from gateway.wire.amqp.performatives import symbols_or_null, uint, ushort
from gateway.wire.amqp.registry import Registry
from gateway.wire.amqp.sasl import Credentials, SaslClient, SaslFailed, SaslServer
from gateway.wire.amqp.states import FRAMING_ERROR, Side


def _no_wake() -> None:
    """For callers that take bytes after each call anyway."""


class Engine(Links):
    """A connection, with its links."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        sasl: SaslServer | SaslClient | None,
        wake: Callable[[], object] = _no_wake,
    ) -> None:
        """
        With None for `sasl`, the connection begins with AMQP itself.

        `wake` is called whenever there may be more to take, also from the methods below.
        """
        self._sasl = sasl  # None once the peer has authenticated
        self._options = options
        super().__init__(Registry(), Output(self._open_fields(None, NOTHING)), wake)
        self._arrivals = Arrivals(
            self._registry, self._output, max_partial=options.max_partial, options=options
        )
        self._greeting = bytearray()  # received bytes that may be SASL
        self._out = bytearray(sasl.start() if sasl else b"")  # written before AMQP's bytes
        self._mute = False  # SASL has failed, so that nothing of AMQP is written
        self._closing = False
        self._heard = self._spoke = True  # since the last tick
        self._deaf_at = math.inf  # when the peer will have been silent for too long
        self._silent_since = 0.0  # when our side wrote last
        # what had arrived in part when it was last looked at, and when that is due again
        self._unfinished: tuple[tuple[object, ...], ...] = ()
        self._unfinished_at = -math.inf

    # ------------------------------------------------------------------ bytes and time

    def feed(self, data: bytes | bytearray) -> None:
        """
        Process bytes of the peer, split anywhere. The resulting events are in `events()`
        afterwards.
        """
        if self._arrivals.over:
            return
        self._heard = True
        try:
            with decoding():
                if self._sasl is not None:
                    data = self._authenticate(self._sasl, data)
                if data:
                    self._arrivals.feed(bytes(data))
        except SaslFailed as error:
            self._out += error.answer
            self._mute = True
            refusal = AmqpError(condition=error.condition, description=str(error))
            self._arrivals.close(refusal)
        except FrameError as error:
            if self._arrivals.theirs is Side.IDLE and self._sasl is None:
                # Part 2, 2.2: another protocol is answered by our header, and by nothing else.
                self._out += self._output.pop_header()
                self._mute = True
            self._break(error.condition, str(error))
        # An answer to a request of ours is seldom answered: waking the writer takes a turn.
        if self._out or self._arrivals.over or self._output.pending:
            self._wake()

    def feed_eof(self) -> None:
        """The peer ended its half of the stream, or the stream broke."""
        if not self._arrivals.over:
            self._break(FRAMING_ERROR, "the connection was aborted")
        self._wake()

    def events(self) -> Iterator[Event]:
        """The events in order; each is removed when it is returned."""
        return self._arrivals.pop_events()

    def data_to_send(self, most: int) -> bytes:
        """Return about `most` bytes to be written next; empty if nothing is to be written now."""
        if self._out:
            data, self._out = bytes(self._out), bytearray()
            return data
        if self._mute or self._sasl is not None:
            return b""
        data = self._output.data_to_send(most)
        if data:
            self._spoke = True
        return data

    def discard_output(self) -> None:
        """Forget what waits to be written: the stream has ended."""
        self._output.discard()

    def allow_partial(self, size: int) -> None:
        """Set the limit for the bytes of unfinished messages from now on."""
        self._arrivals.max_partial = size

    def allow_partial_for(self, seconds: float) -> None:
        """Give frames and messages that have arrived in part so many seconds more."""
        self._unfinished_at += seconds

    @property
    def finished(self) -> bool:
        """
        True if `ConnectionClosed` is among the events and all bytes were taken: the stream can be
        closed.
        """
        if not self._arrivals.over or self._out:
            return False
        return self._mute or not self._output.pending

    @property
    def has_closed(self) -> bool:
        """True if our close was taken: nothing is written after it."""
        return self._output.ours is Side.ENDED and not self._out and not self._output.pending

    @property
    def unsent(self) -> int:
        """Bytes of messages and frames that were passed to the engine and not taken yet."""
        return len(self._out) + self._output.size + self._output.queued

    @property
    def unfinished(self) -> int:
        """Bytes of messages whose last frame hasn't arrived."""
        return self._registry.partial

    @property
    def unsettled(self) -> int:
        """
        Bytes of messages that have arrived, in whole or in part, and that we haven't settled; 0
        while none is whole, because no settlement then makes them fewer.
        """
        whole = self._registry.unsettled
        return whole and whole + self._registry.partial

    def tick(self, now: float) -> float:
        """
        Send due heartbeats, and end the connection of a peer that was silent for too long, or that
        doesn't finish a frame or a message.

        `now` is monotonic, in seconds, and so is the result: the latest time of the next call.
        """
        if self._arrivals.over:
            return math.inf
        patience, theirs = self._options.idle_timeout, self._arrivals.idle_timeout / 1000
        if self._heard:
            self._heard = False
            self._deaf_at = now + patience if patience else math.inf
        elif now >= self._deaf_at:
            return self._give_up(f"nothing was heard for {patience} seconds")
        if now >= self._unfinished_at and self._is_unfinished(now):
            limit = self._options.partial_timeout
            return self._give_up(f"a frame or a message wasn't complete after {limit} seconds")
        due = min(self._deaf_at, self._unfinished_at)
        if self._spoke:
            self._spoke = False
            self._silent_since = now
        if not theirs:
            return due
        if now >= self._silent_since + theirs / 2:
            self._output.heartbeat()
            self._wake()
            self._silent_since = now
        return min(due, self._silent_since + theirs / 2)

    @property
    def asked(self) -> Credentials | None:
        """The peer's credentials, while the server hasn't decided about them."""
        sasl = self._sasl
        is_open = isinstance(sasl, SaslServer) and sasl.verdict is None and not self._arrivals.over
        return sasl.asked if isinstance(sasl, SaslServer) and is_open else None

    def decide(self, verdict: int) -> None:
        """Answer the credentials that were `asked` with that outcome."""
        if isinstance(self._sasl, SaslServer) and self.asked is not None:
            self._sasl.verdict = verdict
            self.feed(b"")

    # ------------------------------------------------------------------ connection, sessions

    def open(
        self,
        *,
        hostname: str | None = None,
        properties: Mapping[str, Any] = NOTHING,
        pads_frames: bool = False,
    ) -> None:
        """
        Open our half: a client at once, a server in answer to `ConnectionOpened`.

        `pads_frames` writes trailing nulls in frames, which azure-servicebus for Python needs
        before version 7.15.
        """
        output = self._output
        if output.ours not in (Side.IDLE, Side.GREETED) or self._arrivals.over:
            return
        output.pads = pads_frames
        output.open(self._open_fields(hostname, properties))
        self._wake()

    def close(self, error: AmqpError | None = None) -> None:
        """
        Close the connection with its sessions and links; `ConnectionClosed` follows when the peer
        has closed too. Messages that wait for a session's window are sent before.
        """
        if self._arrivals.over or self._closing:
            return
        self._closing = True
        self._output.close_after(self._registry.sessions.values(), error)
        self._wake()

    def begin(self) -> SessionId:
        """
        Begin a session (client). Links can be attached to it at once. If the peer allows no further
        session, the id is void.
        """
        session = None if self._arrivals.over else self._arrivals.begin()
        self._wake()
        return self._registry.new_session_id() if session is None else session.id

    @property
    def free_sessions(self) -> int:
        """The sessions that the peer still allows, once it has opened the connection."""
        return self._arrivals.free_sessions

    def is_begun(self, session: SessionId) -> bool:
        """True if links can be attached to the session: neither side has ended it."""
        record = self._registry.sessions.get(session)
        return record is not None and record.ours is Side.OPEN

    def end(self, session: SessionId, error: AmqpError | None = None) -> None:
        """End a session with its links: their ids become void, without an event."""
        record = self._registry.sessions.get(session)
        if record is None:
            return
        self._output.end(record, error)
        self._registry.void_session(record)
        self._wake()

    # ------------------------------------------------------------------ inside

    def _authenticate(self, sasl: SaslServer | SaslClient, data: bytes | bytearray) -> bytes:
        """Pass the bytes to SASL; return those after SASL's end."""
        self._greeting += data
        self._out += sasl.feed(self._greeting)
        if sasl.done is None:
            return b""
        self._arrivals.credentials = sasl.done
        self._sasl = None
        rest, self._greeting = bytes(self._greeting), bytearray()
        return rest

    def _is_unfinished(self, now: float) -> bool:
        """True if a frame or a message that had arrived in part at the last look still has."""
        before, self._unfinished = self._unfinished, self._arrivals.unfinished
        self._unfinished_at = now + (self._options.partial_timeout or math.inf)
        return not set(before).isdisjoint(self._unfinished)

    def _give_up(self, why: str) -> float:
        """End the connection of a peer that takes too long; there is no next tick."""
        self._break(LIMIT_EXCEEDED, why)
        self._wake()
        return math.inf

    def _break(self, condition: str, description: str) -> None:
        """End a connection whose peer has broken the protocol, and send it the reason."""
        error = AmqpError(condition=condition, description=description)
        if self._sasl is not None:
            self._mute = True
        else:
            self._output.close(error)
        self._arrivals.close(error, is_broken=True)

    def _open_fields(self, hostname: str | None, properties: Mapping[str, Any]) -> list[Any]:
        """The fields of our open frame (part 2, 2.7.1)."""
        options = self._options
        # The peer is told half of it, so that a heartbeat may be late (2.4.5).
        idle = uint(int(options.idle_timeout * 500)) if options.idle_timeout else None
        return [
            options.container_id,
            hostname,
            uint(options.max_frame_size),
            ushort(options.channel_max),
            idle,
            None,
            None,
            None,
            None,
            symbols_or_null(properties),
        ]
