"""The server's side of HTTP/1.1 without I/O: bytes to requests, responses to bytes."""

import functools
import re
from collections.abc import Callable, Sequence
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
from gateway.net.http_plain import Head, read_plain_head
from gateway.wire.http import Request, Response
from gateway.wire.http_date import format_http_date

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS = frozenset({204, 304})
_FIELD_LINES = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\0-\x08\n-\x1f\x7f]*\r\n)*")


@attrs.define(eq=False)
class HttpCodec:
    """
    The requests and responses of one connection, in turn.

    The guard sees the raw bytes first and decides where a request ends. What leaves no choice is
    read here then, at a tenth of the cost; h11 reads all else, and must agree with the guard.
    """

    max_body: int
    server_name: bytes
    wall_clock: Callable[[], datetime]
    body_received: int = 0  # bytes of the body so far, encoded
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _searched: int = attrs.field(default=0, init=False)  # that much of the buffer has no blank line
    _head: Head | None = attrs.field(default=None, init=False)
    _framing: Framing | None = attrs.field(default=None, init=False)
    _parts: list[bytes] = attrs.field(factory=list, init=False)
    _may_go_on: bool = attrs.field(default=False, init=False)  # after this request
    _goes_on: bool = attrs.field(default=False, init=False)  # after this response
    # One for each request that isn't plain; it says whether there may be another one, too.
    _parser: h11.Connection | None = attrs.field(default=None, init=False)

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
        waits = self._parser is not None and self._parser.they_are_waiting_for_100_continue
        return b"HTTP/1.1 100 Continue\r\n\r\n" if waits and not self._buffer else b""

    def build(self, response: Response) -> bytes:
        """
        The whole response to the request before, but for its parts.

        Raises:
            h11.LocalProtocolError: a header name or value that can't be written.
            UnicodeError: the same.
        """
        fields = written_fields(response.headers)
        fields.append((b"Date", _http_date(int(self.wall_clock().timestamp()))))
        fields.append((b"Server", self.server_name))
        # Of a response in parts the end of the connection is the end (RFC 9112, 6.3).
        if response.status not in _BODILESS and response.parts is None:
            fields.append((b"Content-Length", b"%d" % len(response.body)))
        self._goes_on = self._may_go_on and not response.close and response.parts is None
        if not self._goes_on:
            fields.append((b"Connection", b"close"))
        head = _response_head(response.status, fields)
        return head + response.body if self.may_have_body(response) else head

    def start_next(self) -> bool:
        """Get ready for the next request. False: the connection ends with this response."""
        self._may_go_on = False
        return self._goes_on

    def may_have_body(self, response: Response) -> bool:
        """Whether the client expects one; not after HEAD, for example."""
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
        self._parser = None
        self._head = read_plain_head(head) or self._parse_head(head)
        return True

    def _parse_head(self, head: bytes) -> Head:
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._parser.receive_data(head)
        event = self._parser.next_event()
        if not isinstance(event, h11.Request):
            raise RequestRefused(400, "The request's head is malformed.")
        return Head(event.method, event.target, event.headers.raw_items())

    def _take_body(self) -> Request | None:
        assert self._framing is not None
        assert self._head is not None
        encoded = self._framing.take(self._buffer)
        self.body_received += len(encoded)
        if self._parser is None:
            self._parts.append(encoded)
        else:
            self._decode(self._parser, encoded, complete=self._framing.complete)
        if not self._framing.complete:
            return None
        self._may_go_on = self._parser is None or self._parser.their_state is h11.DONE
        body = b"".join(self._parts)
        self._parts.clear()
        self._framing = None
        return Request(
            method=self._head.method.decode("ascii"),
            target=self._head.target.decode("ascii"),
            headers=read_fields(self._head.fields),
            body=body,
        )

    def _decode(self, parser: h11.Connection, encoded: bytes, *, complete: bool) -> None:
        if encoded:
            parser.receive_data(encoded)
        while isinstance(event := parser.next_event(), h11.Data):
            self._parts.append(bytes(event.data))
        if complete != isinstance(event, h11.EndOfMessage):
            raise RequestRefused(400, "The end of the request's body is not clear.")


def _response_head(status: int, fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    """
    Written here, because h11 takes ten times as long: a tenth of all that a send costs us.

    Raises:
        h11.LocalProtocolError: a name or value that can't be written.
    """
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    # Who gets a line end into a value would add a field, and perhaps a response.
    if lines.count(b"\r\n") != len(fields) or not _FIELD_LINES.fullmatch(lines):
        raise h11.LocalProtocolError("a header name or value that can't be written")
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, _REASONS.get(status, b""), lines)


@functools.lru_cache(maxsize=4)
def _http_date(unix_seconds: int) -> bytes:
    """Kept, because thousands of responses have the same."""
    return format_http_date(datetime.fromtimestamp(unix_seconds, UTC)).encode("ascii")
