"""The client side of HTTP/1.1 without I/O: requests to bytes, bytes to responses."""

from collections.abc import Sequence
from io import BytesIO

import attrs
import h11

from gateway.domain.errors import InvalidRequest
from gateway.net.http.heads import (
    ResponseHead,
    read_chunks,
    read_fields,
    read_plain_response,
    write_plain_request,
    written_fields,
)
from gateway.wire.http.messages import Headers, Request, Response

MAX_RESPONSE_HEAD = 64 * 1024
_BODILESS_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


@attrs.define(eq=False)
class ClientCodec:
    """
    Writes a request and reads its response.

    Plain heads are written and read here, at a tenth of the cost; all others are left to h11. A
    response whose head, or whose chunked body, comes in several pieces is left to h11, too.
    """

    authority: str
    request: Request
    max_body: int
    plain: bool = True  # False, in tests: all heads are left to h11
    _parser: h11.Connection | None = attrs.field(default=None, init=False)
    _head: ResponseHead | h11.Response | None = attrs.field(default=None, init=False)
    # Grows in place, and gives the body without a copy: a body is in memory once.
    _body: BytesIO = attrs.field(factory=BytesIO, init=False)
    _received: int = attrs.field(default=0, init=False)  # bytes of the body

    def build(self) -> bytes:
        """
        The complete request. Host is added, and Content-Length, unless the request has the same.

        Raises:
            InvalidRequest: a method, target or header is invalid.
        """
        request = self.request
        if self.plain:
            head = write_plain_request(
                request.method, request.target, self.authority, self._fields, self._length
            )
            if head is not None:
                return head + request.body
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_HEAD)
        return self._build_with(self._parser)

    def receive(self, data: bytes) -> Response | None:
        """
        The complete response, or None if more bytes are needed. `data` are the next bytes that the
        server sent; none: it closed the connection.

        Raises:
            h11.RemoteProtocolError: the response is cut, malformed or too large, or its end isn't
                clear.
        """
        if not data:
            raise h11.RemoteProtocolError("the connection was closed")
        if self._parser is None and self._head is None:
            self._head, data = self._read_plain_head(data)
            if self._head is None:
                self._parser = h11.Connection(
                    h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_HEAD
                )
                self._build_with(self._parser)
        if self._parser is None:
            return self._receive_body(data)
        return self._receive_with(self._parser, data)

    @property
    def is_reusable(self) -> bool:
        """True if the connection can be used again after the complete response."""
        if self._parser is None:
            return isinstance(self._head, ResponseHead) and self._received == self._head.length
        states = (self._parser.our_state, self._parser.their_state)
        # Bytes after the response belong to no request.
        return states == (h11.DONE, h11.DONE) and not self._parser.trailing_data[0]

    @property
    def _length(self) -> int | None:
        """The value of Content-Length; None: the request has no such field."""
        if self.request.body or self.request.method not in _BODILESS_METHODS:
            return len(self.request.body)
        return None

    @property
    def _fields(self) -> Sequence[tuple[str, str]]:
        """The request's fields without Content-Length, which is written in any case."""
        own = ("content-length", str(self._length))
        return [each for each in self.request.headers.items if (each[0].lower(), each[1]) != own]

    def _build_with(self, parser: h11.Connection) -> bytes:
        request = self.request
        try:
            fields = written_fields(Headers(self._fields))
            if request.headers.get("Host") is None:
                fields.insert(0, (b"Host", self.authority.encode("ascii")))
            if self._length is not None:
                fields.append((b"Content-Length", b"%d" % self._length))
            data = parser.send(
                h11.Request(method=request.method, target=request.target, headers=fields)
            )
            if request.body:
                data += parser.send(h11.Data(data=request.body))
            return data + parser.send(h11.EndOfMessage())
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise InvalidRequest(f"the request can't be written: {error}") from error

    def _read_plain_head(self, data: bytes) -> tuple[ResponseHead | None, bytes]:
        """Split a plain head off the data, and decode them; None: the response is left to h11."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or self.request.method == "HEAD":
            return None, data
        head, body = read_plain_response(data[:end]), data[end:]
        if head is not None and head.length is None:
            decoded = read_chunks(body)
            if decoded is None:
                return None, data
            head, body = head._replace(length=len(decoded)), decoded
        if head is None or head.length is None or head.length > self.max_body:
            return None, data
        return head, body

    def _receive_body(self, data: bytes) -> Response | None:
        assert isinstance(self._head, ResponseHead)
        status, headers, length = self._head
        assert length is not None, "a chunked body was decoded with its head"
        self._body.write(data[: length - self._received])
        self._received += len(data)
        if self._received < length:
            return None
        return Response(status=status, headers=headers, body=self._body.getvalue())

    def _receive_with(self, parser: h11.Connection, data: bytes) -> Response | None:
        parser.receive_data(data)
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            match event:
                case h11.InformationalResponse():
                    continue
                case h11.Response():
                    if self.request.method != "HEAD":
                        self._check_end(event)
                    self._head = event
                case h11.Data():
                    self._received += len(event.data)
                    if self._received > self.max_body:
                        raise self._too_large()
                    self._body.write(event.data)
                case h11.NEED_DATA:
                    return None
                case _:
                    raise h11.RemoteProtocolError("bytes after the answer")
        assert isinstance(self._head, h11.Response)
        return Response(
            status=self._head.status_code,
            headers=read_fields(self._head.headers.raw_items()),
            body=self._body.getvalue(),
        )

    def _check_end(self, head: h11.Response) -> None:
        """
        Refuse a body that is announced as too large, and one that ends with the connection: it
        can't be distinguished from a body that was cut.
        """
        if head.status_code in (204, 304):
            return
        fields = dict(head.headers)
        if b"transfer-encoding" in fields:  # h11 ignores a Content-Length beside it
            return
        if b"content-length" not in fields:
            raise h11.RemoteProtocolError("the answer doesn't say how long it is")
        if int(fields[b"content-length"]) > self.max_body:
            raise self._too_large()

    def _too_large(self) -> h11.RemoteProtocolError:
        return h11.RemoteProtocolError(f"the body is above {self.max_body} bytes")
