"""The target of a command for people: the running gateway's endpoint, or a namespace directly."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import quote

import attrs
import trio

from gateway.app.assembly.wrapper_rows import Wrapping
from gateway.app.assembly.wrappers import wrapped, wrappers
from gateway.app.entities import make_entities
from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import enter, is_own, is_to_come, rights_of
from gateway.app.runtime import Runtime
from gateway.config.endpoints import (
    ADMIN,
    AMQP,
    RABBITMQ,
    STORAGE_QUEUE,
    address_of,
    is_loopback,
    requires_tls,
)
from gateway.config.kinds import options_class
from gateway.config.options import Config, Namespace
from gateway.config.problems import no_namespace
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.errors import NotAuthorized
from gateway.domain.health.abilities import Ability, remedy
from gateway.frontends.auth import EMULATOR_POLICY
from gateway.net import unix
from gateway.ports import Broker

KNOCK_SECONDS: Final = 2.0
_OTHERS: Final = frozenset({ADMIN, AMQP, RABBITMQ, STORAGE_QUEUE})  # protocols other than REST


Way = Callable[[], Awaitable[Namespace | None]]
"""Finds the running gateway, as a namespace; None if none runs."""


@attrs.frozen(kw_only=True)
class OpenNamespace:
    """An open namespace, and its name for people."""

    broker: Broker
    name: str
    namespace: Namespace  # the gateway, or the namespace itself
    home: str  # the namespace that the queues belong to
    running: bool  # whether it is a running gateway, not the namespace itself
    # True: no gateway answers at an endpoint of the configuration, so that the namespace is used.
    passes_by: bool = False
    # True: a gateway's Storage endpoint, which takes texts: other properties of a message would be
    # inside the text, where no receiver of another protocol expects them.
    takes_texts_only: bool = False


def cure_of_missing(target: OpenNamespace, name: str) -> str:
    """The cure for a missing queue, as the end of a sentence."""
    return (
        f"; run `pairgate create queue {name}`, or name it in queues = [...] of"
        f" [namespaces.{target.home}] and run `pairgate provision`"
    )


def beside(place: str, reason: str) -> str:
    """The reason, without the address with which a text about that place ends already."""
    head, colon, rest = reason.partition(": ")
    return rest if colon and place.rpartition(" ")[2] in head.split(", ") else reason


def cure_of_refusal(target: OpenNamespace, ability: Ability, error: NotAuthorized) -> str:
    """The cure for refused credentials or a missing right, as the end of a sentence."""
    cure = remedy(ability, error, rights_of(target.namespace))
    if not target.running:
        return f"; {cure}"
    return (
        f"; {cure}, or run `pairgate check`, if it isn't the gateway that refuses, but namespace"
        f" {target.home}"
    )


async def open_target(
    stack: AsyncExitStack,
    config: Config,
    runtime: Runtime,
    *,
    way: Way,
    namespace: str | None = None,
    read_with: Callable[..., Config] | None = None,
) -> OpenNamespace:
    """
    Open the namespace with that name; without a name the running gateway that `way` finds, else the
    primary. `read_with` reads the secrets that it needs; None: `config` has them.

    Raises:
        Failure: there is no such namespace, or its store is in use.
    """
    if namespace is not None and namespace not in config.namespaces:
        raise Failure(no_namespace(namespace, config.namespaces), ExitCode.WRONG)
    if namespace is None:
        gateway = await open_gateway(stack, config, runtime, way)
        if gateway is not None:
            return gateway
    if read_with is not None:
        config = read_with(f"namespaces.{namespace or config.home_name}", "extensions")
    chosen = _chosen(config, namespace)
    broker = await enter(stack, chosen, runtime)
    if is_own(chosen):
        await make_entities(broker, chosen.plan)
    wrapping = Wrapping(stack=stack, config=config, runtime=runtime)
    rows = [row for row in wrappers() if row.in_commands]
    seen, _ = await wrapped(broker, wrapping, rows)
    return OpenNamespace(
        broker=seen,
        name=f"namespace {chosen.name}",
        namespace=chosen,
        home=chosen.name,
        running=False,
        passes_by=namespace is None,
    )


async def open_gateway(
    stack: AsyncExitStack, config: Config, runtime: Runtime, way: Way
) -> OpenNamespace | None:
    """Open the running gateway that `way` finds; None if none runs."""
    gateway = await way()
    if gateway is None:
        return None
    broker = await enter(stack, gateway, runtime)
    return OpenNamespace(
        broker=broker,
        name=gateway.name,
        namespace=gateway,
        home=config.home.name,
        running=True,
        takes_texts_only=gateway.url.startswith(f"{STORAGE_QUEUE}:"),
    )


async def find_running(config: Config, port_offset: int = 0) -> str | None:
    """
    The address of the first listening REST endpoint without TLS; None if no such endpoint listens.
    """
    for endpoint in config.endpoints:
        address = None if requires_tls(endpoint) else address_of(endpoint, port_offset)
        if endpoint.protocol not in _OTHERS and address is not None and await answers(address):
            return address
    return None


def through(config: Config, address: str, right: Right) -> Namespace:
    """The running gateway as a namespace, with a configured key that has the right."""
    policy = policy_with(config, address, right)
    url = f"servicebus+http://{quote(policy.name, safe='')}@{address}"
    options = options_class(url)(key=policy.keys[0])
    return Namespace(name=f"the gateway at {address}", url=url, options=options)


def policy_with(config: Config, address: str, right: Right) -> AccessPolicy:
    """
    A configured policy with a key that has the right, preferably for all entities.

    Raises:
        Failure: there is no such policy; the text says for which operation the right was needed, at
            that address, and which policies have the right without a key.
    """
    granting = [policy for policy in config.access if policy.keys and policy.grants(right)]
    # a policy for all entities certainly suffices
    granting.sort(key=lambda policy: not policy.covers(None))
    policy = next(iter(granting), None if config.access else EMULATOR_POLICY)
    if policy is None:
        # A command shows its certificate in TLS, but its rights come from a key alone.
        keyless = [repr(each.name) for each in config.access if each.grants(right)]
        cure = f"; add one, or give a key to {' or '.join(keyless)}" if keyless else ""
        raise Failure(
            f"no [[access]] with a key has the right {right.value}, which this command needs at"
            f" {address}{cure}",
            ExitCode.WRONG,
        )
    return policy


def _chosen(config: Config, name: str | None) -> Namespace:
    """The namespace with that name; without a name the primary, or the only namespace."""
    return config.home if name is None else config.namespaces[name]


async def answers(address: str) -> bool:
    """True if a process listens at the address, which is one of the configuration."""
    if (path := unix.path_of(address)) is not None:
        return unix.is_answered(path)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        places = await trio.socket.getaddrinfo(host, int(port), type=trio.socket.SOCK_STREAM)
    except OSError:
        return False
    for family, _, _, _, place in places:
        if await _is_heard(family, place, is_here=is_loopback(host)):
            return True
    return False


async def _is_heard(family: int, place: tuple[Any, ...], *, is_here: bool) -> bool:
    """
    True if a process listens at that place.

    The connect itself says so, also if this process stood longer than the knock may last:
    `trio.open_tcp_stream` would lose a connection that was made meanwhile.
    """
    with trio.socket.socket(family) as knocking, trio.move_on_after(KNOCK_SECONDS):
        try:
            await knocking.connect(place)
        except OSError:
            return False
        return True
    return is_here  # where the kernel drops no connect but to a listener whose queue is full


async def enter_or_ask(
    stack: AsyncExitStack,
    config: Config,
    namespace: Namespace,
    runtime: Runtime,
    running: str | None,
) -> Broker | None:
    """
    The namespace, or the gateway that has its store open.

    None for the secondary of that gateway: its endpoint leads to the primary, and the gateway
    created the secondary's backlog queues when it started. None, too, for a store that a gateway
    has still to create, with everything it needs, if other namespaces remain to be provisioned.
    """
    if is_to_come(namespace) and not all(map(is_own, config.namespaces.values())):
        return None
    try:
        return await enter(stack, namespace, runtime)
    except Failure as failure:
        if failure.code is not ExitCode.TEMPORARY or running is None:
            raise
    if config.pairing is not None and config.pairing.primary != namespace.name:
        return None
    return await enter(stack, through(config, running, Right.MANAGE), runtime)
