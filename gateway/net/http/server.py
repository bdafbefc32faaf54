"""
HTTP/1.1 on one connection: a complete request, one handler call, a complete response in one write
(or each part of the response as it comes).

One cancel scope per connection carries all deadlines, and one alarm for all phases of all requests
ends it: a phase that ends in time costs no change of a deadline.
"""

import enum
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.domain.access import ClientLimit
from gateway.domain.option_fields import BYTES
from gateway.fair_budget import FairBudget
from gateway.net.http.codec import HttpCodec
from gateway.net.http.guard import MAX_HEAD, RequestRefused
from gateway.net.visits import FIRST_ON_ITS_WAY, ON_ITS_WAY, Visit, current_visit
from gateway.net.watch import RequestWatch
from gateway.wire.http.messages import Headers, Request, Response

BODY_GRACE = 5.0  # seconds before the minimum rate of a body applies
GOODBYE_SECONDS = 2.0
GOODBYE_BYTES = 1024 * 1024
RETRY_AFTER = "1"  # seconds
_RECEIVE_SIZE = 64 * 1024
_MEMORY: Final = 128 * 1024 * 1024  # bytes: the default of `max_body_memory`

Handler = Callable[[Request], Awaitable[Response]]


@attrs.frozen(kw_only=True)
class HttpServerOptions:
    """Limits of each connection."""

    # Room for several of the largest messages: Pairgates send batches of up to half of this.
    max_body: int = attrs.field(
        default=4 * 1024 * 1024, validator=attrs.validators.ge(0), metadata=BYTES
    )
    head_timeout: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    body_timeout: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    min_body_rate: float = attrs.field(
        default=1024.0, validator=attrs.validators.gt(0), metadata=BYTES
    )
    idle_timeout: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    write_timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    # Limit for all bodies in the process that are being received; above it, bodies wait up to
    # `body_wait`.
    max_body_memory: int = attrs.field(
        default=128 * 1024 * 1024, validator=attrs.validators.ge(64 * 1024), metadata=BYTES
    )
    body_wait: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    server_name: str = attrs.field(default="pairgate")

    @server_name.validator
    def _can_be_written(self, _: object, name: str) -> None:
        if not name or not all("!" <= character <= "~" for character in name):
            raise ValueError("visible ASCII characters expected, without spaces")


def _never(request: Request) -> bool:
    return False


async def _any(request: Request) -> None:
    """Accepts every body."""
    await trio.lowlevel.checkpoint()


@attrs.frozen(kw_only=True, eq=False)
class HttpServer:
    """
    Serves any number of connections with a handler. The handler turns the errors that it expects
    into responses. Content-Length, Date, Server and Connection are added here. A header value with
    CR, LF or NUL is a bug of the handler.
    """

    handler: Handler
    # Builds the response to requests that are refused before the handler.
    error_body: Callable[[int, str], Response]
    wall_clock: Callable[[], datetime]
    # True: this request's handler is cancelled when its client leaves. A long poll must end then,
    # or it would lock a message in vain; a send runs to its end. A client that only closes its
    # sending half looks as if it had left, so False also preserves its answer.
    cancels_when_gone: Callable[[Request], bool] = _never
    # Called when the head of a request has arrived, before its body: a response refuses the request
    # and ends the connection, before memory is spent on an unauthorized client. None: accept the
    # body.
    check_head: Callable[[Request], Awaitable[Response | None]] = _any
    # Of the bytes of bodies that are being received or processed: the one of all servers of the
    # process.
    budget: FairBudget = attrs.field(factory=lambda: FairBudget(_MEMORY, _MEMORY))
    # Once set, connections end with their next response, and idle ones soon without one.
    drain: trio.Event = attrs.field(factory=trio.Event)
    options: HttpServerOptions = attrs.field(factory=HttpServerOptions)
    plain: bool = True  # as in `HttpCodec`
    max_head: int = MAX_HEAD  # bytes

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """
        Serve the connection to its end; `stream` is closed then.

        A cancellation ends it at once, together with the handler; a response that is being written
        may be cut.

        Raises:
            ExceptionGroup: with trio.BrokenResourceError if the client reset the connection during
                a response, or with the handler's exceptions, after which no answer was sent.
        """
        codec = HttpCodec(
            max_body=self.options.max_body,
            server_name=self.options.server_name.encode("ascii"),
            wall_clock=self.wall_clock,
            plain=self.plain,
            max_head=self.max_head,
        )
        connection: _ServerConnection | None = None
        try:
            async with trio.open_nursery() as nursery:
                connection = _ServerConnection(self, stream, codec, nursery)
                nursery.start_soon(connection.leave_in_time)
                await connection.run()
                nursery.cancel_scope.cancel()
            await connection.refuse()
        finally:
            if connection is not None:
                connection.forget()
            with trio.move_on_after(GOODBYE_SECONDS, shield=True):
                await stream.aclose()


