"""
Keeps pages of other sites out of endpoints that need no secret.

On loopback an endpoint without access policies accepts a public key, or no key. So a page in a
local browser could do everything that a client can. The browser sends the page's origin (`Origin`)
and the name that it connects to (`Host`), which after DNS rebinding is the other site's. With
access policies a page has no key, and this module checks nothing.

A form that a page posts has an `Origin` too. The SDKs of Node and Python, curl and Prometheus send
no `Origin`.
"""

import functools
import ipaddress
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs
import trio

from gateway.wire.http.messages import Headers, Request, Response

_FOREIGN: Final = frozenset({"cross-site", "same-site"})
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


@attrs.frozen(kw_only=True)
class WebGuard:
    """
    The guard of one endpoint. An allowed origin (`http://localhost:3000`) also allows its host.
    """

    is_open: Callable[[], bool]  # returns True if clients need no secret now
    allowed_origins: frozenset[str] = frozenset()
    # True if this connection's client has rights by its certificate. A browser shows its
    # certificate in requests of any site's pages.
    has_certificate: Callable[[], bool] = lambda: False

    def refusal(self, headers: Headers) -> str | None:
        """The reason why the request is refused; None: it is allowed."""
        host = (headers.get("Host") or "").lower()
        if not self.is_open():
            proves = headers.get("Authorization") is not None or not self.has_certificate()
            return None if proves else self._foreign_origin(headers, host)
        if host and not (_is_loopback(host) or host in self._allowed_hosts()):
            return (
                f"Host {host:.100}: without access policies only loopback host names are accepted"
            )
        return self._foreign_origin(headers, host)

    def _foreign_origin(self, headers: Headers, host: str) -> str | None:
        if headers.get("Origin") is None:  # all clients but browsers
            return _foreign_part(headers)
        for origin in map(str.lower, headers.all("Origin")):
            # A page that this endpoint serves itself is allowed: its origin's host is this machine.
            if origin not in self.allowed_origins and origin.partition("://")[2] != host:
                return f"Origin {origin:.100}: add it to the endpoint's allowed_origins"
        return None

    def _allowed_hosts(self) -> frozenset[str]:
        return frozenset(origin.partition("://")[2] for origin in self.allowed_origins)


class Frontend(Protocol):
    """The front end behind the guard."""

    async def handle(self, request: Request) -> Response: ...

    def check_head(self, request: Request) -> Response | None:
        """The refusal of a client that may not send a body at all; None if the body may be read."""

    def refuse(self, status: int, text: str) -> Response: ...


@attrs.frozen(kw_only=True)
class Guarded:
    """
    An HTTP front end whose requests the guard checks first.

    `prepare` gets the Authorization header before the front end does, as `Authorizer.prepare`, and
    may wait for the keys that the check needs.
    """

    guard: WebGuard
    frontend: Frontend
    handler: Callable[[Request], Awaitable[Response]]
    prepare: Callable[[str | None], Awaitable[None]]

    async def handle(self, request: Request) -> Response:
        why = self.guard.refusal(request.headers)
        if why is not None:
            await trio.lowlevel.checkpoint()
            return self.frontend.refuse(403, why)
        await self.prepare(request.headers.get("Authorization"))
        return await self.handler(request)

    async def check_head(self, request: Request) -> Response | None:
        """As `Frontend.check_head`."""
        why = self.guard.refusal(request.headers)
        if why is not None:
            await trio.lowlevel.checkpoint()
            return self.frontend.refuse(403, why)
        await self.prepare(request.headers.get("Authorization"))
        return self.frontend.check_head(request)  # noqa: ASYNC910 the server waits for the body


def _foreign_part(headers: Headers) -> str | None:
    """
    The reason why a request without an origin is refused; None: it is allowed. The request of an
    image or a frame of a page has no origin, and may be a GET that takes a message; browsers mark
    it in other headers (Fetch Metadata). A link to a whole page is allowed.
    """
    site = headers.get("Sec-Fetch-Site")
    if site not in _FOREIGN or headers.get("Sec-Fetch-Dest") == "document":
        return None
    return f"Sec-Fetch-Site {site}: the request is part of another site's page"


@functools.lru_cache(maxsize=64)  # all requests of a client have the same host
def _is_loopback(host: str) -> bool:
    """True if a Host header names this machine, as every `*.localhost` does (RFC 6761, 6.3)."""
    match = _HOST.fullmatch(host)
    name = match[1].strip("[]").removesuffix(".") if match else ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
