"""Endpoints of a running gateway that a command can use, each as a namespace."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import trust_of
from gateway.app.operations.targets import (
    OpenNamespace,
    answers,
    open_target,
    policy_with,
)
from gateway.app.runtime import Runtime
from gateway.brokers.servicebus.peer import MAX_DELIVERIES
from gateway.config.endpoints import (
    AMQP,
    ONE_PORT,
    STORAGE_QUEUE,
    Endpoint,
    address_of,
)
from gateway.config.kinds import options_class
from gateway.config.options import Config, Namespace
from gateway.domain.access import Right
from gateway.domain.storage_queue import EMULATOR_ACCOUNT
from gateway.net.tls import ClientTlsOptions


@attrs.frozen(kw_only=True)
class NamespaceChoice:
    """Selects the running gateway, or the namespace with that name."""

    namespace: str | None = None
    port_offset: int = 0
    # For the gateway's endpoint. Without `ca`, the endpoint's own certificate in the configuration
    # is trusted.
    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)
    # Reads the configuration again with the secrets of these tables alone, as soon as they are
    # used; None: all secrets are read.
    read_with: Callable[..., Config] | None = None


async def open_place(
    stack: AsyncExitStack, config: Config, runtime: Runtime, place: NamespaceChoice, right: Right
) -> OpenNamespace:
    """Open the namespace at that place with a key that has the right. Raises as `open_target`."""
    way = partial(
        find_way_in,
        config,
        right,
        port_offset=place.port_offset,
        tls=place.tls,
        read_with=place.read_with,
    )
    return await open_target(
        stack, config, runtime, namespace=place.namespace, way=way, read_with=place.read_with
    )


@attrs.frozen(kw_only=True)
class _ListeningEndpoint:
    """A listening endpoint."""

    config: Config
    right: Right
    address: str
    trust: ClientTlsOptions | None  # None: plain text

    def policy(self) -> tuple[str, str]:
        """Name and key of the policy."""
        policy = policy_with(self.config, self.address, self.right)
        return policy.name, policy.keys[0]

    def namespace(self, url: str, key: str, **options: Any) -> Namespace:
        options["key"] = key
        if self.trust is not None:
            options["tls"] = self.trust
        name = f"the gateway at {self.address}"
        return Namespace(name=name, url=url, options=options_class(url)(**options))


def _rest(found: _ListeningEndpoint) -> Namespace:
    name, key = found.policy()
    scheme = "http" if found.trust is None else "https"
    url = f"servicebus+{scheme}://{quote(name, safe='')}@{found.address}"
    # The gateway is no stranger, and its messages may be as large as `[claims]` allow.
    return found.namespace(url, key, max_message_size=MAX_DELIVERIES)


def _amqp(found: _ListeningEndpoint) -> Namespace:
    name, key = found.policy()
    plain = ";UseDevelopmentEmulator=true" if found.trust is None else ""
    url = f"servicebus:Endpoint=sb://{found.address}/;SharedAccessKeyName={name}{plain}"
    return found.namespace(url, key)


def _storage(found: _ListeningEndpoint) -> Namespace:
    account = next((each for each in found.config.accounts if each.keys), EMULATOR_ACCOUNT)
    scheme = "http" if found.trust is None else "https"
    endpoint = f"{scheme}://{found.address}/{account.name}"
    url = f"storage-queue:AccountName={account.name};QueueEndpoint={endpoint}"
    return found.namespace(url, b64encode(account.keys[0]).decode(), keep_ids=False)


# In order of preference: the first protocols preserve most of a message.
_KINDS: Final[Mapping[str, Callable[[_ListeningEndpoint], Namespace]]] = {
    ONE_PORT: _rest,
    "service-bus-http": _rest,
    AMQP: _amqp,
    STORAGE_QUEUE: _storage,
}


async def find_way_in(
    config: Config,
    right: Right,
    *,
    port_offset: int = 0,
    tls: ClientTlsOptions,
    prefers: str | None = None,
    read_with: Callable[..., Config] | None = None,
) -> Namespace | None:
    """
    The first listening endpoint, those of the protocol `prefers` before all others, Service Bus
    before Storage, plain text before TLS; None if none listens. An endpoint that can't be received
    from isn't used to receive, and topics are created through REST only. `read_with`: as of
    `NamespaceChoice`.

    Raises:
        Failure: no configured policy has the right, or each listening endpoint demands a client
            certificate and `tls` has none.
    """
    kinds, demanding = list(_KINDS), None
    for endpoint in sorted(
        (each for each in config.endpoints if each.protocol in kinds),
        key=lambda each: (
            each.protocol != prefers,
            kinds.index(each.protocol),
            trust_of(each, tls) is not None,
        ),
    ):
        address = address_of(endpoint, port_offset)
        if address is None or not _fits(config, endpoint, right) or not await answers(address):
            continue
        trust = trust_of(endpoint, tls)
        if trust is not None and trust.certificate is None and _demands_certificate(endpoint):
            demanding = address
            continue
        if read_with is not None:
            config = read_with("access", "accounts")
        found = _ListeningEndpoint(config=config, right=right, address=address, trust=trust)
        return _KINDS[endpoint.protocol](found)
    if demanding is not None:
        raise Failure(
            f"the gateway at {demanding} demands a client certificate: name it with --cert and"
            " --key, or use a --namespace directly",
            ExitCode.WRONG,
        )
    return None


def _demands_certificate(endpoint: Endpoint) -> bool:
    return endpoint.tls is not None and endpoint.tls.client_ca is not None


def _fits(config: Config, endpoint: Endpoint, right: Right) -> bool:
    if endpoint.protocol == STORAGE_QUEUE:
        # A Storage endpoint has no sessions and no dead letters.
        has_key = any(account.keys for account in config.accounts)
        known = has_key if config.accounts else config.accepts_well_known_key(endpoint)
        return right is Right.SEND and known
    if endpoint.protocol == AMQP:
        return right is not Right.MANAGE
    return True
