"""The endpoints and queues that the command line or the environment gives, beside the file."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.config.endpoints import ADMIN, PROTOCOLS, SERVE
from gateway.config.errors import ConfigError
from gateway.config.values import expected, not_one_of
from gateway.net import unix

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
    if not texts:
        return {}
    # Imported here: a probe, which is given no addresses, starts without Trio.
    from gateway.net.listeners import CannotListen, split_address

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


QUEUE_OPTION: Final = "--queue"


def with_queues(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """
    The configuration with these queues in the pair's primary, or in the first namespace of a
    gateway without a pair. A queue that it has already isn't added again.

    Raises:
        ConfigError: that namespace isn't a store of the gateway itself.
    """
    if not names:
        return dict(table)
    # Imported here: a probe, which is given no queues, starts without the kinds of namespaces.
    from gateway.config.places import is_own_url

    namespaces, pairing = _table_of(table, "namespaces"), _table_of(table, "pairing")
    name = pairing.get("primary") or next(iter(namespaces), "")
    namespace = _table_of(namespaces, str(name))
    if not namespace or not isinstance(namespace.get("queues", []), list):
        return dict(table)  # the check of the whole table says what is wrong with it
    if not is_own_url(str(namespace.get("url", ""))):
        raise ConfigError(  # without the URL: a secret may be in it, which no check has refused yet
            [
                f"{QUEUE_OPTION}: a namespace of the gateway's own (embedded:PATH) expected;"
                f" `pairgate create queue` makes one in namespace {name}"
            ]
        )
    queues = list(namespace.get("queues", []))
    for each in names:
        if each.lower() not in {str(queue).lower() for queue in queues}:
            queues.append(each)
    return {**table, "namespaces": {**namespaces, name: {**namespace, "queues": queues}}}


def _table_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key)
    return found if isinstance(found, dict) else {}
