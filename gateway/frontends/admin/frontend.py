"""
The HTTP interface for operators and their tools: health, queue depth and control.

    GET /livez, /readyz            health; /status and /metrics: state and figures (`figures`)
    GET /scale/ENTITY              depth and age as JSON, as KEDA's metrics-api scaler reads them,
                                   or in Prometheus's text format
    GET /scale?queues=A,B          the same of several queues as JSON, for the agent
    /v1/...                        control by operators (`control`)
    and the paths of extensions    (`routes`)

`/livez` and `/readyz` need no credentials. The others take HTTP Basic, with name and key of an
access policy, or a token that Service Bus would accept. On loopback without access policies they
need neither.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.extensions.listing import parts
from gateway.frontends.admin.announcements import Announcements
from gateway.frontends.admin.control import ControlFrontend
from gateway.frontends.admin.figures import PROMETHEUS_TEXT, FiguresFrontend
from gateway.frontends.admin.operators import (
    JSON,
    body_answer,
    check_right,
    health,
    json_answer,
    queues_of,
    refused,
)
from gateway.frontends.admin.readiness import Readiness
from gateway.frontends.admin.routes import AdminRoutes
from gateway.frontends.admin.scale import ScaleFigures
from gateway.frontends.auth import Authorizer
from gateway.frontends.options import AdminOptions
from gateway.ports import Broker, WallClock
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate.scale import (
    EntityFigures,
    build_all_figures,
    build_figures,
    build_samples,
)

_SCALE: Final = "/scale"
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
    _routes: Sequence[AdminRoutes] = attrs.field(init=False)

    @_routes.default
    def _of_extensions(self) -> Sequence[AdminRoutes]:
        return [
            make(self.announcements, self.authorizer, self.options)
            for make in parts("admin_routes")
        ]

    async def handle(self, request: Request) -> Response:
        """
        Answer one request; every `BrokerError` has become a response.

        Only control changes anything.
        """
        try:
            if (routes := self._routes_of(request)) is not None:
                return await routes.answer(request)
            if request.method in _READS:
                return await self._read(request)
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
            if (routes := self._routes_of(request)) is not None:
                routes.check_head(request)
            else:  # the least right that any other path needs
                check_right(self.authorizer, request, Right.LISTEN, None)
        except BrokerError as error:
            return refused(error, self.authorizer)
        return None

    def refuse(self, status: int, text: str) -> Response:
        """The response to a request that is malformed, unknown or not allowed."""
        return json_answer(status, {"error": text})

    def _routes_of(self, request: Request) -> AdminRoutes | None:
        return next((routes for routes in self._routes if routes.takes(request)), None)

    @property
    def _control(self) -> ControlFrontend | None:
        return None if self.figures is None else self.figures.control

    async def _read(self, request: Request) -> Response:
        if request.path == _SCALE:
            return await self._scale_all(request)
        if request.path.startswith(f"{_SCALE}/"):
            return _scale_answer(request, await self._scale(request))
        answer = health(request, self.readiness)
        if answer is None and self.figures is not None:
            answer = await self.figures.answer(request)
        return answer or self.refuse(404, f"{request.path} not found")

    async def _scale(self, request: Request) -> EntityFigures:
        entity = EntityPath.parse(request.path.removeprefix(f"{_SCALE}/"))
        check_right(self.authorizer, request, Right.LISTEN, entity)
        return await self._scale_figures.of(entity)

    async def _scale_all(self, request: Request) -> Response:
        found = await self._scale_figures.of_all(queues_of(request, self.authorizer))
        return json_answer(200, build_all_figures(found))

    @property
    def _scale_figures(self) -> ScaleFigures:
        return ScaleFigures(
            broker=self.broker,
            wall_clock=self.wall_clock,
            answer_timeout=self.options.answer_timeout,
        )


def _scale_answer(request: Request, figures: EntityFigures) -> Response:
    """JSON, but for a client that asks for Prometheus's format, as Prometheus does."""
    accepted = (request.headers.get("Accept") or "").lower()
    if "text/plain" in accepted and JSON not in accepted:
        return body_answer(200, PROMETHEUS_TEXT, build_samples(figures))
    return json_answer(200, build_figures(figures))