# The theory. A phase exists for each meaning that silence can have; the codec knows what is to be
# read or written. IDLE and STREAMING owe the client nothing, so a drain ends them. HEAD and BODY
# are two because a slow head is an attack, while a large body may take its time at a minimal rate.
# WORKING has no end: the handler has deadlines, and an end of ours would make its outcome unknown.
# WRITING has one, because a client that doesn't read would keep its answer in memory.
#
#     IDLE -> HEAD -> WORKING (may the body come?) -> BODY -> WORKING -> WRITING -> IDLE
#                                                                        WRITING <-> STREAMING
class _Phase(enum.Enum):
    """The state of a connection, which decides the meaning of a timeout."""

    IDLE = "idle"  # between requests: may be closed at any time
    HEAD = "head"  # a request has begun: 408
    BODY = "body"  # 408
    WORKING = "working"  # the handler sets its own deadlines
    WRITING = "writing"  # the client doesn't read, so it gets no answer
    STREAMING = "streaming"  # waits for the next part: may be closed at any time
    ENDED = "ended"


@attrs.define(eq=False)
class _ServerConnection:
    server: HttpServer
    stream: trio.abc.Stream
    codec: HttpCodec
    nursery: trio.Nursery
    _phase: _Phase = _Phase.IDLE
    _body_began: float = 0.0
    _refusal: Response | None = None
    _acquired: int = 0  # of the budget
    _owner: str = ""  # the client that has taken it
    _has_answered: bool = False
    _due: float = math.inf  # the end of the phase, by Trio's clock
    _alarm: trio.CancelScope = attrs.field(factory=trio.CancelScope)  # fires no later than that
    _visit: Visit = attrs.field(factory=current_visit)
    _watch: RequestWatch = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._watch = RequestWatch(self._leave_when_gone)

    def forget(self) -> None:
        """
        Clean up after the connection: give back its share of the budget, and break the reference
        cycles that would keep its last request until the garbage collector runs, which is seldom.
        """
        self._give_back()
        del self._watch

    @property
    def scope(self) -> trio.CancelScope:
        return self.nursery.cancel_scope

    async def run(self) -> None:
        """
        Serve one request after the other until the connection can't be reused.

        An exception that ends a nursery is part of a reference cycle, with all of its frames. So
        that of a lost connection leaves those behind that have the answer.
        """
        alive, lost = True, ""
        while alive:
            try:
                alive = await self._exchange()
            except RequestRefused as refusal:
                self._refusal = self._answer_to(refusal)
                alive = False
            except trio.BrokenResourceError as error:
                lost = str(error) or "the connection was lost"
            if lost:
                raise trio.BrokenResourceError(lost)
        if not self.scope.cancel_called:
            self._phase = _Phase.ENDED

    async def leave_in_time(self) -> None:
        """
        End the connection when its phase takes too long, and between two requests when the server
        drains and none is on its way.
        """
        drains = False
        while trio.current_time() < self._due:
            self._alarm = trio.CancelScope(deadline=self._due)
            with self._alarm:
                if drains:
                    await trio.sleep_forever()
                await self.server.drain.wait()
                drains = True
                if self._phase is _Phase.STREAMING:
                    break
                if self._phase is _Phase.IDLE:
                    self._enter(_Phase.IDLE, self._idle_seconds())
        self.scope.cancel()

    async def refuse(self) -> None:
        """
        Answer a refused request, if there is one, and give the client time to read the answer.
        """
        if self._phase in (_Phase.HEAD, _Phase.BODY):
            late = RequestRefused(408, "The request did not arrive in time.")
            self._refusal = self._answer_to(late)
        if self._refusal is None:
            await trio.lowlevel.checkpoint()
            return
        self.codec.abandon()
        self._give_back()
        with trio.move_on_after(GOODBYE_SECONDS):
            await self.stream.send_all(self.codec.build(attrs.evolve(self._refusal, close=True)))
            if isinstance(self.stream, trio.abc.HalfCloseableStream):
                await self.stream.send_eof()
            # Closing while the client still sends would reset the connection before it reads the
            # answer.
            surplus, most = 0, GOODBYE_BYTES + self.server.options.max_body
            while surplus < most and (data := await self._receive()):
                surplus += len(data)

    def _answer_to(self, refusal: RequestRefused) -> Response:
        return self.server.error_body(refusal.status, refusal.text)

    async def _exchange(self) -> bool:
        """Serve one request. False: no other request can follow."""
        request = await self._read_request()
        # If the timeout or the drain came at the moment when the rest arrived, the handler would be
        # cancelled: so the handler isn't called.
        if request is None or self.scope.cancel_called:
            return False
        self._enter(_Phase.WORKING, math.inf)
        self._visit.begin_work()
        response = await self._answer(request)
        del request
        self._give_back()
        if self.server.drain.is_set():
            response = attrs.evolve(response, close=True)
        data = self.codec.build(response)
        self._has_answered = True
        self._enter(_Phase.WRITING, self.server.options.write_timeout)
        await self.stream.send_all(data)
        del data
        self._visit.release_peek()
        if response.parts is not None and self.codec.may_have_body(response):
            await self._send_parts(response.parts)
        return self.codec.start_next()

    async def _send_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        """
        Send each part as it comes, until there are no more, the client leaves, or the server
        drains.
        """
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
        await self._watch.stop()

    async def _read_request(self) -> Request | None:
        """The next request; None if the client has no more."""
        self._visit.begin_wait()
        while (request := self.codec.next_request()) is None:
            if self.codec.in_body:
                if not await self._expect_body():
                    return None
            elif self.codec.in_head:
                self._expect_head()
            else:
                self._enter(_Phase.IDLE, self._idle_seconds())
            data = await self._receive()
            if not data:
                self._phase = _Phase.ENDED
                return None
            self.codec.feed(data)
        if self._phase is _Phase.IDLE:
            self._phase = _Phase.HEAD
        return request

    def _idle_seconds(self) -> float:
        """The seconds to wait for the next request."""
        timeout = self.server.options.idle_timeout
        if not self.server.drain.is_set():
            return timeout
        return min(timeout, ON_ITS_WAY if self._has_answered else FIRST_ON_ITS_WAY)

    def _expect_head(self) -> None:
        # The timeout counts from the first byte, not from the last.
        if self._phase is not _Phase.HEAD:
            self._enter(_Phase.HEAD, self.server.options.head_timeout)

    async def _expect_body(self) -> bool:
        """True if the body may come. False: `_refusal` has the reason."""
        options = self.server.options
        if self._phase is not _Phase.BODY:
            self._enter(_Phase.WORKING, math.inf)
            refusal = await self.server.check_head(self.codec.head())
            self._refusal = refusal or await self._no_room()
            if self._refusal is not None:
                self._phase = _Phase.ENDED
                return False
            self._enter(_Phase.BODY, BODY_GRACE)
            self._body_began = trio.current_time()
            if permission := self.codec.pop_continue():
                await self.stream.send_all(permission)
        slowest = BODY_GRACE + self.codec.body_received / options.min_body_rate
        self._set_due(self._body_began + min(options.body_timeout, slowest))
        return True

    async def _no_room(self) -> Response | None:
        """Acquire the body's size from the budget; return a refusal if there is no room."""
        budget, size = self.server.budget, self.codec.body_to_come
        owner = self._visit.client_name
        room_until = trio.current_time() + self.server.options.body_wait
        if await budget.acquire(owner, size, room_until):
            self._acquired, self._owner = size, owner
            return None
        if self._visit.clients is not None and not budget.leaves_room(owner, size):
            self._visit.clients.record_refused(owner, ClientLimit.BYTES)
        answer = self.server.error_body(503, "The bodies of other requests take all of the memory.")
        if answer.headers.get("Retry-After") is not None:
            return answer
        headers = Headers.of([*answer.headers.items, ("Retry-After", RETRY_AFTER)])
        return attrs.evolve(answer, headers=headers)

    def _give_back(self) -> None:
        if self._acquired:
            self.server.budget.release(self._owner, self._acquired)
            self._acquired = 0

    async def _answer(self, request: Request) -> Response:
        """
        The handler's response. The handler is cancelled with the connection if the client leaves.
        """
        if not self.server.cancels_when_gone(request):
            return await self.server.handler(request)
        self._watch.begin(self.nursery)
        response = await self.server.handler(request)
        await self._watch.stop()
        return response

    async def _leave_when_gone(self) -> None:
        """Keep requests that are sent ahead; when they have the size of a head, the watch ends."""
        while self.codec.waiting < MAX_HEAD:
            data = await self._receive()
            if not data:
                self.scope.cancel()
                break
            self.codec.feed(data)
        await trio.lowlevel.checkpoint()

    async def _receive(self) -> bytes | bytearray:
        """Return some bytes, or none if the client has closed or reset the connection."""
        try:
            return await self.stream.receive_some(_RECEIVE_SIZE)
        except trio.BrokenResourceError:
            return b""

    def _enter(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self._set_due(math.inf if seconds == math.inf else trio.current_time() + seconds)

    def _set_due(self, due: float) -> None:
        self._due = due
        if self._alarm.deadline <= due:
            # The timer fires early and is set again then, which is cheaper than setting it now.
            return
        self._alarm.deadline = due
