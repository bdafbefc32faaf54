"""
Finds the adapter for a namespace by its URL.

A kind is imported when a URL names it: a process uses one or two kinds, and starts faster without
the others.
"""

import random
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import attrs

from gateway.brokers.entra.options import SERVICE_BUS_SCOPE, STORAGE_SCOPE, CredentialOptions
from gateway.brokers.meter import Meter
from gateway.domain.errors import InvalidRequest
from gateway.ports import Broker, Observer, WallClock
from gateway.store.local.hooks import LocalHooks

if TYPE_CHECKING:
    from gateway.brokers.entra.tokens import AccessTokens

ENTRY_POINTS: Final = "pairgate.namespaces"
"""The group in which a distribution names its kinds, each by the scheme of its URLs: a `Kind`."""

# Share of `connect_timeout` for which a send waits for an access token. The rest is for an honest
# error before the attempt ends.
_TOKEN_SHARE: Final = 0.8


class Adapter(Broker, Protocol):
    """
    A `Broker` that lives as long as its `async with` block, which yields the adapter itself.

    Entering opens local resources (a store, a connection pool) and doesn't wait for a peer; leaving
    closes them in order. `meter` counts the operations on the namespace.
    """

    @property
    def meter(self) -> Meter: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


@attrs.frozen(kw_only=True)
class BrokerDependencies:
    """The values that an adapter gets from the app."""

    clock: WallClock
    rng: random.Random
    observer: Observer
    # The expiry of each credential's token, by the namespace's name. Each credential adds its own.
    token_expiries: dict[str, Callable[[], datetime | None]] = attrs.field(factory=dict)
    hooks: LocalHooks = attrs.field(factory=LocalHooks)  # of a store of this process


@attrs.frozen(kw_only=True)
class Address:
    """
    The address of a namespace: its configured name, and the parts of its URL.

    `options` is of the class that the kind names, or None for the defaults.
    """

    name: str
    scheme: str
    rest: str  # of the URL, after the scheme's colon
    options: Any
    dependencies: BrokerDependencies


@attrs.frozen(kw_only=True)
class Kind:
    """
    A kind of namespace: the class of its options, and how to build its adapter.

    `cannot` names the operations that it can't do, as far as known without asking the namespace,
    each with its substitute.
    """

    options: type
    make: Callable[[Address], Adapter]
    cannot: Mapping[str, str] = attrs.field(factory=dict)


def _memory() -> Kind:
    from gateway.store.local.broker import LocalOptions
    from gateway.store.local.memory import MemoryBroker

    def make(address: Address) -> Adapter:
        if address.rest:
            raise InvalidRequest("URL of a namespace: nothing expected after 'memory:'")
        dependencies = address.dependencies
        hooks = attrs.evolve(dependencies.hooks, observer=dependencies.observer)
        return MemoryBroker(dependencies.clock, dependencies.rng, address.options, hooks)

    return Kind(options=LocalOptions, make=make)


def _embedded() -> Kind:
    from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
    from gateway.store.embedded.files import Disk, this_boot

    def make(address: Address) -> Adapter:
        path = Path(address.rest)
        if not path.name:
            raise InvalidRequest("URL of a namespace: a file's path expected after 'embedded:'")
        dependencies = address.dependencies
        hooks = attrs.evolve(dependencies.hooks, observer=dependencies.observer)
        return EmbeddedBroker(
            path,
            dependencies.clock,
            dependencies.rng,
            address.options,
            hooks,
            Disk(boot=this_boot),
        )

    return Kind(options=EmbeddedOptions, make=make)


def _servicebus_rest() -> Kind:
    from gateway.brokers.servicebus.broker import ServiceBusRestOptions, open_namespace

    def make(address: Address) -> Adapter:
        options = address.options or ServiceBusRestOptions()
        access = _access_tokens(address, SERVICE_BUS_SCOPE)
        return open_namespace(
            address.scheme, address.rest, options, address.dependencies.clock, access
        )

    return Kind(options=ServiceBusRestOptions, make=make)


def _amqp() -> Kind:
    from gateway.brokers.amqp.options import AmqpNamespaceOptions

    def make(address: Address) -> Adapter:
        from gateway.brokers.amqp.broker import open_namespace

        dependencies, options = address.dependencies, address.options or AmqpNamespaceOptions()
        return open_namespace(
            address.scheme, address.rest, options, dependencies.clock, dependencies.rng
        )

    cannot = {"topics": "queues only; the broker decides what any other address means"}
    return Kind(options=AmqpNamespaceOptions, make=make, cannot=cannot)


