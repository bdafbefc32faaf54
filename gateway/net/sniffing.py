"""
One port for several protocols: the first bytes of a connection say which one it speaks.

    0x16                          TLS; inside of it we look again
    AMQP                          AMQP 1.0
    GET /$servicebus/websocket    AMQP over WebSocket
    anything else                 HTTP
"""

import enum
import ssl
from typing import Final

import attrs
import trio

from gateway.net.listeners import ConnectionHandler
from gateway.net.websocket import PATH, accept_websocket

_RECEIVE_SIZE: Final = 64 * 1024


class Opening(enum.Enum):
    """What the first bytes of a connection begin."""

    TLS = b"\x16"  # the type of the record of a ClientHello (RFC 8446, 5.1)
    AMQP = b"AMQP"  # of every header of the protocol (AMQP 1.0, 2.2)
    WEBSOCKET = b"GET " + PATH.encode("ascii")
    HTTP = b""

    @classmethod
    def of(cls, data: bytes) -> "Opening | None":
        """None: more bytes are needed to tell."""
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

    A protocol without a handler is refused, and so is plain text where clients must show a
    certificate: who has none would just not begin TLS.
    """

    amqp: ConnectionHandler
    http: ConnectionHandler | None = None
    https: ConnectionHandler | None = None  # inside of TLS
    tls: ssl.SSLContext | None = None
    options: SniffingOptions = attrs.field(factory=SniffingOptions)
    _opening: set[trio.CancelScope] = attrs.field(factory=set, init=False)
    _drains: bool = attrs.field(default=False, init=False)

    def drain(self) -> None:
        """End the connections that haven't begun anything."""
        self._drains = True
        for scope in self._opening:
            scope.cancel()

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """
        Return when the connection has ended, in whichever way; `stream` is closed then.

        Raises:
            ConnectionError: nothing here speaks what the client does.
            trio.TooSlowError: the client didn't say in time what it speaks.
            trio.BrokenResourceError: the client has gone before that.
            ExceptionGroup: what the protocol's handler raised.
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
        """Who serves the connection and as what; None if nobody has to any more."""
        with trio.move_on_after(self.options.opening_timeout) as scope:
            self._opening.add(scope)
            if self._drains:
                scope.cancel()
            try:
                return await self._chosen(stream)
            finally:
                self._opening.discard(scope)
        if not self._drains:
            raise trio.TooSlowError("nothing was said that tells the protocol")
        return None

    async def _chosen(
        self, stream: trio.abc.Stream
    ) -> tuple[ConnectionHandler, trio.abc.Stream] | None:
        stream, opening = await _look(stream)
        secure = opening is Opening.TLS and self.tls is not None
        if secure:
            assert self.tls is not None
            secured = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
            await secured.do_handshake()
            stream, opening = await _look(secured)
        elif opening and self.tls is not None and self.tls.verify_mode is ssl.CERT_REQUIRED:
            raise ConnectionRefusedError("plain text, where clients must show a certificate")
        return await self._matched(stream, opening, secure)

    async def _matched(
        self, stream: trio.abc.Stream, opening: Opening | None, secure: bool
    ) -> tuple[ConnectionHandler, trio.abc.Stream] | None:
        await trio.lowlevel.checkpoint()
        http = self.https if secure else self.http
        if opening is None:
            return None
        if opening is Opening.TLS:
            raise ConnectionRefusedError("TLS, and there is no certificate for it here")
        if opening is Opening.HTTP and http is not None:
            return http, stream
        if opening is Opening.AMQP:
            return self.amqp, stream
        # What is no request for AMQP over WebSocket is refused there.
        socket = await accept_websocket(stream)
        return None if socket is None else (self.amqp, socket)


async def _look(stream: trio.abc.Stream) -> tuple[trio.abc.Stream, Opening | None]:
    """
    A stream that begins anew, and what it begins with; None: it ended without a byte, as those of
    who only looks whether somebody listens.
    """
    await trio.lowlevel.checkpoint()
    seen = bytearray()
    while (opening := Opening.of(bytes(seen))) is None:
        data = await stream.receive_some(_RECEIVE_SIZE)
        if not data and seen:
            raise trio.BrokenResourceError("gone before it said what it speaks")
        if not data:
            return stream, None
        seen += data
    if isinstance(stream, trio.abc.HalfCloseableStream):
        return HalfCloseableRewoundStream(stream, seen), opening
    return RewoundStream(stream, seen), opening


class RewoundStream(trio.abc.Stream):
    """A stream that gives bytes again that were already taken from it."""

    def __init__(self, stream: trio.abc.Stream, seen: bytes | bytearray) -> None:
        self._stream = stream
        self._seen = bytearray(seen)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As of any stream."""
        if not self._seen:
            return await self._stream.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        taken = self._seen[:max_bytes]
        del self._seen[:max_bytes]
        return taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As of any stream."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As of any stream."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """As of any stream."""
        await self._stream.aclose()


class HalfCloseableRewoundStream(RewoundStream, trio.abc.HalfCloseableStream):
    """The same, of a stream whose sending half can end."""

    async def send_eof(self) -> None:
        """As of any such stream."""
        assert isinstance(self._stream, trio.abc.HalfCloseableStream)
        await self._stream.send_eof()
