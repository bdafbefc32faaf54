"""
HTTP/1.1 on one connection: a whole request in, one handler call, a whole response out in one write
(or, of one in parts, each as it comes).

One cancel scope per connection carries every deadline: moving it costs a tenth of opening one for
each phase of each request.
"""

import enum
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime

import attrs
import trio

from gateway.net.http_codec import HttpCodec
from gateway.net.http_guard import MAX_HEAD, RequestRefused
from gateway.net.watch import Watch
from gateway.wire.http import Request, Response

BODY_GRACE = 5.0  # seconds before the minimum rate of a body counts
GOODBYE_SECONDS = 2.0
GOODBYE_BYTES = 1024 * 1024
_RECEIVE_SIZE = 64 * 1024

Handler = Callable[[Request], Awaitable[Response]]


@attrs.frozen(kw_only=True)
class HttpServerOptions:
    """Limits of each connection."""

    # Room for several of the largest messages: Pairgates send batches of up to half of this.
    max_body: int = attrs.field(default=4 * 1024 * 1024, validator=attrs.validators.ge(0))
    head_timeout: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    body_timeout: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    min_body_rate: float = attrs.field(default=1024.0, validator=attrs.validators.gt(0))  # bytes/s
    idle_timeout: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    write_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    server_name: str = "pairgate"


def _never(request: Request) -> bool:
    return False


@attrs.frozen(kw_only=True, eq=False)
class HttpServer:
    """
    One handler for any number of connections.

    The handler turns the errors that it expects into responses. Content-Length, Date, Server and
    Connection are added here. A header value with CR, LF or NUL is a bug of the handler.
    """

    handler: Handler
    error_body: Callable[[int, str], Response]  # answers what is refused before the handler
    wall_clock: Callable[[], datetime]
    # Whether the handler of this request is cancelled when its client goes away. A long poll must
    # end, or it locks a message for nobody; a send runs to its end. A client that only shuts its
    # sending half looks like one that has gone, so "no" also keeps its answer.
    cancels_when_gone: Callable[[Request], bool] = _never
    # Once set, idle connections end at once and the others with their next response.
    drain: trio.Event = attrs.field(factory=trio.Event)
    options: HttpServerOptions = attrs.field(factory=HttpServerOptions)

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """
        Return when the connection has ended, in whichever way; `stream` is closed then.

        A cancellation ends it at once, with the handler; of a response that is being written a
        part may have gone.

        Raises:
            ExceptionGroup: with trio.BrokenResourceError when the client reset the connection
                during a response, or with what the handler raised: no answer was given then.
        """
        codec = HttpCodec(
            max_body=self.options.max_body,
            server_name=self.options.server_name.encode("ascii"),
            wall_clock=self.wall_clock,
        )
        try:
            async with trio.open_nursery() as nursery:
                connection = _Connection(self, stream, codec, nursery)
                nursery.start_soon(connection.leave_when_draining)
                await connection.run()
                nursery.cancel_scope.cancel()
            await connection.refuse()
        finally:
            with trio.move_on_after(GOODBYE_SECONDS, shield=True):
                await stream.aclose()


class _Phase(enum.Enum):
    """What a connection is doing, and so what the end of its time means."""

    IDLE = "idle"  # between requests: may be closed at any time
    HEAD = "head"  # a request has begun: 408
    BODY = "body"  # 408
    WORKING = "working"  # the handler sets its own deadlines
    WRITING = "writing"  # the client doesn't read: nobody is there to tell
    STREAMING = "streaming"  # waits for the next part: may be closed at any time
    ENDED = "ended"


