"""
The HTTP interface for operators and their tools: health, queue depth, triggers and control.

    GET /livez, /readyz            health; /status and /metrics: state and figures (`figures`)
    GET /scale/ENTITY              depth and age as JSON, as KEDA's metrics-api scaler reads them,
                                   or in Prometheus's text format
    GET /scale?queues=A,B          the same of several queues as JSON, for the agent
    GET /triggers?queues=A,B       new messages in these queues as events
    POST /triggers/QUEUE?size=N    tells the listeners of a queue that it has a new message
    /v1/...                        control by operators (`control`)

`/livez` and `/readyz` need no credentials. The others take HTTP Basic, with name and key of an
access policy, or a token that Service Bus would accept. On loopback without access policies they
need neither.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import cycle
from typing import Final

import attrs
import trio

from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.extensions.announcements.streams import Announcements
from gateway.extensions.announcements.wire import OPEN, build_announcement
from gateway.frontends.admin.control import ControlFrontend
from gateway.frontends.admin.figures import PROMETHEUS_TEXT, FiguresFrontend
from gateway.frontends.admin.operators import (
    JSON,
    body_answer,
    check_right,
    health,
    json_answer,
    refused,
)
from gateway.frontends.admin.options import AdminOptions
from gateway.frontends.admin.readiness import Readiness
from gateway.frontends.admin.scale import ScaleFigures
from gateway.frontends.auth import Authorizer
from gateway.ports import Broker, WallClock
from gateway.wire.http.event_stream import COMMENT, EVENT_STREAM, build_event
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate.scale import (
    MOST_QUEUES,
    Figures,
    build_all_figures,
    build_figures,
    build_samples,
)

_SCALE: Final = "/scale"
_TRIGGERS: Final = "/triggers"
_LARGEST: Final = 2**63 - 1  # bytes
_MOST_DIGITS: Final = 20
_READS: Final = frozenset({"GET", "HEAD"})


@attrs.define(eq=False, kw_only=True)
class AdminFrontend:
    """
    Answers requests of operators, orchestrators and scalers.

    `handle`, `check_head` and `refuse` are the methods that `gateway.net.http.server.HttpServer`
    calls.
    """

    broker: Broker
    authorizer: Authorizer
    wall_clock: WallClock
    figures: FiguresFrontend | None = None
    announcements: Announcements = attrs.field(factory=Announcements)
    options: AdminOptions = attrs.field(factory=AdminOptions)
    readiness: Readiness = attrs.field(factory=Readiness)

    async def handle(self, request: Request) -> Response:
        """
        Answer one request; every `BrokerError` has become a response.

        Only control changes anything; `/triggers` may wake readers of triggers.
        """
        try:
            if request.method in _READS:
                return await self._read(request)
            if request.method == "POST" and request.path.startswith(f"{_TRIGGERS}/"):
                return self._trigger(request)
            if (control := self._control) is not None and control.takes(request):
                return await control.answer(request)
        except BrokerError as error:
            return refused(error, self.authorizer)
        return self.refuse(405, f"{request.method} isn't allowed on {request.path}")

    def check_head(self, request: Request) -> Response | None:
        """
        The refusal of a client without the right to do this, before its body is read; None if the
        body may be read.
        """
        if request.method != "POST":
            return self.refuse(400, f"{request.method} {request.path} takes no body")
        if (control := self._control) is not None and control.takes(request):
            return control.check_head(request)
        try:
            if request.path.startswith(f"{_TRIGGERS}/"):
                self._check(request, self._queue_of(request), Right.SEND)
            else:  # the least right that any other path needs
                check_right(self.authorizer, request, Right.LISTEN, None)
        except BrokerError as error:
            return refused(error, self.authorizer)
        return None

    def refuse(self, status: int, text: str) -> Response:
        """The response to a request that is malformed, unknown or not allowed."""
        return json_answer(status, {"error": text})

    @property
    def _control(self) -> ControlFrontend | None:
        return None if self.figures is None else self.figures.control

    async def _read(self, request: Request) -> Response:
        if request.path == _SCALE:
            return await self._scale_all(request)
        if request.path.startswith(f"{_SCALE}/"):
            return _scale_answer(request, await self._scale(request))
        if request.path == _TRIGGERS:
            return self._stream(request)
        answer = health(request, self.readiness)
        if answer is None and self.figures is not None:
            answer = await self.figures.answer(request)
        return answer or self.refuse(404, f"{request.path} not found")

    async def _scale(self, request: Request) -> Figures:
        entity = EntityPath.parse(request.path.removeprefix(f"{_SCALE}/"))
        self._check(request, entity, Right.LISTEN)
        return await self._scale_figures.of(entity)

    async def _scale_all(self, request: Request) -> Response:
        found = await self._scale_figures.of_all(self._queues_of(request))
        return json_answer(200, build_all_figures(found))

    @property
    def _scale_figures(self) -> ScaleFigures:
        return ScaleFigures(
            broker=self.broker,
            wall_clock=self.wall_clock,
            answer_timeout=self.options.answer_timeout,
        )

    def _trigger(self, request: Request) -> Response:
        queue = self._queue_of(request)
        self._check(request, queue, Right.SEND)
        text = request.query.get("size", "0")
        is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
        if not is_number or int(text) > _LARGEST:
            raise InvalidRequest(f"size: 0 to {_LARGEST} bytes expected, got {text!r:.40}")
        self.announcements.publish(queue, int(text))
        return json_answer(202, {"queue": queue.name})

    def _queue_of(self, request: Request) -> EntityPath:
        return EntityPath.parse(request.path.removeprefix(f"{_TRIGGERS}/"))

    def _queues_of(self, request: Request) -> Sequence[EntityPath]:
        """The queues that the query names, to which the client has the right to listen."""
        names = request.query.get("queues", "").split(",")
        if len(names) > MOST_QUEUES:
            raise InvalidRequest(f"queues: up to {MOST_QUEUES} expected, got {len(names)}")
        queues = [EntityPath.parse(name) for name in names]
        for queue in queues:
            self._check(request, queue, Right.LISTEN)
        return queues

    def _stream(self, request: Request) -> Response:
        queues = self._queues_of(request)
        headers = Headers.of({"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"})
        return Response(status=200, headers=headers, parts=self._events(request, queues))

    async def _events(
        self, request: Request, queues: Sequence[EntityPath]
    ) -> AsyncGenerator[bytes, None]:
        """
        The announcements, until the client has lost the right to listen to a queue that would be
        announced, or to the one that is looked at while none is: a stream may name a thousand.
        """
        one_by_one = cycle(queues)
        with self.announcements.subscribe(queues) as stream:
            yield build_event(OPEN)
            while True:
                came: Mapping[EntityPath, int] = {}
                with trio.move_on_after(self.options.keep_alive):
                    came = await stream.next()
                try:
                    for queue in came or (next(one_by_one),):
                        self._check(request, queue, Right.LISTEN)
                except BrokerError:
                    return
                events = (build_event(build_announcement(*each)) for each in came.items())
                yield b"".join(events) or COMMENT

    def _check(self, request: Request, entity: EntityPath, right: Right) -> None:
        check_right(self.authorizer, request, right, entity)


def _scale_answer(request: Request, figures: Figures) -> Response:
    """JSON, but for a client that asks for Prometheus's format, as Prometheus does."""
    accepted = (request.headers.get("Accept") or "").lower()
    if "text/plain" in accepted and JSON not in accepted:
        return body_answer(200, PROMETHEUS_TEXT, build_samples(figures))
    return json_answer(200, build_figures(figures))
