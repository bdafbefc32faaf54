"""Addresses of endpoints that the command line or the environment gives."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.config.options import ADMIN, PROTOCOLS, SERVE
from gateway.config.problems import ConfigError
from gateway.config.values import expected, not_one_of
from gateway.net import unix
from gateway.net.listeners import CannotListen, split_address

BIND_OPTION: Final = "--bind"
FORM: Final = "PROTOCOL=HOST:PORT"
BIND_VARIABLE: Final = "PAIRGATE_BIND"  # several, separated by spaces


def with_binds(
    table: Mapping[str, Any], options: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """
    The configuration with these addresses, each `PROTOCOL=HOST:PORT`.

    The first one of a protocol replaces the address of the gateway's first endpoint with that
    protocol, and so on; an address without an endpoint left adds one. Addresses of the environment
    count for protocols that the options don't name.

    Raises:
        ConfigError: an address has another form, or an unknown protocol.
    """
    chosen = _by_protocol(BIND_VARIABLE, environ.get(BIND_VARIABLE, "").split())
    chosen |= _by_protocol(BIND_OPTION, options)
    endpoints = table.get("endpoints", [])
    if not chosen or not isinstance(endpoints, list):
        return dict(table)
    left = {protocol: list(addresses) for protocol, addresses in chosen.items()}
    changed: list[Any] = []
    for endpoint in endpoints:
        is_own = isinstance(endpoint, dict) and endpoint.get("process", SERVE) == SERVE
        protocol = endpoint.get("protocol") if is_own else None
        addresses = left.get(protocol) if isinstance(protocol, str) else None
        changed.append({**endpoint, "bind": addresses.pop(0)} if addresses else endpoint)
    changed += [
        {"protocol": protocol, "bind": address}
        for protocol, addresses in left.items()
        for address in addresses
    ]
    return {**table, "endpoints": changed}


def _by_protocol(source: str, texts: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        protocol, equals, address = text.partition("=")
        try:
            if not equals or protocol not in PROTOCOLS:
                wrong = not_one_of(PROTOCOLS, protocol) if equals else expected(FORM, text)
                raise ConfigError([f"{source}: {wrong}"])
            if protocol != ADMIN or unix.path_of(address) is None:
                split_address(address)
        except CannotListen as error:
            raise ConfigError([f"{source}: {error}"]) from error
        found.setdefault(protocol, []).append(address)
    return found
