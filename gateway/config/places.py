"""
The places of the configured namespaces: hosts and stores, and the conflicts of namespaces that
share them.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gateway.brokers.entra.options import CredentialOptions
from gateway.config.options import Namespace
from gateway.config.problems import is_installed
from gateway.domain.errors import InvalidRequest, needs_extra
from gateway.net import unix
from gateway.wire.http.hosts import parse_server_url
from gateway.wire.servicebus.connection_string import parse_connection_string
from gateway.wire.storage_queue.connection_string import parse_storage_connection

_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE | re.ASCII)
_NETWORK: Final = "://"
_CONNECTION_STRINGS: Final = ("servicebus:", "storage-queue:")
_OF_CLUSTERS: Final = ("rabbitmq:", "rabbitmqs:", "amqp:", "amqps:")
_OWN: Final = ("embedded:", "memory:")


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


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def host_of_bind(bind: str) -> str:
    """The host of an address to listen on; a Unix socket is on this machine."""
    return "localhost" if unix.path_of(bind) else bind.rpartition(":")[0].strip("[]")


def moved(bind: str, port_offset: int) -> str:
    """
    The address with its port moved; port 0 stands for any free port and stays 0. A Unix socket has
    the number at the end of its path.
    """
    if unix.path_of(bind) is not None:
        return f"{bind}+{port_offset}" if port_offset else bind
    host, colon, port = bind.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) == 0:
        return bind
    return f"{host}{colon}{int(port) + port_offset}"


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
