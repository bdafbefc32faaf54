"""The server's side of HTTP/1.1 without I/O: bytes to requests, responses to bytes."""

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

import attrs
import h11

from gateway.net.http_guard import (
    MAX_HEAD,
    Framing,
    RequestRefused,
    check_head,
    check_unfinished_head,
)
from gateway.net.http_headers import read_fields, written_fields
from gateway.wire.http import Request, Response
from gateway.wire.http_date import format_http_date

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS = frozenset({204, 304})


@attrs.define(eq=False)
class HttpCodec:
    """
    The requests and responses of one connection, in turn.

    The guard sees the raw bytes first and decides where a request ends; h11 must agree with it.
    """

    max_body: int
    server_name: bytes
    wall_clock: Callable[[], datetime]
    body_received: int = 0  # bytes of the body so far, encoded
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _searched: int = attrs.field(default=0, init=False)  # that much of the buffer has no blank line
    _head: h11.Request | None = attrs.field(default=None, init=False)
    _framing: Framing | None = attrs.field(default=None, init=False)
    _parts: list[bytes] = attrs.field(factory=list, init=False)
    _parser: h11.Connection = attrs.field(
        factory=lambda: h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD), init=False
    )

    @property
    def in_head(self) -> bool:
        """A request has begun and its blank line has not come."""
        return self._framing is None and bool(self._buffer)

    @property
    def in_body(self) -> bool:
        return self._framing is not None

    @property
    def waiting(self) -> int:
        """How many bytes are kept that no request was made of yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray) -> None:
        self._buffer += data

    def next_request(self) -> Request | None:
        """
        The next whole request, or None when more bytes are needed.

        Raises:
            RequestRefused: with the status to answer; there can't be another request.
        """
        try:
            if self._framing is None and not self._take_head():
                return None
            return self._take_body()
        except h11.RemoteProtocolError as error:
            raise RequestRefused(error.error_status_hint, f"{error}.") from error

    def take_continue(self) -> bytes:
        """What to send to a client that waits for permission to send its body, or nothing."""
        if not self._parser.they_are_waiting_for_100_continue or self._buffer:
            return b""
        return self._parser.send(h11.InformationalResponse(status_code=100, headers=[]))

    def build(self, response: Response) -> bytes:
        """
        The whole response to the request before.

        Raises:
            h11.LocalProtocolError: a header name or value that can't be written.
            UnicodeError: the same.
        """
        fields = written_fields(response.headers)
        fields.append((b"Date", _http_date(int(self.wall_clock().timestamp()))))
        fields.append((b"Server", self.server_name))
        if response.status not in _BODILESS:
            fields.append((b"Content-Length", b"%d" % len(response.body)))
        if response.close:
            fields.append((b"Connection", b"close"))
        reason = _REASONS.get(response.status, b"")
        send = self._parser.send
        head = send(h11.Response(status_code=response.status, headers=fields, reason=reason))
        if response.body and self._may_have_body(response):
            head += send(h11.Data(data=response.body))
        return head + send(h11.EndOfMessage())

    def start_next(self) -> bool:
        """Get ready for the next request. False: the connection ends with this response."""
        if self._parser.our_state is not h11.DONE or self._parser.their_state is not h11.DONE:
            return False
        self._parser.start_next_cycle()
        return True

    def _may_have_body(self, response: Response) -> bool:
        asked_for_head = self._head is not None and self._head.method == b"HEAD"
        return response.status not in _BODILESS and not asked_for_head

    def _take_head(self) -> bool:
        self._head = None
        end = self._buffer.find(b"\r\n\r\n", max(self._searched - 3, 0))
        if end < 0:
            check_unfinished_head(self._buffer, self._searched)
            self._searched = len(self._buffer)
            return False
        head = bytes(self._buffer[: end + 4])
        del self._buffer[: end + 4]
        self._framing = check_head(head, self.max_body)
        self._searched = self.body_received = 0
        self._parser.receive_data(head)
        event = self._parser.next_event()
        if not isinstance(event, h11.Request):
            raise RequestRefused(400, "The request's head is malformed.")
        self._head = event
        return True

    def _take_body(self) -> Request | None:
        assert self._framing is not None
        assert self._head is not None
        if encoded := self._framing.take(self._buffer):
            self.body_received += len(encoded)
            self._parser.receive_data(encoded)
        while isinstance(event := self._parser.next_event(), h11.Data):
            self._parts.append(bytes(event.data))
        if self._framing.complete != isinstance(event, h11.EndOfMessage):
            raise RequestRefused(400, "The end of the request's body is not clear.")
        if not self._framing.complete:
            return None
        body = b"".join(self._parts)
        self._parts.clear()
        self._framing = None
        return Request(
            method=self._head.method.decode("ascii"),
            target=self._head.target.decode("ascii"),
            headers=read_fields(self._head.headers.raw_items()),
            body=body,
        )


@functools.lru_cache(maxsize=4)
def _http_date(unix_seconds: int) -> bytes:
    """Kept, because thousands of responses have the same."""
    return format_http_date(datetime.fromtimestamp(unix_seconds, UTC)).encode("ascii")
