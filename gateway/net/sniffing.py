"""
A single port serves several protocols, which are recognized by the first bytes of a connection.

  0x16                          TLS; the first bytes inside are looked at in turn
  AMQP                          AMQP 1.0
  GET /$servicebus/websocket    AMQP over WebSocket; also with a URL, as Java's SDK writes it
  anything else                 HTTP
"""

import enum
import math
import re
import ssl
from typing import Final

import attrs
import trio

from gateway.net.http.websocket import PATH, Refusal, accept_websocket
from gateway.net.listeners import ConnectionHandler
from gateway.net.tls_handshake import accept_tls, say_goodbye
from gateway.net.visits import FIRST_ON_ITS_WAY

_RECEIVE_SIZE: Final = 64 * 1024  # as many as Trio's streams receive at once by default
# A server that doesn't speak the client's protocol answers with a protocol header that it supports
# (AMQP 1.0, 2.2). This is the header of TLS (5.2.1).
_AMQP_OVER_TLS: Final = b"AMQP\x02\x01\x00\x00"
# A request with a URL as its target (RFC 9112, 3.2.2), up to the path.
_URLS: Final = (b"GET https://", b"GET http://")
_UP_TO_PATH: Final = re.compile(rb"GET https?://[^/ \r\n]{,500}")  # a host has 253 bytes
_USE_TLS: Final = b"This port takes TLS only: use https, or amqps.\n"
_PLAIN_REFUSED: Final = (
    b"HTTP/1.1 400 Bad Request\r\nServer: %b\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b"
)


class Opening(enum.Enum):
    """The protocol that the first bytes of a connection indicate."""

    TLS = b"\x16"  # the type of the record of a ClientHello (RFC 8446, 5.1)
    AMQP = b"AMQP"  # the start of each protocol header (AMQP 1.0, 2.2)
    WEBSOCKET = b"GET " + PATH.encode("ascii")
    HTTP = b""

    @classmethod
    def of(cls, data: bytes) -> "Opening | None":
        """The protocol of these bytes; None: more bytes are needed."""
        if any(url.startswith(data) for url in _URLS):
            return None
        if found := _UP_TO_PATH.match(data):
            if found.end() == len(data):
                return None
            data = b"GET " + data[found.end() :]
        if any(kind.value.startswith(data) and data != kind.value for kind in cls):
            return None
        return next(kind for kind in cls if data.startswith(kind.value))


@attrs.frozen(kw_only=True)
class SniffingOptions:
    """Limits of one port."""

    # Seconds for the first bytes, and for a handshake of TLS or WebSocket.
    opening_timeout: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))


