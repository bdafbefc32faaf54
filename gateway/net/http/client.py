"""
An HTTP/1.1 client for one server, with kept-alive connections and a known outcome for each request.
"""

import select
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import h11
import trio

from gateway.domain.errors import InvalidRequest, OutcomeUnknown, Unreachable, Untrusted
from gateway.net.dialing import FAILURES, Place, failure_of, is_certificate_alert, open_stream
from gateway.net.http.headers import read_fields, written_fields
from gateway.wire.http.messages import Request, Response

MAX_RESPONSE_HEAD = 64 * 1024
_RECEIVE_SIZE = 64 * 1024
_CLOSE_TIMEOUT = 5.0  # seconds; a forced close never waits
_BODILESS_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})

Connect = Callable[[], Awaitable[trio.abc.Stream]]
"""Opens one connection; raises one of `gateway.net.dialing.FAILURES`."""


@attrs.frozen(kw_only=True)
class HttpClientOptions:
    """Limits of one client."""

    max_connections: int = attrs.field(
        default=64, validator=[attrs.validators.ge(1), attrs.validators.le(10_000)]
    )
    connect_timeout: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    idle_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    max_body: int = attrs.field(default=16 * 1024 * 1024, validator=attrs.validators.ge(0))


class HttpClient(trio.abc.AsyncResource):
    """
    Sends requests to one host and port.

    At most `max_connections` requests run concurrently; others wait for their turn. The most
    recently used connection is used first, so that surplus connections become old and are closed:
    at the next request, or by `aclose`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        options: HttpClientOptions | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`connect` is for tests and tunnels; the default is TCP, with TLS if given."""
        self._options = options or HttpClientOptions()
        place = Place(host=host, port=port, tls=tls)
        self._authority = str(place)
        self._connect = connect or partial(open_stream, place, https_compatible=True)
        self._slots = trio.Semaphore(self._options.max_connections)
        self._idle: list[_Connection] = []  # the last used connection is at the end
        self._closed = False

    async def request(self, request: Request) -> Response:
        """
        Return the server's complete response, whatever its status. Host and Content-Length are
        added.

        The only timeout is `connect_timeout`; the caller's scope is the deadline otherwise. A
        cancellation closes the connection; if the request was being sent by then, its outcome is
        unknown.

        Raises:
            Unreachable: no connection could be opened; nothing was sent.
            Untrusted: one side doesn't trust the other's certificate; nothing was sent.
            OutcomeUnknown: the connection broke, or the response is cut, malformed or too large.
            InvalidRequest: a method, target or header is invalid; nothing was sent.
        """
        try:
            self._slots.acquire_nowait()  # no checkpoint needed: the exchange waits
        except trio.WouldBlock:
            await self._slots.acquire()
        try:
            connection = await self._take()
            try:
                response = await connection.exchange(request, self._options.max_body)
            except BaseException:
                await trio.aclose_forcefully(connection.stream)
                raise
            await self._give_back(connection)
            return response
        finally:
            self._slots.release()

    async def aclose(self) -> None:
        """
        Close idle connections. A connection in use is closed after its request.

        If cancelled, all of them are closed nevertheless: each close would raise at its checkpoint.
        """
        self._closed = True
        idle, self._idle = self._idle, []
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            for connection in idle:
                await trio.aclose_forcefully(connection.stream)
        await trio.lowlevel.checkpoint()

    async def _take(self) -> "_Connection":
        if self._closed:
            raise trio.ClosedResourceError("this HTTP client was closed")
        await self._retire()
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_something_to_read():
                return connection
            await trio.aclose_forcefully(connection.stream)
        return await self._open()

    # The next two methods have no checkpoint on the fast path: the exchange between them has
    # several.
    async def _retire(self) -> None:  # noqa: ASYNC910
        oldest = trio.current_time() - self._options.idle_timeout
        while self._idle and self._idle[0].idle_since < oldest:
            await trio.aclose_forcefully(self._idle.pop(0).stream)

    async def _open(self) -> "_Connection":
        try:
            with trio.fail_after(self._options.connect_timeout):
                stream = await self._connect()
        except trio.TooSlowError as error:
            seconds = self._options.connect_timeout
            raise Unreachable(f"{self._authority} didn't connect within {seconds:g} s") from error
        except FAILURES as error:
            raise failure_of(self._authority, error) from error
        return _Connection(stream, self._authority)

    async def _give_back(self, connection: "_Connection") -> None:  # noqa: ASYNC910
        if self._closed or not connection.start_next():
            await trio.aclose_forcefully(connection.stream)
            return
        connection.idle_since = trio.current_time()
        self._idle.append(connection)


