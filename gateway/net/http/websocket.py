"""
The server side of AMQP over WebSocket, as a stream of bytes (RFC 6455, and the AMQP binding).

Clients request the path `/$servicebus/websocket`, with or without a slash at its end, and one of
two subprotocols: `amqp`, its name in the binding (OASIS, AMQP WebSocket Binding 1.0, section 2.1),
or `AMQPWSB10`, its name in drafts. .NET's SDK and uamqp have the slash, .NET and Qpid JMS `amqp`.
Java's SDK (qpid-proton-j-extensions, `WebSocketUpgrade`) writes a URL instead of the path.
The boundaries of the binary messages have no meaning.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Final

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from gateway.wire.http.messages import Headers

PATH: Final = "/$servicebus/websocket"
SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10")

_KNOWN = tuple(map(str.lower, SUBPROTOCOLS))
_RECEIVE_SIZE = 64 * 1024
_AT_ONCE = 128  # frames, about a millisecond's work: one read may have 10,000 empty ones
_MAX_HEAD = 16 * 1024
_HEAD_END = b"\r\n\r\n"
_IS_HTTP_11 = re.compile(rb"[^\r\n]* HTTP/1\.1\r\n")
_SCHEME_AND_HOST = re.compile(r"\Ahttps?://[^/?#@]+", re.IGNORECASE)  # as `guard.ABSOLUTE`
# Bytes of a body would be read as frames.
_HAS_BODY = re.compile(
    rb"\r\n(?:transfer-encoding:|content-length:(?![ \t]*0+[ \t]*\r\n))", re.IGNORECASE
)
_CLOSE_SECONDS = 2.0

Refusal = Callable[[Headers], str | None]
"""The reason why a request with these headers is refused; None: it is accepted."""


def _nothing(headers: Headers) -> None:
    """Accepts every request; the client authenticates afterwards."""


async def accept_websocket(
    stream: trio.abc.Stream, refusal: Refusal = _nothing
) -> "WebSocketStream | None":
    """
    Answer the upgrade request at the beginning of `stream`; `refusal` sees its headers.

    Returns None after the answer to any other request; `stream` can then be closed. The caller sets
    the deadline; after a cancellation `stream` can't be used any more.

    Raises:
        trio.BrokenResourceError: the client has left.
    """
    socket = WSConnection(ConnectionType.SERVER)
    head, rest = await _read_head(stream)
    try:
        socket.receive_data(head)
        answer = _decide(list(socket.events()), refusal)
        if _HAS_BODY.search(head) or not _IS_HTTP_11.match(head):
            answer = RejectConnection()  # RFC 6455, 4.2.1: a GET of HTTP/1.1 or higher
    except RemoteProtocolError as error:
        answer = error.event_hint or RejectConnection()
    except UnicodeError:  # from the Host header
        answer = RejectConnection()
    await stream.send_all(socket.send(answer))
    if not isinstance(answer, AcceptConnection):
        return None
    socket.receive_data(rest)
    return WebSocketStream(stream, socket)


async def _read_head(
    stream: trio.abc.Stream,
) -> tuple[bytes, bytes]:
    """The request, and the data that came with it, which wsproto would lose."""
    head = bytearray()
    while _HEAD_END not in head and len(head) < _MAX_HEAD:
        data = await stream.receive_some(_RECEIVE_SIZE)
        if not data:
            raise trio.BrokenResourceError("the client left before its request was complete")
        head += data
    end = head.find(_HEAD_END) + len(_HEAD_END)
    return bytes(head[:end]), bytes(head[end:])


def _decide(events: list[Event], refusal: Refusal) -> Event:
    request = events[0] if events else None
    if not isinstance(request, Request):  # the head is too long
        return RejectConnection()
    target = _SCHEME_AND_HOST.sub("", request.target, count=1)
    if target.partition("?")[0].lower() not in (PATH, f"{PATH}/"):
        return RejectConnection(status_code=404)
    if refusal(_headers_of(request)) is not None:
        return RejectConnection(status_code=403)
    for offered in request.subprotocols:
        if offered.lower() in _KNOWN:
            return AcceptConnection(subprotocol=offered)
    return RejectConnection(status_code=400)


def _headers_of(request: Request) -> Headers:
    """The headers that wsproto doesn't consume, and Host."""
    more = [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.extra_headers
    ]
    return Headers.of([("Host", request.host), *more])


class WebSocketStream(trio.abc.Stream):
    """The bytes in the binary messages of a WebSocket. One task may send while another receives."""

    def __init__(self, stream: trio.abc.Stream, socket: WSConnection) -> None:
        self._stream = stream
        self._socket = socket
        self._received = bytearray()
        self._ended = False
        # The receiving task answers pings while another task sends; no other use is concurrent.
        self._sending = trio.Lock()
        self._cut = False  # a message was sent in part only, or is being sent

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """
        As of any stream; empty if the client has closed the WebSocket, or its half of the stream.

        Raises:
            trio.BrokenResourceError: the stream broke, or the client sent text.
        """
        await self._handle_events()  # data may have come with the request
        while not self._received and not self._ended:
            data = await self._stream.receive_some(_RECEIVE_SIZE)
            if not data:
                self._ended = True
                break
            self._socket.receive_data(bytes(data))
            await self._handle_events()
        size = len(self._received) if max_bytes is None else max_bytes
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """
        Send one message. As of any stream, a part may have been sent before a cancellation.

        Raises:
            trio.BrokenResourceError: the stream broke, the WebSocket has been closed, or an earlier
                send or the answer to a ping was cancelled in the middle.
        """
        await self._send(BytesMessage(data=bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        """As of any stream."""
        async with self._sending:
            await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the WebSocket, without waiting for the client's close, and close the stream."""
        try:
            with trio.move_on_after(_CLOSE_SECONDS), contextlib.suppress(trio.BrokenResourceError):
                await self._send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
        finally:
            await self._stream.aclose()

    async def _handle_events(self) -> None:
        for number, event in enumerate(self._socket.events(), 1):
            if isinstance(event, BytesMessage):
                self._received += event.data
            elif isinstance(event, Ping):
                await self._send(event.response())
            elif isinstance(event, CloseConnection):
                self._ended = True
                with contextlib.suppress(trio.BrokenResourceError):
                    await self._send(event.response())
            elif isinstance(event, TextMessage):
                raise trio.BrokenResourceError("the client sent a text message; AMQP is binary")
            if number % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()  # small frames in one read may be thousands

    async def _send(self, event: Event) -> None:
        async with self._sending:
            if self._cut:
                raise trio.BrokenResourceError("an earlier message was sent in part only")
            try:
                data = self._socket.send(event)
            except LocalProtocolError as error:
                raise trio.BrokenResourceError("the WebSocket has been closed") from error
            self._cut = True
            await self._stream.send_all(data)
            self._cut = False
