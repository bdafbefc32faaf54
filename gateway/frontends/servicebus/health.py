"""
The probe of Service Bus's emulator at its port for management.

Compose files and test containers ask `GET /health` there, without credentials, until it is 200.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.errors import PAIRGATE

_HEALTHY: Final = Response(
    status=200,
    headers=Headers((("Content-Type", "application/json"), PAIRGATE)),
    body=b'{"status":"healthy","message":"Service is healthy."}',
)


def with_health(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """The handler, but a request of that probe has the answer that the endpoint serves."""

    async def handle(request: Request) -> Response:
        is_probe = request.method == "GET" and request.target == "/health"
        if is_probe and request.headers.get("Authorization") is None:
            return _HEALTHY
        return await handler(request)

    return handle
