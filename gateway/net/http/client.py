"""
An HTTP/1.1 client for one server, with kept-alive connections and a known outcome for each request.
"""

import math
import select
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import attrs
import h11
import trio

from gateway.domain.errors import OutcomeUnknown, Unreachable
from gateway.domain.option_fields import BYTES
from gateway.net.dialing import FAILURES, failure_of, late_refusal, open_stream
from gateway.net.direct import socket_of
from gateway.net.http.client_codec import ClientCodec
from gateway.net.server_address import ServerAddress
from gateway.wire.http.messages import Request, Response

_RECEIVE_SIZE = 64 * 1024
_CLOSE_TIMEOUT = 5.0  # seconds; a forced close never waits
_SHORT = 0.5  # seconds; a request that is given up sooner says nothing about connections

Connect = Callable[[], Awaitable[trio.abc.Stream]]
"""Opens one connection; raises one of `gateway.net.dialing.FAILURES`."""


class Ask(Protocol):
    """Sends a request, as `HttpClient.request`."""

    async def __call__(self, request: Request, max_body: int | None = None) -> Response: ...


def fails(response: Response) -> bool:
    """True if the server has failed, so that another connection may lead to a better one."""
    return response.status in {500, 502, 504}


@attrs.frozen(kw_only=True)
class HttpClientOptions:
    """Limits of one client, and what it takes for a failure of the server."""

    max_connections: int = attrs.field(
        default=64, validator=[attrs.validators.ge(1), attrs.validators.le(10_000)]
    )
    connect_timeout: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    idle_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    max_body: int = attrs.field(
        default=16 * 1024 * 1024, validator=attrs.validators.ge(0), metadata=BYTES
    )
    fails: Callable[[Response], bool] = fails


class HttpClient(trio.abc.AsyncResource):
    """
    Sends requests to one host and port.

    At most `max_connections` requests run concurrently; others wait for their turn. The most
    recently used connection is used first, so that surplus connections become old and are closed:
    at the next request, or by `aclose`. A connection on which a request fails is closed, and so are
    the idle ones without an answer since that request began: they may lead to the same server.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        options: HttpClientOptions | None = None,
        connect: Connect | None = None,
        unix: str | None = None,
    ) -> None:
        """
        `connect` is for tests and tunnels; the default is TCP, with TLS if given, or the Unix
        socket with that path.
        """
        self._options = options or HttpClientOptions()
        place = ServerAddress(host=host, port=port, tls=tls, unix=unix)
        self._authority, self._tls = place.authority, tls
        self._connect = connect or partial(open_stream, place, https_compatible=True)
        self._slots = trio.Semaphore(self._options.max_connections)
        self._idle: list[_ClientConnection] = []  # the last used connection is at the end
        self._closed = False
        self._failed = -math.inf  # the start of the newest request that failed

    async def request(self, request: Request, max_body: int | None = None) -> Response:
        """
        Return the server's complete response, whatever its status. Host and Content-Length are
        added. `max_body` limits the bytes of this response's body, instead of the client's limit.

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
            connection, began = await self._acquire(), trio.current_time()
            try:
                most = self._options.max_body if max_body is None else max_body
                response = await connection.exchange(request, most)
            except BaseException as error:
                self._record_failure(error, began)
                await trio.aclose_forcefully(connection.stream)
                raise
            if self._options.fails(response):
                self._failed, connection.goes_on = max(self._failed, began), False
            await self._give_back(connection)
            return response
        finally:
            self._slots.release()

    def _record_failure(self, error: BaseException, began: float) -> None:
        waited = trio.current_time() - began
        if isinstance(error, OutcomeUnknown) or waited >= _SHORT:
            self._failed = max(self._failed, began)

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

    async def _acquire(self) -> "_ClientConnection":
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
    async def _retire(self) -> None:
        oldest = max(trio.current_time() - self._options.idle_timeout, self._failed)
        while self._idle and self._idle[0].idle_since < oldest:
            await trio.aclose_forcefully(self._idle.pop(0).stream)

    async def _open(self) -> "_ClientConnection":
        try:
            with trio.fail_after(self._options.connect_timeout):
                stream = await self._connect()
        except trio.TooSlowError as error:
            seconds = self._options.connect_timeout
            raise Unreachable(f"{self._authority} didn't connect within {seconds:.3g} s") from error
        except FAILURES as error:
            raise failure_of(self._authority, error) from error
        return _ClientConnection(stream, self._authority, self._tls)

    async def _give_back(self, connection: "_ClientConnection") -> None:
        if self._closed or not connection.goes_on:
            await trio.aclose_forcefully(connection.stream)
            return
        connection.idle_since = trio.current_time()
        self._idle.append(connection)


@attrs.define(eq=False)
class _ClientConnection:
    """
    A connection to a server: sends one request at a time, and is closed for good after the first
    error.
    """

    stream: trio.abc.Stream
    authority: str
    tls: ssl.SSLContext | None = None
    idle_since: float = 0.0
    goes_on: bool = False  # another request can follow
    _proven: bool = False  # whether the server has answered on this connection before
    _poll: "select.poll | None" = attrs.field(init=False)  # None: in tests, without a socket

    @_poll.default
    def _no_poll(self) -> "select.poll | None":
        stream = socket_of(self.stream)
        if stream is None:
            return None
        poll = select.poll()
        poll.register(stream.socket.fileno(), select.POLLIN)
        return poll

    async def exchange(self, request: Request, max_body: int) -> Response:
        codec = ClientCodec(self.authority, request, max_body)
        data = codec.build()
        broken: trio.BrokenResourceError | None = None
        try:
            await self.stream.send_all(data)
        except trio.BrokenResourceError as error:
            # A server that refuses a large body answers and closes while the client still sends, so
            # an answer is read first.
            broken = error
        try:
            response = await self._receive(codec)
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            first = broken or error
            refused = None if self._proven else late_refusal(self.authority, self.tls, first)
            if refused is not None:  # the server hasn't read the request
                raise refused from error
            cause = first.__cause__ or first
            raise OutcomeUnknown(f"{self.authority}: no whole answer: {cause}") from error
        self._proven = True
        self.goes_on = broken is None and codec.is_reusable
        return response

    def has_something_to_read(self) -> bool:
        """
        True if data can be read from an idle connection: then the server closed it, or sent
        something unasked.
        """
        if self._poll is None:
            return False
        return bool(self._poll.poll(0))

    async def _receive(self, codec: ClientCodec) -> Response:
        while True:
            data = await self.stream.receive_some(_RECEIVE_SIZE)
            response = codec.receive(bytes(data))
            if response is not None:
                return response
