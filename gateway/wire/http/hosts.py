"""
URLs of servers that may have several hosts: `scheme://user:password@a:5672,b,[::1]:5673/path`.

The hosts of a cluster are a list with commas, as clients of MongoDB, PostgreSQL and Kafka have it;
each has its own port, or the default port. `urllib` supports a single host only.
"""

import re
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import attrs

from gateway.domain.errors import InvalidRequest

_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[^\[\]:@\s]+))(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)
_PARTS: Final = re.compile(
    r"(?P<scheme>[^:/?#]*):(?://(?P<authority>[^/?#]*))?(?P<path>[^?#]*)(?P<more>.*)", re.DOTALL
)
_MOST_PORT: Final = 65535  # of TCP


@attrs.frozen(kw_only=True)
class Host:
    """A host as written. Without a port, the scheme's default port is meant."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"


@attrs.frozen(kw_only=True)
class ServerUrl:
    """The parts of such a URL; `more` begins with `?` or `#`."""

    scheme: str
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    hosts: tuple[Host, ...] = ()
    path: str = ""  # still quoted
    more: str = ""


def parse_server_url(text: str) -> ServerUrl:
    """
    Parse such a URL; hosts are in lower case.

    Raises:
        InvalidRequest: a host is missing, malformed or given twice. The text repeats nothing of the
            URL, which may contain a secret: a port may be the password of a URL without a host.
    """
    match = _PARTS.fullmatch(text)
    authority = match["authority"] if match is not None else None
    if match is None or authority is None:
        raise InvalidRequest("SCHEME://HOST[:PORT][,HOST[:PORT]...] expected")
    login, _, listed = authority.rpartition("@")
    user, _, password = login.partition(":")
    return ServerUrl(
        scheme=match["scheme"].lower(),
        user=unquote(user),
        password=unquote(password),
        hosts=_hosts(listed.split(",")),
        path=match["path"],
        more=match["more"],
    )


def _hosts(texts: list[str]) -> tuple[Host, ...]:
    found: list[Host] = []
    for number, text in enumerate(texts, 1):
        which = f"host {number} of {len(texts)}" if len(texts) > 1 else "host"
        match = _HOST.fullmatch(text)
        if match is None:
            raise InvalidRequest(f"{which}: HOST[:PORT] expected, an IPv6 address in brackets")
        port = None if match["port"] is None else int(match["port"])
        if port is not None and not 0 < port <= _MOST_PORT:
            raise InvalidRequest(f"{which}: a port from 1 to {_MOST_PORT} expected")
        host = Host(name=(match["address"] or match["name"]).lower(), port=port)
        if host in found:
            raise InvalidRequest(f"{which}: is given twice")
        found.append(host)
    return tuple(found)


def split_url(text: str) -> SplitResult:
    """
    The parts of a URL, whose `port` can be read.

    Raises:
        ValueError: host or port isn't valid. The error shows nothing of the text: where a password
            has a slash, its start is taken for the port.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise ValueError("no valid host and port") from None
    return parts
