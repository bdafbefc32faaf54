"""
The places of the configured namespaces: hosts and stores, their addresses in a normal form, and the
conflicts of namespaces that share them.
"""

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from gateway.brokers.entra.options import CredentialOptions
from gateway.config.endpoints import STORAGE_QUEUE, is_loopback
from gateway.config.options import Namespace
from gateway.config.problems import is_installed
from gateway.domain.errors import InvalidRequest, needs_extra
from gateway.wire.http.hosts import parse_server_url
from gateway.wire.servicebus.connection_string import parse_connection_string
from gateway.wire.storage_queue.connection_string import parse_storage_connection

_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE | re.ASCII)
_NETWORK: Final = "://"
_CONNECTION_STRINGS: Final = ("servicebus:", "storage-queue:")
_OF_CLUSTERS: Final = ("rabbitmq:", "rabbitmqs:", "amqp:", "amqps:")
_OWN: Final = ("embedded:", "memory:")
# The kinds of namespaces whose queues may require sessions, and show their messages.
HAVE_SESSIONS: Final = frozenset({"embedded", "memory", "servicebus"})


def is_own_url(url: str) -> bool:
    """True if a process that opens the namespace stores it itself."""
    return url.startswith(_OWN)


def label_of(url: str) -> str:
    """
    The first DNS label of the URL's host; empty if the host isn't a name of several labels. Also
    empty if there are several hosts, because their order must not decide the pair's label.
    """
    hosts = hosts_of(url)
    host = hosts[0] if len(hosts) == 1 else ""
    first, dot, _ = host.partition(".")
    return first if dot and _DNS_LABEL.fullmatch(first) and not _address(host) else ""


def location_of(namespace: Namespace) -> str:
    """The URL of the namespace's location; for a connection string, its endpoint."""
    scheme, _, rest = namespace.url.partition(":")
    if scheme not in {"servicebus", "storage-queue"}:
        return namespace.url
    text = getattr(namespace.options, "connection_string", "") or rest
    try:
        if scheme == "storage-queue":
            found = parse_storage_connection(text)
            return f"{found.origin}{found.path}"
        return f"sb://{parse_connection_string(text).authority}"
    except InvalidRequest:  # reported when the namespace is opened
        return namespace.url


def is_plain(namespace: Namespace) -> bool:
    """True if the namespace is reached without TLS, over a network."""
    scheme, _, rest = namespace.url.partition(":")
    if scheme != "servicebus":
        return location_of(namespace).startswith(("http://", "servicebus+http://"))
    text = getattr(namespace.options, "connection_string", "") or rest
    try:
        return parse_connection_string(text).plain
    except InvalidRequest:  # reported when the namespace is opened
        return False


def authority_of(namespace: Namespace) -> str:
    """
    Host and port as configured, several separated by commas; empty for a namespace of this process.
    """
    _, network, rest = location_of(namespace).partition(_NETWORK)
    return rest.partition("/")[0].rpartition("@")[2] if network else ""


def hosts_of(url: str) -> tuple[str, ...]:
    """The namespace's hosts; empty if it is in this process."""
    if _NETWORK not in url:
        return ()
    try:
        return tuple(host.name for host in parse_server_url(url).hosts)
    except InvalidRequest:  # reported with the key
        return ()