@attrs.define(eq=False)
class _Connection:
    server: HttpServer
    stream: trio.abc.Stream
    codec: HttpCodec
    nursery: trio.Nursery
    _phase: _Phase = _Phase.IDLE
    _body_began: float = 0.0
    _refusal: RequestRefused | None = None
    _watch: Watch = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._watch = Watch(self._leave_when_gone)

    @property
    def scope(self) -> trio.CancelScope:
        return self.nursery.cancel_scope

    async def run(self) -> None:  # noqa: ASYNC910 every response is written
        """Serve one request after the other until the connection can't be used again."""
        alive = True
        while alive:
            try:
                alive = await self._exchange()
            except RequestRefused as refusal:
                self._refusal = refusal
                alive = False
        if not self.scope.cancel_called:
            self._phase = _Phase.ENDED

    async def leave_when_draining(self) -> None:
        await self.server.drain.wait()
        if self._phase in (_Phase.IDLE, _Phase.STREAMING):
            self.scope.cancel()

    async def refuse(self) -> None:
        """Answer what was refused, if anything was, and give the client time to read that."""
        if self._phase in (_Phase.HEAD, _Phase.BODY):
            self._refusal = RequestRefused(408, "The request did not arrive in time.")
        if self._refusal is None:
            await trio.lowlevel.checkpoint()
            return
        answer = self.server.error_body(self._refusal.status, self._refusal.text)
        with trio.move_on_after(GOODBYE_SECONDS):
            await self.stream.send_all(self.codec.build(attrs.evolve(answer, close=True)))
            if isinstance(self.stream, trio.abc.HalfCloseableStream):
                await self.stream.send_eof()
            # Closing while the client still sends would reset the connection under its answer.
            surplus = 0
            while surplus < GOODBYE_BYTES and (data := await self._receive()):
                surplus += len(data)

    async def _exchange(self) -> bool:
        """Serve one request. False: there can't be another one."""
        request = await self._read_request()
        # If the time ran out, or the drain began, in the moment when the rest arrived, the handler
        # would be cancelled: better not to begin.
        if request is None or self.scope.cancel_called:
            return False
        self._enter(_Phase.WORKING, math.inf)
        response = await self._answer(request)
        if self.server.drain.is_set():
            response = attrs.evolve(response, close=True)
        data = self.codec.build(response)
        self._enter(_Phase.WRITING, self.server.options.write_timeout)
        await self.stream.send_all(data)
        if response.parts is not None and self.codec.may_have_body(response):
            await self._send_parts(response.parts)
        return self.codec.start_next()

    async def _send_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Send each as it comes, until there are no more, the client goes away, or the drain."""
        await trio.lowlevel.checkpoint()
        self._watch.begin(self.nursery)
        async with aclosing(parts):
            self._enter(_Phase.STREAMING, math.inf)
            if self.server.drain.is_set():
                self.scope.cancel()
            async for part in parts:
                self._enter(_Phase.WRITING, self.server.options.write_timeout)
                await self.stream.send_all(part)
                self._enter(_Phase.STREAMING, math.inf)
        await self._watch.end()

    async def _read_request(self) -> Request | None:
        """The next request; None when the client has no more, or the drain has begun."""
        while (request := self.codec.next_request()) is None:
            if self.codec.in_body:
                await self._expect_body()
            elif self.codec.in_head:
                self._expect_head()
            elif self.server.drain.is_set():
                self._phase = _Phase.ENDED
                await trio.lowlevel.checkpoint()
                return None
            else:
                self._enter(_Phase.IDLE, self.server.options.idle_timeout)
            data = await self._receive()
            if not data:
                self._phase = _Phase.ENDED
                return None
            self.codec.feed(data)
        if self._phase is _Phase.IDLE:
            self._phase = _Phase.HEAD
        return request  # noqa: ASYNC910 sent ahead; its response is written

    def _expect_head(self) -> None:
        if self._phase is not _Phase.HEAD:  # the time runs from the first byte, not from the last
            self._enter(_Phase.HEAD, self.server.options.head_timeout)

    async def _expect_body(self) -> None:  # noqa: ASYNC910 a receive follows
        options = self.server.options
        if self._phase is not _Phase.BODY:
            self._enter(_Phase.BODY, BODY_GRACE)
            self._body_began = trio.current_time()
            if permission := self.codec.take_continue():
                await self.stream.send_all(permission)
        slowest = BODY_GRACE + self.codec.body_received / options.min_body_rate
        self.scope.deadline = self._body_began + min(options.body_timeout, slowest)

    async def _answer(self, request: Request) -> Response:
        """The handler's response; it's cancelled with the connection if the client goes away."""
        if not self.server.cancels_when_gone(request):
            return await self.server.handler(request)
        self._watch.begin(self.nursery)
        response = await self.server.handler(request)
        await self._watch.end()
        return response

    async def _leave_when_gone(self) -> None:
        """Requests that are sent ahead are kept; with a head's worth of them, watching ends."""
        while self.codec.waiting < MAX_HEAD:
            data = await self._receive()
            if not data:
                self.scope.cancel()
                break
            self.codec.feed(data)
        await trio.lowlevel.checkpoint()

    async def _receive(self) -> bytes | bytearray:
        """Some bytes, or none when the client has ended or reset the connection."""
        try:
            return await self.stream.receive_some(_RECEIVE_SIZE)
        except trio.BrokenResourceError:
            return b""  # noqa: ASYNC910 the receive has waited

    def _enter(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self.scope.deadline = trio.current_time() + seconds
