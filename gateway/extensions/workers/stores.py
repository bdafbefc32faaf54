"""
The parent's stores (`embedded:`, `memory:`, the spool) as namespaces of its workers.

To the workers, each store is another Pairgate, at a Unix socket, over AMQP and for management over
HTTP.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from gateway.app.assembly.opening import SPOOL, Opening, spool_namespace
from gateway.app.assembly.parts import Parts
from gateway.app.namespaces import is_own, make_abilities, register
from gateway.app.runtime import Runtime
from gateway.app.servers import Makings, Server, make_server
from gateway.brokers.amqp.servicebus import open_socket
from gateway.config.endpoints import ONE_PORT
from gateway.config.kinds import Adapter
from gateway.config.options import Config, Namespace, Pairing
from gateway.fair_budget import FairBudget
from gateway.frontends.auth import EMULATOR_POLICY, Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.web_guard import WebGuard
from gateway.ports import Broker
from gateway.store.local.hooks import LocalHooks

# No other user can open the folder of the sockets, so a well-known key is enough.
CONNECTION: Final = (
    f"Endpoint=sb://localhost;SharedAccessKeyName={EMULATOR_POLICY.name};"
    f"SharedAccessKey={EMULATOR_POLICY.keys[0]};UseDevelopmentEmulator=true"
)
# Above any limit of a store, so that the store itself decides.
_LARGEST: Final = 512 * 1024 * 1024
_MANY: Final = 1000


def names_of(config: Config) -> list[str]:
    """The names of the parent's stores that workers use."""
    pairing = config.pairing
    used = [config.home.name] if pairing is None else [pairing.primary, pairing.secondary]
    used += config.further_namespaces
    stores = [name for name in used if is_own(config.namespaces[name])]
    return stores if pairing is None or pairing.spool is None else [*stores, SPOOL]


def paths_of(config: Config, folder: Path) -> Mapping[str, Path]:
    """The socket of each of the parent's stores, by its name."""
    return {name: folder / f"store{index}" for index, name in enumerate(names_of(config))}


@attrs.frozen
class StoreDoor:
    """A store's socket, and its server, for which the leases must run."""

    path: Path
    server: Server
    leases: Leases


def store_doors(
    config: Config, parts: Parts, runtime: Runtime, folder: Path
) -> Iterator[StoreDoor]:
    """The servers of all of the parent's stores."""
    amqp = attrs.evolve(
        config.limits.amqp,
        max_message_size=_LARGEST,
        max_requests=_MANY,
        # Workers have many clients, and begin a transaction here only to commit it.
        max_transactions=_MANY,
        max_transaction_work=_LARGEST,
        max_transaction_bytes=_LARGEST,
    )
    memory = config.limits.http.max_body_memory
    limits = attrs.evolve(config.limits, amqp=amqp)
    config = attrs.evolve(config, limits=limits, access=(), accounts=())
    for name, path in paths_of(config, folder).items():
        broker = _store(parts, name)
        leases = Leases(broker, runtime.now, config.limits.leases)
        authorizer = Authorizer((), wall_clock=runtime.now, accepts_well_known_key=True)
        guard = WebGuard(is_open=lambda: False)
        makings = Makings(
            config=config,
            parts=attrs.evolve(parts, broker=broker, leases=leases, own_leases=leases),
            runtime=runtime,
            authorizer=authorizer,
            accounts=Accounts((), wall_clock=runtime.now, accepts_well_known_key=True),
            guard=guard,
            of_websockets=guard,
            budget=FairBudget(memory, memory),
        )
        yield StoreDoor(path, make_server(ONE_PORT, makings, None), leases)


def _store(parts: Parts, name: str) -> Broker:
    if name != SPOOL:
        return parts.namespaces[name]
    assert parts.spool is not None, "it is configured"
    return parts.spool.spool


@attrs.define(eq=False)
class OfParent(Opening):
    """The way of a worker: the parent has the stores open, and sets up what is missing."""

    stores: Mapping[str, Path]  # the parent's sockets, by the names of its stores

    def announced_here(self, config: Config) -> Collection[str]:
        # A store announces its new messages itself, in the parent.
        return set(Opening.announced_here(self, config)).difference(self.stores)

    async def enter(self, namespace: Namespace, hooks: LocalHooks | None = None) -> Adapter:
        path = self.stores.get(namespace.name)
        if path is None:
            return await Opening.enter(self, namespace, hooks)
        runtime = self.runtime
        rng = runtime.rng(namespace.name)
        socket = open_socket(path, CONNECTION, runtime.now, rng)
        adapter = await self.stack.enter_async_context(socket)
        register(adapter, make_abilities(namespace, runtime), runtime)
        return adapter

    async def enter_spool(self, file: Path, pairing: Pairing) -> Adapter:
        return await self.enter(spool_namespace(file))
