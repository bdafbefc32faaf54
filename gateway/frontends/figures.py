"""
How a process is, for operators, orchestrators and Prometheus; of a gateway and of a listener.

    GET /livez      200 as long as the process answers
    GET /readyz     503 once it drains; a dead namespace changes neither
    GET /status     how it is, as JSON (`wire/status`)
    GET /metrics    the same figures in Prometheus's text form

The first two are for anybody, the others for who may listen to every entity.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from gateway.domain.access import Right
from gateway.domain.errors import BrokerError
from gateway.domain.status import Status
from gateway.frontends.auth import Authorizer
from gateway.frontends.operators import body_answer, check_right, health, json_answer, refused
from gateway.wire.http import Request, Response
from gateway.wire.status import build_status

# Prometheus's exposition formats, version 0.0.4.
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_READS: Final = frozenset({"GET", "HEAD"})


@attrs.define(eq=False, kw_only=True)
class FiguresFrontend:
    """`handle` and `refuse` are what `gateway.net.http_server.HttpServer` asks for."""

    authorizer: Authorizer
    read: Callable[[], Awaitable[Status]]
    exposition: Callable[[Status], bytes]
    draining: trio.Event = attrs.field(factory=trio.Event)  # once set, it isn't ready any more

    async def handle(self, request: Request) -> Response:
        """Answer one request; every `BrokerError` has become a response. Nothing is changed."""
        await trio.lowlevel.checkpoint()
        if request.method not in _READS:
            return self.refuse(405, f"{request.method} is not for {request.path}")
        try:
            answer = await self.answer(request)
        except BrokerError as error:
            return refused(error)
        return answer or self.refuse(404, f"there is no {request.path}")

    async def answer(self, request: Request) -> Response | None:
        """
        None: it is for somebody else.

        Raises:
            NotAuthorized: who asks may not know.
        """
        await trio.lowlevel.checkpoint()
        if request.path == "/status":
            status = await self._status(request)
            return body_answer(200, "application/json", build_status(status))
        if request.path == "/metrics":
            status = await self._status(request)
            return body_answer(200, PROMETHEUS_TEXT, self.exposition(status))
        return health(request, self.draining)

    def refuse(self, status: int, text: str) -> Response:
        """The answer to what is no request that is known here, or none at all."""
        return json_answer(status, {"error": text})

    async def _status(self, request: Request) -> Status:
        check_right(self.authorizer, request, Right.LISTEN, None)
        return await self.read()
