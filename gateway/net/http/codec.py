"""The server side of HTTP/1.1 without I/O: bytes to requests, responses to bytes."""

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

import attrs
import h11

from gateway.net.http.guard import (
    ABSOLUTE,
    MAX_HEAD,
    Framing,
    LengthFraming,
    RequestRefused,
    check_fields,
    check_head,
    check_unfinished_head,
)
from gateway.net.http.heads import (
    RequestHead,
    read_fields,
    read_plain_request,
    write_plain_fields,
    written_fields,
)
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.parts import add_part

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS = frozenset({204, 304})
_MOST_KEPT = 2048  # bytes of a head that is kept
_FIELD_LINES = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\0-\x08\n-\x1f\x7f]*\r\n)*")


@attrs.define(eq=False)
class HttpCodec:
    """
    The requests and responses of one connection, in turn.

    The guard sees the raw bytes first and decides where a request ends. Plain requests are then
    parsed here, at a tenth of the cost; all others are parsed by h11, which must agree with the
    guard.
    """

    max_body: int
    server_name: bytes
    wall_clock: Callable[[], datetime]
    plain: bool = True  # False, in tests: all heads are left to h11
    max_head: int = MAX_HEAD
    body_received: int = 0  # bytes of the body so far, encoded
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    # Bytes of the buffer that were searched for a blank line.
    _searched: int = attrs.field(default=0, init=False)
    _head: RequestHead | None = attrs.field(default=None, init=False)
    _framing: Framing | None = attrs.field(default=None, init=False)
    _parts: list[bytes] = attrs.field(factory=list, init=False)
    _may_go_on: bool = attrs.field(default=False, init=False)  # after this request
    _goes_on: bool = attrs.field(default=False, init=False)  # after this response
    # Created for each request that isn't plain. Also decides whether another request may follow.
    _parser: h11.Connection | None = attrs.field(default=None, init=False)

    @property
    def in_head(self) -> bool:
        """True if a request has begun, and its blank line hasn't arrived."""
        return self._framing is None and bool(self._buffer)

    @property
    def in_body(self) -> bool:
        return self._framing is not None

    @property
    def body_to_come(self) -> int:
        """
        The number of bytes of the body still missing; for a chunked body, the most that may come.
        """
        if isinstance(self._framing, LengthFraming):
            return self._framing.remaining
        return self.max_body

    def head(self) -> Request:
        """The request without its body, which is still to come."""
        return self._request(b"")

    def abandon(self) -> None:
        """Forget the received part of a request that is never read completely."""
        self._buffer.clear()
        self._parts.clear()

    @property
    def waiting(self) -> int:
        """The number of received bytes that aren't part of a returned request yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray) -> None:
        self._buffer += data

    def next_request(self) -> Request | None:
        """
        The next complete request, or None if more bytes are needed.

        Raises:
            RequestRefused: with the status to answer; no other request can follow.
        """
        try:
            if self._framing is None and not (self._buffer and self._read_head()):
                return None
            return self._read_body()
        except h11.RemoteProtocolError as error:
            raise RequestRefused(error.error_status_hint, f"{error}.") from error

    def pop_continue(self) -> bytes:
        """
        The interim response for a client that waits for permission to send its body, or nothing.
        """
        waits = self._parser is not None and self._parser.they_are_waiting_for_100_continue
        return b"HTTP/1.1 100 Continue\r\n\r\n" if waits and not self._buffer else b""

    def build(self, response: Response) -> bytes:
        """
        The complete response to the last request, except for its parts.

        Raises:
            h11.LocalProtocolError: a header name or value is invalid.
            UnicodeError: the same.
        """
        lines = write_plain_fields(response.headers.items)
        fields = _checked_fields(response.headers) if lines is None else lines.encode("ascii")
        # A response in parts ends with the connection (RFC 9112, 6.3).
        self._goes_on = self._may_go_on and not response.close and response.parts is None
        length = b""
        if response.status not in _BODILESS and response.parts is None:
            length = b"Content-Length: %d\r\n" % len(response.body)
        head = b"HTTP/1.1 %d %b\r\n%bDate: %b\r\nServer: %b\r\n%b%b\r\n" % (
            response.status,
            _REASONS.get(response.status, b""),
            fields,
            _http_date(int(self.wall_clock().timestamp())),
            self.server_name,
            length,
            b"" if self._goes_on else b"Connection: close\r\n",
        )
        return head + response.body if self.may_have_body(response) else head

    def start_next(self) -> bool:
        """Prepare for the next request. False: the connection ends with this response."""
        self._may_go_on = False
        return self._goes_on

    def may_have_body(self, response: Response) -> bool:
        """True if the client expects a body; not after HEAD, for example."""
        asked_for_head = self._head is not None and self._head.method == "HEAD"
        return response.status not in _BODILESS and not asked_for_head

    def _read_head(self) -> bool:
        self._head = None
        end = self._buffer.find(b"\r\n\r\n", max(self._searched - 3, 0))
        if end < 0:
            check_unfinished_head(self._buffer, self._searched, self.max_head)
            self._searched = len(self._buffer)
            return False
        head = bytes(self._buffer[: end + 4])
        del self._buffer[: end + 4]
        self._searched = self.body_received = 0
        self._parser = None
        known = None
        if self.plain and len(head) <= _MOST_KEPT:
            known = _plain_head(head, self.max_body)
        if known is not None:
            self._head, self._framing = known[0], LengthFraming(known[1])
            return True
        self._framing = check_head(head, self.max_body, self.max_head)
        plain = read_plain_request(head) if self.plain else None
        self._head = _in_origin_form(plain or self._parse_head(head))
        return True

    def _parse_head(self, head: bytes) -> RequestHead:
        check_fields(head)
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self.max_head)
        self._parser.receive_data(head)
        event = self._parser.next_event()
        if not isinstance(event, h11.Request):
            raise RequestRefused(400, "The request's head is malformed.")
        return RequestHead(
            event.method.decode("ascii"),
            event.target.decode("ascii"),
            read_fields(event.headers.raw_items()),
        )

    def _read_body(self) -> Request | None:
        assert self._framing is not None
        encoded = self._framing.consume(self._buffer)
        self.body_received += len(encoded)
        if self._parser is None:
            add_part(self._parts, encoded)
        else:
            self._decode(self._parser, encoded, complete=self._framing.complete)
        if not self._framing.complete:
            return None
        # After an upgrade, too, which is ignored (RFC 9110, 7.8): Java's HttpClient offers HTTP/2.
        self._may_go_on = self._parser is None or self._parser.their_state is not h11.MUST_CLOSE
        body = b"".join(self._parts)
        self._parts.clear()
        self._framing = None
        return self._request(body)

    def _request(self, body: bytes) -> Request:
        assert self._head is not None
        method, target, headers = self._head
        return Request(method=method, target=target, headers=headers, body=body)

    def _decode(self, parser: h11.Connection, encoded: bytes, *, complete: bool) -> None:
        if encoded:
            parser.receive_data(encoded)
        while isinstance(event := parser.next_event(), h11.Data):
            add_part(self._parts, bytes(event.data))
        if complete != isinstance(event, h11.EndOfMessage):
            raise RequestRefused(400, "The end of the request's body is not clear.")


@functools.lru_cache(maxsize=128)
def _plain_head(head: bytes, max_body: int) -> tuple[RequestHead, int] | None:
    """
    Check and parse a head; return it with the length of its body, or None if it isn't plain.

    Cached, because a client that puts nothing of a message into a header sends the same head again
    and again.

    Raises:
        RequestRefused: as `check_head`.
    """
    framing, plain = check_head(head, max_body), read_plain_request(head)
    if plain is None or not isinstance(framing, LengthFraming):
        return None
    return _in_origin_form(plain), framing.remaining


def _in_origin_form(head: RequestHead) -> RequestHead:
    """
    The request with a path as its target. A proxy's form, a URL, names the host too, and its own
    field Host is ignored (RFC 9112, 3.2.2). `*` is the server as a whole (3.2.4), here as `/`.
    """
    method, target, headers = head
    if target.startswith("/"):
        return head
    found = ABSOLUTE.fullmatch(target.encode("ascii"))
    if found is None:
        return RequestHead(method, "/", headers)
    path = (found[2] or b"/").decode("ascii")
    others = [field for field in headers.items if field[0].lower() != "host"]
    return RequestHead(
        method,
        path if path.startswith("/") else f"/{path}",
        Headers((("Host", found[1].decode("ascii")), *others)),
    )


def _checked_fields(headers: Headers) -> bytes:
    """
    The lines of fields that aren't plain ASCII, or that decide on the connection.

    Raises:
        h11.LocalProtocolError: a name or value is invalid.
        UnicodeError: the same.
    """
    fields = written_fields(headers)
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    # A line end in a value would allow to inject a field, and possibly a response.
    if lines.count(b"\r\n") != len(fields) or not _FIELD_LINES.fullmatch(lines):
        raise h11.LocalProtocolError("a header name or value that can't be written")
    return lines


@functools.lru_cache(maxsize=4)
def _http_date(unix_seconds: int) -> bytes:
    """Cached, because thousands of responses have the same date."""
    return format_http_date(datetime.fromtimestamp(unix_seconds, UTC)).encode("ascii")
