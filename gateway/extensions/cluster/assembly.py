"""
The cluster of a process: with other gateways, with the other processes of its own gateway, or with
both.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from gateway.app.assembly.others import HeldParts, Others, PeerPort, PortPlan, ProcessPlace
from gateway.app.endpoints import crash_reporter, port_reporter
from gateway.app.failure import Failure
from gateway.app.runtime import Runtime
from gateway.capabilities import Visibility
from gateway.config.endpoints import moved
from gateway.extensions.cluster.cluster import Cluster, ClusterPort
from gateway.extensions.cluster.leases import ClusterLeases
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.processes import Processes
from gateway.extensions.cluster.server import HANDSHAKE_SECONDS
from gateway.frontends.client_tokens import ClientTokens, OpenTokens
from gateway.frontends.lease_table import NewToken
from gateway.frontends.leases import Leases
from gateway.frontends.storage_queue.messages import Marks
from gateway.net.listeners import (
    CannotListen,
    ConnectionHandler,
    Listener,
    PortOptions,
    open_listener,
)
from gateway.pairing.additions import PairPeers
from gateway.ports import Service

_REQUESTS: Final = 256  # requests to one process at once


@attrs.frozen(eq=False)
class ClusterOthers(Others):
    """The other processes, with which this one has a cluster."""

    cluster: Cluster
    _runtime: Runtime

    def new_token(self) -> NewToken:
        return self.cluster.tokens.new_token

    def client_tokens(self) -> ClientTokens:
        """Sealed by the secret of the cluster; workers alone have one that doesn't outlive them."""
        return OpenTokens() if self.cluster.is_alone else self.cluster.tokens.sealed

    def leases(self, own: Leases) -> ClusterLeases:
        return ClusterLeases(own, self.cluster.peers)

    def peers(self) -> PairPeers:
        cluster = self.cluster
        if cluster.is_alone:
            return PairPeers()
        return PairPeers(
            tell=cluster.advice.advise, takes_advice=cluster.takes_advice, orderers=cluster.peers
        )

    def visibility(self, own: Visibility) -> Visibility:
        return self.cluster.shown(own)

    def marks(self, of_accounts: Marks) -> Marks:
        """
        Sign receipts by the secret of the cluster, as accounts needn't have keys. Receipts from the
        time before `[cluster]` was configured stay valid.
        """
        if self.cluster.is_alone:
            return of_accounts
        return lambda text: [*self.cluster.tokens.marks(text), *of_accounts(text)]

    def services(self) -> Sequence[Service]:
        return [self.cluster]

    async def open_ports(self, plan: PortPlan, held: HeldParts) -> Sequence[PeerPort]:
        if self.cluster.is_alone:
            return []
        options = self.cluster.options
        bind = moved(options.bind or options.address, plan.offset)
        listener = await self._listener(bind, plan)
        plan.stack.push_async_callback(listener.aclose)
        server = self.cluster.server(held)
        if (pair := held.pair) is not None:
            server = self.cluster.server(held, pair.states.advise, pair.in_order)
        return [ClusterPort(bind, listener, server, plan.on_open)]

    async def _listener(self, bind: str, plan: PortPlan) -> Listener:
        most = self.cluster.options.max_connections
        limits = PortOptions(
            max_connections=most, max_connections_per_peer=most, first_timeout=HANDSHAKE_SECONDS
        )
        on_crash = crash_reporter(self._runtime)
        on_lost = port_reporter(self._runtime, "cluster")
        sockets = None if plan.given is None else plan.given.acquire(bind)
        if sockets is not None:
            return Listener(sockets.sockets, on_crash=on_crash, on_lost=on_lost, options=limits)
        try:
            return await open_listener(bind, on_crash=on_crash, on_lost=on_lost, options=limits)
        except CannotListen as error:
            raise Failure(f"cluster.bind: {error}") from error

    def greeting(self) -> Mapping[str, Any]:
        options = self.cluster.options
        told = ("address", "secrets", "connect_timeout", "timeout")
        return {"cluster": {name: getattr(options, name) for name in told}}

    def answering(self, held: HeldParts) -> ConnectionHandler | None:
        if self.cluster.processes is None:
            return None
        return self.cluster.server_of_process(held).serve_connection


def make_cluster(place: ProcessPlace, options: ClusterOptions) -> ClusterOthers:
    """The cluster of a process with these options."""
    runtime = place.runtime
    processes = _processes(place, options) if place.config.serving_processes > 1 else None
    cluster = Cluster.of(options, runtime.rng("cluster"), runtime.observer, processes)
    return ClusterOthers(cluster, runtime)


def _processes(place: ProcessPlace, options: ClusterOptions) -> Processes:
    return Processes(
        own=place.number,
        workers=place.config.serving_processes,
        options=attrs.evolve(options, max_requests=_REQUESTS),
        rng=place.runtime.rng("processes"),
        observer=place.runtime.observer,
        dial=place.dial,
    )
