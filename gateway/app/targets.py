"""Where a command for people goes: through the running gateway's endpoint, or straight in."""

from base64 import b64encode
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import quote, urlsplit

import attrs
import trio

from gateway.app.claiming import with_claims
from gateway.app.endpoints import moved
from gateway.app.entities import make_entities
from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import enter, is_own
from gateway.app.outside import Outside
from gateway.brokers.registry import options_class
from gateway.config.options import (
    ADMIN,
    AMQP,
    ONE_PORT,
    STORAGE_QUEUE,
    Config,
    Endpoint,
    Namespace,
)
from gateway.domain.access import AccessPolicy, Right
from gateway.frontends.auth import EMULATOR_POLICY
from gateway.net.dialing import Place
from gateway.net.tls import client_context
from gateway.ports import Broker

ADMIN_PORT: Final = 9640  # where a URL says none
KNOCK_SECONDS: Final = 2.0
_OTHERS: Final = frozenset({ADMIN, AMQP, STORAGE_QUEUE})  # than those that speak REST


@attrs.frozen(kw_only=True)
class Target:
    """An open namespace, and how people would call it."""

    broker: Broker
    name: str
    home: str  # the namespace where the queues belong
    running: bool  # it is a gateway that runs, not the namespace itself


async def open_target(
    stack: AsyncExitStack,
    config: Config,
    outside: Outside,
    *,
    right: Right,
    namespace: str | None = None,
    port_offset: int = 0,
) -> Target:
    """
    Open the namespace of that name; without one the running gateway, else the primary.

    Raises:
        Failure: there is no such namespace, or its store is in use.
    """
    if namespace is not None and namespace not in config.namespaces:
        known = ", ".join(sorted(config.namespaces))
        raise Failure(f"there is no namespace {namespace!r}; there are {known}", ExitCode.WRONG)
    chosen = _chosen(config, namespace)
    if namespace is None:
        gateway = await open_gateway(stack, config, outside, right=right, port_offset=port_offset)
        if gateway is not None:
            return gateway
    broker = await enter(stack, chosen, outside)
    if is_own(chosen):
        await make_entities(broker, chosen.plan)
    seen, _ = await with_claims(stack, config, broker, outside)
    return Target(broker=seen, name=f"namespace {chosen.name}", home=chosen.name, running=False)


async def open_gateway(
    stack: AsyncExitStack, config: Config, outside: Outside, *, right: Right, port_offset: int = 0
) -> Target | None:
    """Open what `find_running` finds; None: nothing runs."""
    address = await find_running(config, port_offset)
    if address is None:
        return None
    gateway, home = through(config, address, right), _chosen(config, None)
    broker = await enter(stack, gateway, outside)
    return Target(broker=broker, name=gateway.name, home=home.name, running=True)


async def find_running(config: Config, port_offset: int = 0) -> str | None:
    """The address of the first endpoint for REST without TLS that listens; None: there is none."""
    await trio.lowlevel.checkpoint()
    for endpoint in config.endpoints:
        address = _connectable(endpoint, port_offset)
        if endpoint.protocol not in _OTHERS and address is not None and await _answers(address):
            return address
    return None


async def find_admin(config: Config, port_offset: int = 0) -> str | None:
    """The address of the first admin endpoint without TLS that listens; None: there is none."""
    await trio.lowlevel.checkpoint()
    for endpoint in config.endpoints:
        address = _connectable(endpoint, port_offset)
        if endpoint.protocol == ADMIN and address is not None and await _answers(address):
            return address
    return None


def admin_place(url: str, named: str) -> Place:
    """
    Where an admin endpoint is.

    Raises:
        Failure: the URL is none; the text begins with who has `named` it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or ADMIN_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}:
        raise Failure(f"{named}: http(s)://HOST[:PORT] expected", ExitCode.WRONG)
    tls = client_context() if parts.scheme == "https" else None
    return Place(host=parts.hostname, port=port, tls=tls)


def admin_authorization(config: Config, address: str, right: Right) -> str | None:
    """
    What the admin endpoint takes from who has that right; None where it asks for nothing.

    Raises:
        Failure: no policy of the configuration has the right.
    """
    if not config.access:
        return None
    policy = _policy(config, address, right)
    return f"Basic {b64encode(f'{policy.name}:{policy.keys[0]}'.encode()).decode()}"


def through(config: Config, address: str, right: Right) -> Namespace:
    """The running gateway as a namespace, with a key of the configuration that has the right."""
    policy = _policy(config, address, right)
    url = f"servicebus+http://{quote(policy.name, safe='')}@{address}"
    options = options_class(url)(key=policy.keys[0])
    return Namespace(name=f"the gateway at {address}", url=url, options=options)


def _policy(config: Config, address: str, right: Right) -> AccessPolicy:
    granting = [policy for policy in config.access if policy.grants(right)]
    granting.sort(key=lambda policy: not policy.covers(None))  # one for everything is sure to fit
    policy = next(iter(granting), None if config.access else EMULATOR_POLICY)
    if policy is None:
        raise Failure(
            f"no [[access]] has the right {right.value}, which this needs at {address}",
            ExitCode.WRONG,
        )
    return policy


def _chosen(config: Config, name: str | None) -> Namespace:
    """The namespace of that name; without one the primary, or the only one."""
    return config.home if name is None else config.namespaces[name]


def _connectable(endpoint: Endpoint, port_offset: int) -> str | None:
    host, _, port = moved(endpoint.bind, port_offset).rpartition(":")
    if port == "0" or _takes_only_tls(endpoint):
        return None
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"{everywhere.get(host, host)}:{port}"


def _takes_only_tls(endpoint: Endpoint) -> bool:
    tls = endpoint.tls
    return tls is not None and (endpoint.protocol != ONE_PORT or tls.client_ca is not None)


async def _answers(address: str) -> bool:
    await trio.lowlevel.checkpoint()
    host, _, port = address.rpartition(":")
    with trio.move_on_after(KNOCK_SECONDS):
        try:
            stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
        except OSError:
            return False
        await stream.aclose()
        return True
    return False
