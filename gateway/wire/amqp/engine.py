"""
One AMQP 1.0 connection without I/O: bytes in, events out; methods in, bytes out. Both roles.

The state of the protocol is Qpid Proton's, and this is the only module that knows Proton. What it
lacks is in `frames` (message formats, repeated delivery ids, nulls at the end of frames) and
`sasl`. No method waits, none may be called from two threads.

    feed, feed_eof -> events()          what the peer did
    open, accept, send, settle, ...     what we do; illegal for a void id: ignored, see each
    take, finished, tick                what is to be written, and when to come again

Values inside of maps are encoded and decoded by `gateway.wire.amqp.types`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from gateway.wire.amqp.events import (
    NOTHING,
    AmqpError,
    DeliveryId,
    DeliveryState,
    Event,
    LinkId,
    ReceiverSettles,
    SenderSettles,
    SessionId,
    Terminus,
)


@attrs.frozen(kw_only=True)
class EngineOptions:
    """Limits of one connection. A peer that breaks one is told so, and its connection ends."""

    container_id: str
    max_frame_size: int = 65536  # bytes of one frame that comes in
    channel_max: int = 255  # the highest number of a session
    max_links: int = 1000  # attached at a time, in all sessions
    max_partial: int = 16 * 1024 * 1024  # bytes of messages whose last frames are missing
    idle_timeout: float = 240.0  # seconds without a byte; the peer is told half of it


class Engine:
    """One connection."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        sasl: "SaslServer | SaslClient | None",
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """
        A server with `SaslServer`, a client with `SaslClient`; None: a client without SASL.

        `wake` is called whenever there may be new bytes to take, also out of the other methods.
        """

    # ------------------------------------------------------------------ bytes and time

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes of the peer, cut anywhere. What they mean is in `events()` afterwards."""

    def feed_eof(self) -> None:
        """The peer ended its half of the stream, or the stream broke."""

    def events(self) -> Iterator[Event]:
        """What happened since the last call, in order; each event once."""

    def take(self, most: int) -> bytes:
        """At most `most` bytes that are to be written next; empty: nothing for now."""

    @property
    def finished(self) -> bool:
        """Nothing more will have to be written: the stream can be closed."""

    @property
    def unsent(self) -> int:
        """Bytes of messages and frames that were given to the engine and not taken yet."""

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of whole and partial messages that came in and were not settled by us yet."""

    def tick(self, now: float) -> float:
        """
        Do what time demands: heartbeats, and the end of a silent peer.

        `now` is monotonic, in seconds; so is the answer: when to call again at the latest.
        """

    # ------------------------------------------------------------------ connection, sessions

    def open(
        self,
        *,
        hostname: str | None = None,
        properties: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Open our half: a client at once, a server as the answer to `ConnectionOpened`."""

    def close(self, error: AmqpError | None = None) -> None:
        """Close, opening first where that has not happened. `finished` once the peer has too."""

    def begin(self) -> SessionId:
        """Begin a session (client)."""

    def end(self, session: SessionId, error: AmqpError | None = None) -> None:
        """End a session with all of its links."""

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
        Answer an attach with its own source and target and settle modes.

        `address` names the node made for a dynamic terminus, `filters` are those of the source
        that are in effect (None: all that were asked for). Larger messages than
        `max_message_size` (0: no limit) are rejected as they arrive, without an event.
        """

    def refuse(self, link: LinkId, error: AmqpError) -> None:
        """Answer an attach with no source and no target, and detach with `error` (2.6.3)."""

    def attach(
        self,
        session: SessionId,
        name: str,
        *,
        we_send: bool,
        source: Terminus | None,
        target: Terminus | None,
        sender_settles: SenderSettles = SenderSettles.UNSETTLED,
        receiver_settles: ReceiverSettles = ReceiverSettles.FIRST,
        properties: Mapping[str, Any] = NOTHING,
        max_message_size: int = 0,
    ) -> LinkId:
        """Attach a link; `LinkAttached` or `LinkDetached` is the answer (client)."""

    def detach(self, link: LinkId, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """Detach. The id and its deliveries are void at once; `LinkDetached` does not follow."""

    def grant(self, link: LinkId, credit: int) -> None:
        """Let the peer send `credit` more messages than it may already."""

    def drain(self, link: LinkId) -> None:
        """Ask the peer to use up our credit or to give it back: `LinkDrained` follows."""

    def drained(self, link: LinkId) -> None:
        """We have no more to send for the credit that is left: give it back (2.6.7)."""

    def credit(self, link: LinkId) -> int:
        """Messages that may be sent, or that the peer may still send; 0 for a void link."""

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

        Unless `settled`, `DispositionReceived` follows, or the end of the link: then it is unknown.
        Without credit the message waits in memory for the peer's next flow.
        """

    def settle(self, delivery: DeliveryId, state: DeliveryState | None = None) -> None:
        """
        Tell the peer what became of a delivery, and forget it. Void deliveries are ignored.

        On a link on which we send, this echoes the receiver's outcome once it is durable.
        """

    def update(self, delivery: DeliveryId, state: DeliveryState) -> None:
        """Tell the peer an outcome and wait for it to settle (`ReceiverSettles.SECOND`)."""