@attrs.define(eq=False)
class _Connection:
    """One connection: one request at a time, and closed for good after the first error."""

    stream: trio.abc.Stream
    authority: str
    idle_since: float = 0.0
    _parser: h11.Connection = attrs.field(
        factory=lambda: h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_HEAD)
    )
    _proven: bool = False  # whether the server has answered on this connection before

    async def exchange(self, request: Request, max_body: int) -> Response:
        data = self._build(request)
        broken: trio.BrokenResourceError | None = None
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError as error:
            # A server that refuses a large body answers and closes while the client still sends, so
            # an answer is read first.
            broken = error
        try:
            response = await self._read_response(request.method, max_body)
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            first = broken or error
            cause = first.__cause__ or first
            if not self._proven and is_certificate_alert(cause):
                # In TLS 1.3 the alert arrives after a request was sent, which the server hasn't
                # read.
                raise Untrusted(f"{self.authority}: {cause}") from error
            raise OutcomeUnknown(f"{self.authority}: no whole answer: {cause}") from error
        self._proven = True
        if broken is not None:
            self._parser.send_failed()
        return response

    def start_next(self) -> bool:
        """Prepare for the next request. False: the connection can't be reused."""
        if self._parser.our_state is not h11.DONE or self._parser.their_state is not h11.DONE:
            return False
        if self._parser.trailing_data[0]:  # bytes that belong to no request
            return False
        self._parser.start_next_cycle()
        return True

    def has_something_to_read(self) -> bool:
        """
        True if data can be read from an idle connection: then the server closed it, or sent
        something unasked.
        """
        stream = self.stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        if not isinstance(stream, trio.SocketStream):
            return False
        poll = select.poll()
        poll.register(stream.socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _build(self, request: Request) -> bytes:
        try:
            fields = written_fields(request.headers)
            if request.headers.get("Host") is None:
                fields.insert(0, (b"Host", self.authority.encode("ascii")))
            if request.body or request.method not in _BODILESS_METHODS:
                fields.append((b"Content-Length", b"%d" % len(request.body)))
            send = self._parser.send
            head = h11.Request(method=request.method, target=request.target, headers=fields)
            data = send(head)
            if request.body:
                data += send(h11.Data(data=request.body))
            return data + send(h11.EndOfMessage())
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise InvalidRequest(f"the request can't be written: {error}") from error

    async def _read_response(self, method: str, max_body: int) -> Response:
        event = await self._next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next_event()
        if not isinstance(event, h11.Response):
            raise h11.RemoteProtocolError("the connection was closed")
        if method != "HEAD":
            _must_have_an_end(event)
        parts: list[bytes] = []
        room = max_body
        while isinstance(data := await self._next_event(), h11.Data):
            room -= len(data.data)
            if room < 0:
                raise h11.RemoteProtocolError(f"the body is above {max_body} bytes")
            parts.append(bytes(data.data))
        headers = read_fields(event.headers.raw_items())
        return Response(status=event.status_code, headers=headers, body=b"".join(parts))

    async def _next_event(self) -> h11.Event:
        while not isinstance(event := self._parser.next_event(), h11.Event):
            if event is h11.PAUSED:
                raise h11.RemoteProtocolError("bytes after the answer")
            data = await self.stream.receive_some(_RECEIVE_SIZE)
            if not data:
                raise h11.RemoteProtocolError("the connection was closed")
            self._parser.receive_data(bytes(data))
        return event  # noqa: ASYNC910 the first one waits


def _must_have_an_end(head: h11.Response) -> None:
    """Refuse a body that ends with the connection: it can't be told from one that was cut."""
    names = {name for name, _ in head.headers}
    if head.status_code not in (204, 304) and not names & {b"content-length", b"transfer-encoding"}:
        raise h11.RemoteProtocolError("the answer doesn't say how long it is")
