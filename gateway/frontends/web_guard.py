"""
Keeps pages of other sites out of endpoints that need no secret.

On loopback an endpoint without access policies accepts a well-known key, or none. So a page in a
local browser could do everything that a client can. The browser sends the page's origin (`Origin`)
and the name that it connects to (`Host`), which after DNS rebinding is the other site's. With
access policies a page has no key, and this module checks nothing.

A form that a page posts has an `Origin` too. The SDKs of Node and Python, curl and Prometheus send
no `Origin`. A link, an image and a frame have none, either: browsers mark their requests in other
headers (Fetch Metadata). Browsers from before 2023 don't, but name themselves: whatever can take a
message then needs a header that no page can set without asking first (a preflight, Fetch 3.2).
"""

import functools
import ipaddress
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs

from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.errors import PAIRGATE

_FOREIGN: Final = frozenset({"cross-site", "same-site"})
_BROWSER: Final = "Mozilla/"
_SET_BY_PROGRAMS: Final = ("Authorization", "x-ms-version", "x-ms-date", "x-ms-client-request-id")
_ASKED_METHOD: Final = "Access-Control-Request-Method"
_ALLOW: Final = ("Allow", "DELETE, GET, HEAD, OPTIONS, POST, PUT")
# The answer to OPTIONS, as which load balancers ask whether a server is there: any client may know.
_OPTIONS: Final = Response(status=204, headers=Headers((_ALLOW, PAIRGATE)))
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


@attrs.frozen(kw_only=True)
class WebGuard:
    """
    The guard of one endpoint. An allowed origin (`http://localhost:3000`) also allows its host.
    """

    is_open: Callable[[], bool]  # returns True if clients need no secret now
    allowed_origins: frozenset[str] = frozenset()
    allowed_hosts: frozenset[str] = frozenset()  # names without a port
    # True: any name without a dot and any IP address is a host. No other site has such a name: one
    # that a browser reaches after DNS rebinding is registered, and so has a dot.
    allow_local_names: bool = False
    # True if this connection's client has rights by its certificate. A browser shows its
    # certificate in requests of any site's pages.
    has_certificate: Callable[[], bool] = lambda: False
    # True if a GET changes nothing here, so that another site may have a link to it.
    takes_links: bool = False

    def refusal(self, headers: Headers) -> str | None:
        """The reason why the request is refused; None: it is allowed."""
        host = (headers.get("Host") or "").lower()
        if not self.is_open():
            proves = headers.get("Authorization") is not None or not self.has_certificate()
            return None if proves else self._foreign_origin(headers, host)
        if host and not self._is_own(host):
            return (
                f"Host {host:.100}: while the key is the emulators', which is public, only names of"
                " this machine are accepted; add the name to the endpoint's allowed_hosts"
            )
        return self._foreign_origin(headers, host)

    def _foreign_origin(self, headers: Headers, host: str) -> str | None:
        if headers.get("Origin") is None:  # all clients but browsers
            return self._foreign_part(headers)
        for origin in map(str.lower, headers.all("Origin")):
            # A page that this endpoint serves itself is allowed: its origin's host is this machine.
            if origin not in self.allowed_origins and origin.partition("://")[2] != host:
                return f"Origin {origin:.100}: add it to the endpoint's allowed_origins"
        return None

    def _foreign_part(self, headers: Headers) -> str | None:
        """The reason why a request without an origin is refused; None: it is allowed."""
        site = headers.get("Sec-Fetch-Site")
        if site in _FOREIGN:
            if self.takes_links and headers.get("Sec-Fetch-Dest") == "document":
                return None
            return f"Sec-Fetch-Site {site}: the request comes from another site's page"
        if site is None and not self.takes_links and _may_be_of_page(headers):
            return (
                f"User-Agent {headers.get('User-Agent'):.100}: a browser that doesn't say which"
                " page asks; a program may send x-ms-version"
            )
        return None

    def _is_own(self, host: str) -> bool:
        name = _name_of(host)
        return (
            _is_loopback(name)
            or (self.allow_local_names and _is_local(name))
            or name in self.allowed_hosts
            or any(origin.partition("://")[2] == host for origin in self.allowed_origins)
        )


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
            return self.frontend.refuse(403, why)
        if request.method == "OPTIONS" and not _is_preflight(request.headers):
            return _OPTIONS
        await self.prepare(request.headers.get("Authorization"))
        return await self.handler(request)

    async def check_head(self, request: Request) -> Response | None:
        """As `Frontend.check_head`."""
        why = self.guard.refusal(request.headers)
        if why is not None:
            return self.frontend.refuse(403, why)
        await self.prepare(request.headers.get("Authorization"))
        return self.frontend.check_head(request)


def _is_preflight(headers: Headers) -> bool:
    return any(headers.get(each) is not None for each in ("Origin", _ASKED_METHOD))


def _may_be_of_page(headers: Headers) -> bool:
    """True if any page can make an old browser send a request with these headers."""
    is_browser = (headers.get("User-Agent") or "").startswith(_BROWSER)
    return is_browser and all(headers.get(name) is None for name in _SET_BY_PROGRAMS)


@functools.lru_cache(maxsize=64)  # all requests of a client have the same host
def _name_of(host: str) -> str:
    """The name or address of a Host header without its port; empty if it has none."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").removesuffix(".") if match else ""


@functools.lru_cache(maxsize=64)
def _is_loopback(name: str) -> bool:
    """True if it names this machine, as every `*.localhost` does (RFC 6761, 6.3)."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _is_local(name: str) -> bool:
    """True if no other site can have that name."""
    return bool(name) and ("." not in name or _address(name) is not None)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