def _servicebus() -> Kind:
    from gateway.brokers.amqp.options import ServiceBusOptions

    def make(address: Address) -> Adapter:
        from gateway.brokers.amqp.servicebus import open_namespace

        dependencies, options = address.dependencies, address.options or ServiceBusOptions()
        access = _access_tokens(address, SERVICE_BUS_SCOPE)
        return open_namespace(address.rest, options, dependencies.clock, dependencies.rng, access)

    return Kind(options=ServiceBusOptions, make=make)


def _rabbitmq() -> Kind:
    from gateway.brokers.rabbitmq.broker import CANNOT, open_namespace
    from gateway.brokers.rabbitmq.options import RabbitmqOptions

    def make(address: Address) -> Adapter:
        dependencies, options = address.dependencies, address.options or RabbitmqOptions()
        return open_namespace(
            address.scheme, address.rest, options, dependencies.clock, dependencies.rng
        )

    return Kind(options=RabbitmqOptions, make=make, cannot=CANNOT)


def _storage_queue() -> Kind:
    from gateway.brokers.storage_queue.broker import CANNOT, open_namespace
    from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions

    def make(address: Address) -> Adapter:
        dependencies, options = (
            address.dependencies,
            address.options or StorageQueueNamespaceOptions(),
        )
        access = _access_tokens(address, STORAGE_SCOPE)
        return open_namespace(address.rest, options, dependencies.clock, dependencies.rng, access)

    return Kind(options=StorageQueueNamespaceOptions, make=make, cannot=CANNOT)


def _access_tokens(address: Address, scope: str) -> "AccessTokens | None":
    """The tokens of the namespace's credential, if it is accessed by one."""
    credential = getattr(address.options, "credential", None)
    if credential is None:
        return None
    timeout = address.options.connect_timeout
    return access_tokens(credential, scope, address.name, timeout, address.dependencies)


def access_tokens(
    credential: CredentialOptions,
    scope: str,
    name: str,
    connect_timeout: float,
    dependencies: BrokerDependencies,
) -> "AccessTokens":
    """
    The tokens of a credential, not yet open: of `scope`, unless it names another one. `name`: of
    the namespace, in events.
    """
    from gateway.brokers.entra.requesting import TokenRequests
    from gateway.brokers.entra.tokens import AccessTokens

    tokens = AccessTokens(
        request=TokenRequests(options=credential, scope=credential.scope or scope).request,
        namespace=name,
        clock=dependencies.clock,
        rng=dependencies.rng,
        observer=dependencies.observer,
        patience=_TOKEN_SHARE * connect_timeout,
    )
    dependencies.token_expiries[name] = tokens.expires
    return tokens


KINDS: Final[Mapping[str, Callable[[], Kind]]] = {
    "memory": _memory,
    "embedded": _embedded,
    "rabbitmq": _rabbitmq,
    "rabbitmqs": _rabbitmq,
    "servicebus+http": _servicebus_rest,
    "servicebus+https": _servicebus_rest,
    "servicebus": _servicebus,
    "amqp": _amqp,
    "amqps": _amqp,
    "storage-queue": _storage_queue,
}


def options_class(url: str) -> type:
    """
    The class of the options for this URL's kind.

    Raises:
        InvalidRequest: no such kind exists.
    """
    return _kind(url).options


def cannot(url: str) -> Mapping[str, str]:
    """The operations that a namespace of this URL's kind can't do. Raises as `options_class`."""
    return _kind(url).cannot


def build(url: str, name: str, dependencies: BrokerDependencies, options: Any = None) -> Adapter:
    """
    Build the adapter for a namespace, not yet open.

    Raises:
        InvalidRequest: no such kind exists, or the rest of the URL is invalid for it.
    """
    kind = _kind(url)
    scheme, _, rest = url.partition(":")
    return kind.make(
        Address(
            name=name, scheme=scheme.lower(), rest=rest, options=options, dependencies=dependencies
        )
    )


def _kind(url: str) -> Kind:
    scheme, colon, _ = url.partition(":")
    kind = KINDS.get(scheme.lower()) if colon else None
    if kind is not None:
        return kind()
    further = entry_points(group=ENTRY_POINTS)
    for each in further.select(name=scheme.lower()) if colon else ():
        found: Kind = each.load()
        return found
    # The whole URL isn't named: it may contain a secret.
    names = ", ".join([*KINDS, *sorted(each.name for each in further)])
    raise InvalidRequest(f"URL of a namespace: one of {names} expected")
