"""The cluster as one of its gateways sees it."""

import random
from collections.abc import Callable
from typing import Self

import attrs
import trio

from gateway.capabilities import Visibility
from gateway.frontends.cluster.advice import Advice
from gateway.frontends.cluster.members import Members
from gateway.frontends.cluster.options import ClusterOptions
from gateway.frontends.cluster.peers import Peers
from gateway.frontends.cluster.server import (
    Advise,
    ClusterServer,
    HeldHere,
    SendsInOrder,
    ignore,
)
from gateway.frontends.cluster.visibility import ClusterVisibility
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.net.listeners import Listener
from gateway.ports import Observer
from gateway.wire.pairgate.cluster_handshake import ServerHandshake
from gateway.wire.pairgate.cluster_tokens import HolderTokens, tag_of


@attrs.frozen(eq=False)
class Cluster:
    """A `gateway.ports.Service`: `run` looks for peers."""

    options: ClusterOptions
    peers: Peers
    _members: Members
    _rng: random.Random
    _observer: Observer
    # Whether this process has the evidence that wins over a peer's advice, as it sends itself.
    takes_advice: bool = True
    advice: Advice = attrs.field(init=False)

    @advice.default
    def _no_advice(self) -> Advice:
        return Advice(self.peers, self._members.own)

    @classmethod
    def of(
        cls,
        options: ClusterOptions,
        rng: random.Random,
        observer: Observer,
        *,
        takes_advice: bool = True,
    ) -> Self:
        """The cluster of the configuration. `rng` must be cryptographically secure."""
        members = Members(options)
        tokens = HolderTokens(tag_of(members.own), options.secrets, rng)
        peers = Peers(tokens, members, options, rng, observer)
        return cls(options, peers, members, rng, observer, takes_advice)

    @property
    def tokens(self) -> HolderTokens:
        return self.peers.tokens

    def shown(self, visibility: Visibility) -> Visibility:
        """
        The `Visibility` as clients see it. That of an embedded store needs no peer: its receipts
        are the store's own.
        """
        if not isinstance(visibility, LeasedVisibility):
            return visibility
        return ClusterVisibility(visibility, self.peers)

    def server(
        self,
        leases: HeldHere,
        held: Visibility,
        advise: Advise = ignore,
        orders: SendsInOrder | None = None,
    ) -> ClusterServer:
        """The server for peers, which settles what these have, takes advice, and sends in order."""
        return ClusterServer(
            self.options,
            ServerHandshake(self.options.secrets, self._members.own, self._rng),
            leases,
            held if isinstance(held, LeasedVisibility) else None,
            self._observer,
            advise,
            orders,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for peers, and advise them, until cancelled; then close the connections to them."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.advice.run)
                await nursery.start(self.peers.run)
                await self._members.run(task_status=task_status)
        finally:
            with trio.CancelScope(shield=True):
                await self.peers.aclose()


@attrs.frozen(eq=False)
class ClusterPort:
    """
    A `gateway.ports.Service`: answers peers. `on_open` gets the scope whose end makes it accept no
    more.
    """

    bind: str  # the address as configured
    listener: Listener
    _server: ClusterServer
    _on_open: Callable[[trio.CancelScope], None]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; this ends the connections too."""
        async with trio.open_nursery() as connections:
            with trio.CancelScope() as scope:
                self._on_open(scope)
                await self.listener.serve(
                    self._server.serve_connection, connections=connections, task_status=task_status
                )
            await trio.sleep_forever()
