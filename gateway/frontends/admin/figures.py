"""
Health and metrics of a process (a gateway or a listener) for operators, orchestrators and
Prometheus.

    GET /livez      200 as long as the process answers
    GET /readyz     503 while the process starts or ends, with the reason; a namespace that fails
                    changes neither
    GET /status     the state of the process, as JSON (`wire/status`)
    GET /openapi.json  the description of all of it (`openapi`)
    GET /metrics    the same figures in Prometheus's text format
    GET /events     the events of the process, as they happen (`events`)
    GET /v1/history the backlog in the last hour (`wire/pairgate/status`)
    GET /           a page that shows all of this and steers (`page`)
    /v1/...         control by operators (`control`)

`/livez`, `/readyz` and the page's files need no credentials. The others need the right to listen to
every entity, and control the right to manage every entity.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import attrs

from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.health.depth_history import DepthSample
from gateway.domain.status.process import Status
from gateway.domain.status.sections import Section
from gateway.extensions.listing import parts
from gateway.frontends.admin.control import ControlFrontend
from gateway.frontends.admin.events import EventsFrontend
from gateway.frontends.admin.openapi import openapi_answer
from gateway.frontends.admin.operators import (
    JSON,
    body_answer,
    check_right,
    health,
    json_answer,
    refused,
)
from gateway.frontends.admin.page import page_answer
from gateway.frontends.admin.readiness import Readiness
from gateway.frontends.auth import Authorizer
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate.status import HISTORY_PATH, build_history, build_status

# Prometheus's exposition formats, version 0.0.4.
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_READS: Final = frozenset({"GET", "HEAD"})
_NO_GATEWAY: Final = "this process is no gateway: ask `pairgate serve`"


@attrs.define(eq=False, kw_only=True)
class FiguresFrontend:
    """
    Answers requests for the state and the figures. `handle`, `check_head` and `refuse` are the
    methods that `gateway.net.http.server.HttpServer` calls.
    """

    authorizer: Authorizer
    read: Callable[[], Awaitable[Status]]
    exposition: Callable[[Status], bytes]
    readiness: Readiness = attrs.field(factory=Readiness)
    control: ControlFrontend | None = None
    events: EventsFrontend | None = None
    history: Callable[[], Iterable[DepthSample]] = tuple
    sections: Sequence[Section[Any]] = ()  # of the status, that the core doesn't know

    async def handle(self, request: Request) -> Response:
        """
        Answer one request; every `BrokerError` has become a response. Only control changes
        anything.
        """
        try:
            if request.path.startswith(_of_gateway()):
                raise NotSupported(_NO_GATEWAY)
            if request.method in _READS:
                answer = await self.answer(request)
                return answer or self.refuse(404, f"{request.path} not found")
            if self.control is not None and self.control.takes(request):
                return await self.control.answer(request)
        except BrokerError as error:
            return refused(error, self.authorizer)
        return self.refuse(405, f"{request.method} isn't allowed on {request.path}")

    async def answer(self, request: Request) -> Response | None:
        """
        The answer to a request that changes nothing; None if it is for another path.

        Raises:
            NotAuthorized: the client may not read the status.
        """
        if request.path == "/status":
            status = await self._status(request)
            return body_answer(200, JSON, build_status(status))
        if request.path == "/metrics":
            status = await self._status(request)
            return body_answer(200, PROMETHEUS_TEXT, self.exposition(status))
        if request.path == HISTORY_PATH:
            check_right(self.authorizer, request, Right.LISTEN, None)
            return body_answer(200, JSON, build_history(self.history()))
        if self.control is not None and self.control.takes(request):
            return await self.control.answer(request)
        if self.events is not None and (stream := self.events.answer(request)) is not None:
            return stream
        calls = () if self.control is None else tuple(self.control.calls)
        described = openapi_answer(request, calls, tuple(self.sections))
        return health(request, self.readiness) or described or page_answer(request, self.authorizer)

    def check_head(self, request: Request) -> Response | None:
        """As `AdminFrontend.check_head`: only control has bodies."""
        if request.path.startswith(_of_gateway()):
            return refused(NotSupported(_NO_GATEWAY), self.authorizer)
        is_order = request.method == "POST"
        if is_order and self.control is not None and self.control.takes(request):
            return self.control.check_head(request)
        return self.refuse(400, f"{request.method} {request.path} takes no body")

    def refuse(self, status: int, text: str) -> Response:
        """The response to a request that is malformed, unknown or not allowed."""
        return json_answer(status, {"error": text})

    async def _status(self, request: Request) -> Status:
        check_right(self.authorizer, request, Right.LISTEN, None)
        return await self.read()


def _of_gateway() -> tuple[str, ...]:
    """Beginnings of paths that another front end answers in a gateway."""
    return ("/scale", *(routes.prefix for routes in parts("admin_routes")))
