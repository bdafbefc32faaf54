"""
One AMQP 1.0 connection without I/O: bytes in, events out; methods in, bytes out. Both roles.

The state of the protocol is Qpid Proton's, which `arrivals` and `proton` hide. What it lacks is in
`frames`, `rewriting` and `sasl`. No method waits, and none may run in two threads at once.

    feed, feed_eof, events              what the peer did
    open, accept, send, settle, ...     what we do; with an id that is void they do nothing
    take, finished, tick                what is to be written, and when to come again

Values inside of maps are encoded and decoded by `gateway.wire.amqp.types`.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.wire.amqp import proton
from gateway.wire.amqp.arrivals import Arrivals
from gateway.wire.amqp.events import (
    NOTHING,
    AmqpError,
    DeliveryId,
    DeliveryState,
    Event,
    LinkId,
    NewLink,
    SessionId,
)
from gateway.wire.amqp.frames import ROOM, FrameError, Inbound, decoding
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.proton import Pointer, lib
from gateway.wire.amqp.registry import Registry
from gateway.wire.amqp.rewriting import Outbound
from gateway.wire.amqp.sasl import SaslClient, SaslFailed, SaslServer


def _no_wake() -> None:
    """For who takes bytes after each call anyway."""


class Engine:
    """One connection."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        sasl: SaslServer | SaslClient | None,
        wake: Callable[[], object] = _no_wake,
    ) -> None:
        """
        None for `sasl`: the connection begins with AMQP itself.

        `wake` is called whenever there may be more to take, also out of the methods below.
        """
        self._sasl = sasl
        self._wake = wake
        self._transport: Pointer = lib.pn_transport()
        self._connection: Pointer = lib.pn_connection()
        self._collector: Pointer = lib.pn_collector()
        weakref.finalize(self, proton.free, self._transport, self._connection, self._collector)
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_connection_set_container(self._connection, options.container_id.encode())
        lib.pn_transport_set_max_frame(self._transport, options.max_frame_size + ROOM)
        lib.pn_transport_set_channel_max(self._transport, options.channel_max)
        lib.pn_transport_set_idle_timeout(self._transport, int(options.idle_timeout * 1000))
        lib.pn_transport_bind(self._transport, self._connection)
        self._inbound = Inbound(options.max_frame_size)
        self._outbound = Outbound(self._inbound.renumbering, options.max_frame_size)
        self._registry = Registry()
        self._arrivals = Arrivals(
            connection=self._connection,
            transport=self._transport,
            collector=self._collector,
            registry=self._registry,
            inbound=self._inbound,
            max_links=options.max_links,
            max_partial=options.max_partial,
        )
        self._greeting = bytearray()  # what came in and may be SASL
        self._out = bytearray(sasl.start() if sasl else b"")  # comes before what Proton writes
        self._opened = False
        self._mute = False  # nothing of Proton's is written: SASL has failed

    # ------------------------------------------------------------------ bytes and time

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes of the peer, cut anywhere. What they mean is in `events()` afterwards."""
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
        """What has happened, in order; each event is taken as it is handed out."""
        waiting = self._arrivals.events
        while waiting:
            yield waiting.popleft()

    def take(self, most: int) -> bytes:
        """About `most` bytes that are to be written next; none: nothing for now."""
        if self._out:
            data = bytes(self._out)
            self._out.clear()
            return data
        if self._mute or (self._sasl is not None and self._sasl.done is None):
            return b""
        while raw := proton.pull(self._transport, most):
            if data := self._outbound.feed(raw):
                return data
        return b""

    @property
    def finished(self) -> bool:
        """`ConnectionClosed` is among the events, and all is taken: the stream can be closed."""
        if not self._arrivals.over or self._out:
            return False
        return self._mute or bool(lib.pn_transport_pending(self._transport) <= 0)

    @property
    def unsent(self) -> int:
        """Bytes of messages and frames that were given to the engine and not taken yet."""
        sessions = self._registry.sessions.values()
        waiting: int = sum(lib.pn_session_outgoing_bytes(each.pointer) for each in sessions)
        written: int = max(0, lib.pn_transport_pending(self._transport))
        return len(self._out) + waiting + written

    @property
    def unsettled(self) -> int:
        """Bytes of messages that have arrived, in whole or in part, and were not settled by us."""
        return self._registry.unsettled + self._registry.partial

    def tick(self, now: float) -> float:
        """
        Do what time demands: heartbeats, and the end of a peer that is silent for too long.

        `now` is monotonic, in seconds, and so is the answer: come again then at the latest.
        """
        # Rounded up, or who comes at the deadline would be told the same deadline again.
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
        Open our half: a client at once, a server as the answer to `ConnectionOpened`.

        `pads_frames` writes the nulls at the end of frames, which azure-servicebus for Python
        needs before version 7.15.
        """
        if self._opened or self._arrivals.over:
            return
        self._opened = True
        self._outbound.pads = pads_frames
        if hostname is not None:
            lib.pn_connection_set_hostname(self._connection, hostname.encode())
        proton.put_symbols(lib.pn_connection_properties(self._connection), properties)
        lib.pn_connection_open(self._connection)
        self._wake()

    def close(self, error: AmqpError | None = None) -> None:
        """Close, with all that it has; `ConnectionClosed` follows when the peer has closed too."""
        if self._arrivals.over:
            return
        self.open()
        proton.put_error(lib.pn_connection_condition(self._connection), error)
        lib.pn_connection_close(self._connection)
        self._wake()

    def begin(self) -> SessionId:
        """Begin a session (client). Links can be attached to it at once."""
        pointer = lib.pn_session(self._connection)
        lib.pn_session_open(pointer)
        self._wake()
        return self._registry.add_session(pointer).id

    def end(self, session: SessionId, error: AmqpError | None = None) -> None:
        """End a session with its links: their ids are void, and no event tells so."""
        record = self._registry.sessions.get(session)
        if record is None:
            return
        proton.put_error(lib.pn_session_condition(record.pointer), error)
        lib.pn_session_close(record.pointer)
        self._registry.drop_session(record)
        self._wake()

    # ------------------------------------------------------------------ links

    def accept(
        self,
        link: LinkId,
        *,
        address: str | None = None,
        filters: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] = NOTHING,
        max_message_size: int = 0,
    ) -> None:
        """
        Answer an attach with its own source, target and settle modes.

        `address` names the node that was made for a dynamic terminus; `filters` are those that
        the source has (None: all that were asked for). Messages that are larger than
        `max_message_size` bytes (0: no limit) are rejected as they arrive, without an event.
        """
        record = self._registry.links.get(link)
        if record is None:
            return
        record.max_message_size = max_message_size
        proton.echo(record.pointer, address=address, filters=filters)
        proton.put_symbols(lib.pn_link_properties(record.pointer), properties)
        lib.pn_link_set_max_message_size(record.pointer, max_message_size)
        lib.pn_link_open(record.pointer)
        self._wake()

    def refuse(self, link: LinkId, error: AmqpError) -> None:
        """Answer an attach with neither source nor target, and close it with `error` (2.6.3)."""
        record = self._registry.links.get(link)
        if record is None:
            return
        lib.pn_terminus_set_type(lib.pn_link_source(record.pointer), lib.PN_UNSPECIFIED)
        lib.pn_terminus_set_type(lib.pn_link_target(record.pointer), lib.PN_UNSPECIFIED)
        lib.pn_link_open(record.pointer)
        self.detach(link, error)

    def attach(self, session: SessionId, new: NewLink) -> LinkId | None:
        """Attach a link (client); None if the session has ended. `LinkAttached` is the answer."""
        record = self._registry.sessions.get(session)
        if record is None:
            return None
        pointer = proton.new_link(record.pointer, new)
        link = self._registry.add_link(pointer, record, we_send=new.we_send)
        link.max_message_size = new.max_message_size
        self._wake()
        return link.id

    def detach(self, link: LinkId, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """Detach a link: its id and its deliveries are void, and no event tells so."""
        record = self._registry.links.get(link)
        if record is None:
            return
        proton.put_error(lib.pn_link_condition(record.pointer), error)
        if closed:
            lib.pn_link_close(record.pointer)
        else:
            lib.pn_link_detach(record.pointer)
        self._registry.drop_link(record)
        self._wake()

    def grant(self, link: LinkId, credit: int) -> None:
        """Let the peer send `credit` more messages than it may already."""
        if record := self._registry.links.get(link):
            lib.pn_link_flow(record.pointer, credit)
            self._wake()

    def drain(self, link: LinkId) -> None:
        """Ask the peer to use up its credit or to give it back: `LinkDrained` follows."""
        if record := self._registry.links.get(link):
            record.draining = True
            lib.pn_link_drain(record.pointer, 0)
            self._wake()

    def drained(self, link: LinkId) -> None:
        """We have nothing to send for the credit that is left: give it back (2.6.7)."""
        if record := self._registry.links.get(link):
            lib.pn_link_drained(record.pointer)
            self._wake()

    def credit(self, link: LinkId) -> int:
        """Messages that may still be sent, by whoever sends on that link."""
        record = self._registry.links.get(link)
        return int(lib.pn_link_credit(record.pointer)) if record else 0

    # ------------------------------------------------------------------ deliveries

    def send(
        self,
        link: LinkId,
        tag: bytes,
        payload: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
    ) -> DeliveryId | None:
        """
        Send a message: encoded sections, any size. None if the link is void: nothing was sent.

        Unless it is `settled`, `DispositionReceived` follows, or the end of the link: then nobody
        knows what became of it. Without credit it waits in memory for the peer's next flow.
        """
        record = self._registry.links.get(link)
        if record is None:
            return None
        if message_format:
            self._outbound.formats[tag] = message_format
        pointer = proton.send(record.pointer, tag, payload)
        self._wake()
        if settled:
            lib.pn_delivery_settle(pointer)
            return self._registry.next_delivery_id()
        return self._registry.add_delivery(pointer, record).id

    def settle(self, delivery: DeliveryId, state: DeliveryState | None = None) -> None:
        """
        Tell the peer what became of a delivery that it has not settled itself, and forget it.

        On a link on which we send, this confirms the outcome that the receiver has asked for.
        """
        record = self._registry.deliveries.get(delivery)
        if record is None:
            return
        if state is not None:
            proton.put_state(record.pointer, state)
        self._registry.drop_delivery(record)
        lib.pn_delivery_settle(record.pointer)
        self._wake()

    def update(self, delivery: DeliveryId, state: DeliveryState) -> None:
        """Tell the peer an outcome and wait for it to settle (`ReceiverSettles.SECOND`)."""
        if record := self._registry.deliveries.get(delivery):
            proton.put_state(record.pointer, state)
            self._wake()

    # ------------------------------------------------------------------ inside

    def _authenticate(self, sasl: SaslServer | SaslClient, data: bytes | bytearray) -> bytes:
        """Let SASL have the bytes; the answer is what came after it."""
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
            pushed = proton.push(self._transport, left)
            self._arrivals.process()
            if pushed <= 0:  # the connection is over, or Proton would have taken some
                return
            left = left[pushed:]

    def _process(self) -> None:
        try:
            with decoding():
                self._arrivals.process()
        except FrameError as error:
            self._break(error.condition, str(error))

    def _break(self, condition: str, description: str) -> None:
        """End a connection whose peer has broken the protocol, and tell it why."""
        error = AmqpError(condition=condition, description=description)
        if self._inbound.opened:
            self.close(error)
        else:  # Proton would wait for the peer's open before it closes
            proton.put_error(lib.pn_transport_condition(self._transport), error)
            lib.pn_transport_close_tail(self._transport)
        self._arrivals.end(error)