@attrs.define(eq=False, kw_only=True)
class Sniffer:
    """
    Serves connections of all these protocols, each by its own handler.

    A protocol without a handler is refused. Plain text is refused where TLS is required, as it
    always is if clients must show a certificate; such a client gets the refusal in its own
    protocol.
    """

    amqp: ConnectionHandler | None = None
    http: ConnectionHandler | None = None
    https: ConnectionHandler | None = None  # inside TLS
    tls: ssl.SSLContext | None = None
    requires_tls: bool = False
    handshake_timeout: float = 5.0  # seconds, for TLS
    server_name: str = "pairgate"  # the Server header of the answer to plain text
    refusal: Refusal = lambda headers: None  # for WebSockets
    options: SniffingOptions = attrs.field(factory=SniffingOptions)
    _opening: set[trio.CancelScope] = attrs.field(factory=set, init=False)
    _drains_by: float = attrs.field(default=math.inf, init=False)

    def drain(self) -> None:
        """End the connections that don't begin a protocol soon: the opening may be on its way."""
        self._drains_by = trio.current_time() + FIRST_ON_ITS_WAY
        for scope in self._opening:
            scope.deadline = min(scope.deadline, self._drains_by)

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """
        Serve the connection to its end; `stream` is closed then.

        Raises:
            ConnectionError: no handler speaks the client's protocol.
            trio.TooSlowError: the client sent too little in time to recognize its protocol.
            trio.BrokenResourceError: the client left before that.
            ExceptionGroup: the exceptions of the protocol's handler.
        """
        try:
            begun = await self._begin(stream)
            if begun is not None:
                handler, stream = begun
                await handler(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def _begin(
        self, stream: trio.abc.Stream
    ) -> tuple[ConnectionHandler, trio.abc.Stream] | None:
        """The handler and the stream for the connection; None if it ended or the port drains."""
        with trio.move_on_after(self.options.opening_timeout) as scope:
            self._opening.add(scope)
            scope.deadline = min(scope.deadline, self._drains_by)
            try:
                return await self._chosen(stream)
            finally:
                self._opening.discard(scope)
        if self._drains_by == math.inf:
            raise trio.TooSlowError("the client sent too little in time to tell its protocol")
        return None

    async def _chosen(
        self, stream: trio.abc.Stream
    ) -> tuple[ConnectionHandler, trio.abc.Stream] | None:
        stream, opening = await _peek(stream)
        secure = opening is Opening.TLS and self.tls is not None
        if secure:
            assert self.tls is not None
            secured = await accept_tls(stream, self.tls, self.handshake_timeout)
            stream, opening = await _peek(secured)
        elif opening is not None and opening is not Opening.TLS and self._takes_only_tls():
            await self._refuse_without_tls(stream, opening)
            raise ConnectionRefusedError("plain text on a port that requires TLS")
        return await self._matched(stream, opening, secure)

    def _takes_only_tls(self) -> bool:
        if self.tls is None:
            return False
        return self.requires_tls or self.tls.verify_mode is ssl.CERT_REQUIRED

    async def _refuse_without_tls(self, stream: trio.abc.Stream, opening: Opening) -> None:
        """Send the protocol's own refusal of plain text, and give the client time to read it."""
        answer = _AMQP_OVER_TLS
        if opening is not Opening.AMQP:
            answer = _PLAIN_REFUSED % (self.server_name.encode("ascii"), len(_USE_TLS), _USE_TLS)
        await say_goodbye(stream, answer)

    async def _matched(
        self, stream: trio.abc.Stream, opening: Opening | None, secure: bool
    ) -> tuple[ConnectionHandler, trio.abc.Stream] | None:
        http = self.https if secure else self.http
        if opening is None:
            return None
        if opening is Opening.TLS:
            raise ConnectionRefusedError("TLS on a port without a certificate")
        if http is not None and (opening is Opening.HTTP or self.amqp is None):
            return http, stream
        if self.amqp is None:
            raise ConnectionRefusedError("plain HTTP isn't served on this port")
        if opening is Opening.AMQP:
            return self.amqp, stream
        # Requests that aren't for AMQP over WebSocket are refused there.
        socket = await accept_websocket(stream, self.refusal)
        return None if socket is None else (self.amqp, socket)


async def _peek(stream: trio.abc.Stream) -> tuple[trio.abc.Stream, Opening | None]:
    """
    Return a stream that begins with the same bytes again, and the protocol. None: the stream ended
    without a byte, as that of a port scan.
    """
    seen = bytearray()
    while (opening := Opening.of(bytes(seen))) is None:
        data = await stream.receive_some(_RECEIVE_SIZE)
        if not data and seen:
            raise trio.BrokenResourceError("the client left before its protocol was known")
        if not data:
            return stream, None
        seen += data
    if isinstance(stream, trio.abc.HalfCloseableStream):
        return HalfCloseableRewoundStream(stream, seen), opening
    return RewoundStream(stream, seen), opening


class RewoundStream(trio.abc.Stream):
    """A stream that returns bytes again that were already received from it."""

    __slots__ = ("_seen", "transport_stream")

    def __init__(self, stream: trio.abc.Stream, seen: bytes | bytearray) -> None:
        self.transport_stream = stream
        self._seen = bytearray(seen)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As of any stream."""
        if not self._seen:
            return await self.transport_stream.receive_some(max_bytes)
        taken = self._seen[:max_bytes]
        del self._seen[:max_bytes]
        return taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As of any stream."""
        await self.transport_stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As of any stream."""
        await self.transport_stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """As of any stream."""
        await self.transport_stream.aclose()


class HalfCloseableRewoundStream(RewoundStream, trio.abc.HalfCloseableStream):
    """A rewound stream whose sending half can be closed."""

    __slots__ = ()

    async def send_eof(self) -> None:
        """As of any such stream."""
        assert isinstance(self.transport_stream, trio.abc.HalfCloseableStream)
        await self.transport_stream.send_eof()
