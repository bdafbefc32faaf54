"""
A namespace's address in a normal form, so that two configurations agree on whether it is the same.
"""

import ipaddress
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from gateway.config.options import Namespace
from gateway.config.places import location_of

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