def problems_of_credential(
    options: CredentialOptions, *, is_plain: bool, hosts: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each error of a credential for those hosts."""
    yield from (f".{problem}" for problem in options.problems())
    if is_plain and not all(map(is_loopback, hosts)):
        yield ": needs TLS, because an access token in plain text can be read on the way"
    if not is_installed("azure.identity"):
        yield f": {needs_extra('entra')}"


def absolute(url: str, folder: Path, own: str = "embedded") -> str:
    """The URL with its scheme in lower case; the path of one of `own` is placed below `folder`."""
    scheme, _, rest = url.partition(":")
    if scheme.lower() == own and rest:
        rest = str(folder / rest)
    return f"{scheme.lower()}:{rest}"


def problems_of_hosts(name: str, namespace: Namespace) -> Iterator[str]:
    """Return a line for each error in its lists of hosts; each begins with the path of a key."""
    urls = {"url": namespace.url, "management": getattr(namespace.options, "management", "")}
    for key, url in urls.items():
        if _NETWORK not in url or url.startswith(_CONNECTION_STRINGS):
            continue
        try:
            hosts = parse_server_url(url).hosts
        except InvalidRequest as error:
            yield f"namespaces.{name}.{key}: {error}"
            continue
        if len(hosts) > 1 and key == "url" and not url.startswith(_OF_CLUSTERS):
            kinds = ", ".join(kind.removesuffix(":") for kind in _OF_CLUSTERS)
            yield f"namespaces.{name}.url: one host expected; several are for {kinds}"


def user_of(url: str) -> str:
    """The user of a URL, and its password, which must not be there."""
    return _authority(url).rpartition("@")[0]


def _authority(url: str) -> str:
    """The authority of a URL. `urlsplit` refuses a list of hosts that contains IPv6 addresses."""
    return url.partition(_NETWORK)[2].partition("/")[0]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# By scheme: the family of protocols that share one address, and the default ports.
_FAMILIES: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = MappingProxyType(
    {
        "servicebus+http": ("servicebus", (80,)),
        "servicebus+https": ("servicebus", (443,)),
        "sb": ("servicebus", (5671, 5672)),
        "amqp": ("amqp", (5672,)),
        "amqps": ("amqp", (5671,)),
        "rabbitmq": ("amqp", (5672,)),
        "rabbitmqs": ("amqp", (5671,)),
        "http": ("storage", (80,)),
        "https": ("storage", (443,)),
    }
)
_LOOPBACK: Final = "localhost"


def addresses_of(namespace: Namespace) -> tuple[str, ...]:
    """
    The normalized forms of a namespace's address: the whole address, and for a URL with several
    hosts each host's address after it.

    Case, credentials, the default port, a dot at the end of a host and the names of this machine's
    loopback make no difference.
    """
    location = location_of(namespace)
    scheme, _, rest = location.partition(":")
    if not rest.startswith("//"):
        own = {"embedded": os.path.realpath(rest), "memory": namespace.name}
        return (f"{scheme}:{own.get(scheme, rest)}",)
    family, usual = _FAMILIES.get(scheme.lower(), (scheme.lower(), ()))
    authority, _, path = rest[2:].partition("/")
    path = unquote(path.partition("?")[0]).strip("/")
    hosts = authority.rpartition("@")[2].split(",")
    places = sorted({_place(host.strip(), usual) for host in hosts})
    end = f"/{path}" if path else ""
    whole = f"{family}://{','.join(places)}{end}"
    each = [f"{family}://{place}{end}" for place in places]
    return tuple(dict.fromkeys([whole, *each]))


def _place(text: str, usual: tuple[int, ...]) -> str:
    host, port = _split(text.lower())
    host = _host(host)
    return host if port in {"", *map(str, usual)} else f"{host}:{port}"


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port


def _host(name: str) -> str:
    name = name.rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return _LOOPBACK if name == _LOOPBACK or name.endswith(f".{_LOOPBACK}") else name
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if address.is_loopback:
        return _LOOPBACK
    return f"[{address}]" if address.version == 6 else str(address)


def scheme_of(namespace: Namespace) -> str:
    """The scheme of its URL, in lower case."""
    return namespace.url.partition(":")[0].lower()


def has_sessions(namespace: Namespace) -> bool:
    """True if queues of the namespace may require sessions."""
    return scheme_of(namespace) in HAVE_SESSIONS


def keeps_order(namespace: Namespace) -> bool:
    """True if a receiver gets messages of a queue in the order in which they were sent."""
    return scheme_of(namespace) != STORAGE_QUEUE
