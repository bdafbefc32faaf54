"""
Qpid Proton behind the methods of our own engine: a foreign peer for tests and benchmarks.

Proton holds the protocol's state, behind `arrivals` and `library`. Features that Proton lacks are
in `frames` and `rewriting`; of SASL it uses ours.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.wire.amqp.events import NOTHING, AmqpError, Event, SessionId
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import SaslClient, SaslFailed, SaslServer
from tests.wire.amqp.proton import library
from tests.wire.amqp.proton.arrivals import Arrivals
from tests.wire.amqp.proton.frames import ROOM, FrameError, Inbound, decoding
from tests.wire.amqp.proton.library import Pointer, lib
from tests.wire.amqp.proton.links import Links
from tests.wire.amqp.proton.registry import Registry
from tests.wire.amqp.proton.rewriting import Outbound


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
        self._sasl = sasl
        self._transport: Pointer = lib.pn_transport()
        self._connection: Pointer = lib.pn_connection()
        self._collector: Pointer = lib.pn_collector()
        weakref.finalize(self, library.free, self._transport, self._connection, self._collector)
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_connection_set_container(self._connection, options.container_id.encode())
        lib.pn_transport_set_max_frame(self._transport, options.max_frame_size + ROOM)
        lib.pn_transport_set_channel_max(self._transport, options.channel_max)
        lib.pn_transport_set_idle_timeout(self._transport, int(options.idle_timeout * 1000))
        lib.pn_transport_bind(self._transport, self._connection)
        self._inbound = Inbound(options.max_frame_size)
        self._outbound = Outbound(self._inbound.renumbering, options.max_frame_size)
        super().__init__(Registry(), self._outbound, wake)
        self._arrivals = Arrivals(
            connection=self._connection,
            transport=self._transport,
            collector=self._collector,
            registry=self._registry,
            inbound=self._inbound,
            max_links=options.max_links,
            max_partial=options.max_partial,
        )
        self._greeting = bytearray()  # received bytes that may be SASL
        self._out = bytearray(sasl.start() if sasl else b"")  # written before Proton's bytes
        self._opened = False
        self._mute = False  # SASL has failed, so that nothing of Proton's is written

    # ------------------------------------------------------------------ bytes and time

    def feed(self, data: bytes | bytearray) -> None:
        """
        Process bytes of the peer, split anywhere. The resulting events are in `events()`
        afterwards.
        """
        if self._arrivals.over:
            return
        try:
            with decoding():
                if self._sasl is not None and self._sasl.done is None:
                    data = self._authenticate(self._sasl, data)
                if data:
                    self._push(self._inbound.feed(bytes(data)))
        except SaslFailed as error:
            self._out += error.answer
            self._mute = True
            refusal = AmqpError(condition=error.condition, description=str(error))
            self._arrivals.end(refusal)
        except FrameError as error:
            self._break(error.condition, str(error))
        self._wake()

    def feed_eof(self) -> None:
        """The peer ended its half of the stream, or the stream broke."""
        lib.pn_transport_close_tail(self._transport)
        self._process()
        self._arrivals.end(None)
        self._wake()

    def events(self) -> Iterator[Event]:
        """The events in order; each is removed when it is returned."""
        waiting = self._arrivals.events
        while waiting:
            yield waiting.popleft()

    def data_to_send(self, most: int) -> bytes:
        """Return about `most` bytes to be written next; empty if nothing is to be written now."""
        if self._out:
            data = bytes(self._out)
            self._out.clear()
            return data
        if self._mute or (self._sasl is not None and self._sasl.done is None):
            return b""
        pieces: list[bytes] = []
        size = 0
        while size < most and (raw := library.pull(self._transport, most - size)):
            pieces.append(self._outbound.feed(raw))  # Proton returns a part of them at a time
            size += len(raw)
        return b"".join(pieces)

    def allow_partial(self, size: int) -> None:
        """Set the limit for the bytes of unfinished messages from now on."""
        self._arrivals.max_partial = size

    @property
    def finished(self) -> bool:
        """
        True if `ConnectionClosed` is among the events and all bytes were taken: the stream can be
        closed.
        """
        if not self._arrivals.over or self._out:
            return False
        return self._mute or bool(lib.pn_transport_pending(self._transport) <= 0)

    @property
    def unsent(self) -> int:
        """Bytes of messages and frames that were passed to the engine and not taken yet."""
        sessions = self._registry.sessions.values()
        waiting: int = sum(lib.pn_session_outgoing_bytes(each.pointer) for each in sessions)
        written: int = max(0, lib.pn_transport_pending(self._transport))
        return len(self._out) + waiting + written

    @property
    def unsettled(self) -> int:
        """Bytes of messages that have arrived, in whole or in part, and that we haven't settled."""
        whole = self._registry.unsettled
        return whole and whole + self._registry.partial

    def tick(self, now: float) -> float:
        """
        Send due heartbeats, and end the connection of a peer that was silent for too long.

        `now` is monotonic, in seconds, and so is the result: the latest time of the next call.
        """
        # Rounded up: a caller at the deadline would otherwise get the same deadline again.
        deadline = lib.pn_transport_tick(self._transport, max(1, math.ceil(now * 1000)))
        self._process()
        self._wake()
        return deadline / 1000 if deadline else math.inf

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
        if self._opened or self._arrivals.over:
            return
        self._opened = True
        self._outbound.pads = pads_frames
        if hostname is not None:
            lib.pn_connection_set_hostname(self._connection, hostname.encode())
        library.put_symbols(lib.pn_connection_properties(self._connection), properties)
        lib.pn_connection_open(self._connection)
        self._wake()

    def close(self, error: AmqpError | None = None) -> None:
        """
        Close the connection with its sessions and links; `ConnectionClosed` follows when the peer
        has closed too.
        """
        if self._arrivals.over:
            return
        self.open()
        library.put_error(lib.pn_connection_condition(self._connection), error)
        lib.pn_connection_close(self._connection)
        self._wake()

    def begin(self) -> SessionId:
        """Begin a session (client). Links can be attached to it at once."""
        pointer = lib.pn_session(self._connection)
        lib.pn_session_open(pointer)
        self._wake()
        return self._registry.add_session(pointer).id

    def end(self, session: SessionId, error: AmqpError | None = None) -> None:
        """End a session with its links: their ids become void, without an event."""
        record = self._registry.sessions.get(session)
        if record is None:
            return
        library.put_error(lib.pn_session_condition(record.pointer), error)
        lib.pn_session_close(record.pointer)
        self._registry.drop_session(record)
        self._wake()

    # ------------------------------------------------------------------ inside

    def _authenticate(self, sasl: SaslServer | SaslClient, data: bytes | bytearray) -> bytes:
        """Pass the bytes to SASL; return those after SASL's end."""
        self._greeting += data
        self._out += sasl.feed(self._greeting)
        if sasl.done is None:
            return b""
        self._arrivals.credentials = sasl.done
        rest = bytes(self._greeting)
        self._greeting.clear()
        return rest

    def _push(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            pushed = library.push(self._transport, left)
            self._arrivals.process()
            if pushed <= 0:  # the connection is over: otherwise Proton would have taken some
                return
            left = left[pushed:]

    def _process(self) -> None:
        try:
            with decoding():
                self._arrivals.process()
        except FrameError as error:
            self._break(error.condition, str(error))

    def _break(self, condition: str, description: str) -> None:
        """End a connection whose peer has broken the protocol, and send it the reason."""
        error = AmqpError(condition=condition, description=description)
        if self._inbound.opened:
            self.close(error)
        else:  # Proton would wait for the peer's open before it closes
            library.put_error(lib.pn_transport_condition(self._transport), error)
            lib.pn_transport_close_tail(self._transport)
        self._arrivals.end(error)
