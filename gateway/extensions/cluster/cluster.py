"""The cluster as one of its gateways sees it."""

import random
from collections.abc import Callable
from typing import Self

import attrs
import trio

from gateway.app.assembly.others import PARENT, HeldParts
from gateway.capabilities import Visibility
from gateway.extensions.cluster.advice import Advice
from gateway.extensions.cluster.handshake import ServerHandshake
from gateway.extensions.cluster.leases import ClusterVisibility
from gateway.extensions.cluster.members import Members
from gateway.extensions.cluster.options import ALONE, ClusterOptions
from gateway.extensions.cluster.peers import Peers
from gateway.extensions.cluster.processes import Forwarded, Processes, name_of
from gateway.extensions.cluster.server import (
    Advise,
    ClusterServer,
    HeldHere,
    ignore,
)
from gateway.extensions.cluster.tokens import HolderTokens, tag_of
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.net.listeners import Listener
from gateway.pairing.additions import SendsInOrder
from gateway.ports import Observer


@attrs.frozen(eq=False)
class Cluster:
    """A `gateway.ports.Service`: `run` looks for peers."""

    options: ClusterOptions
    peers: Peers
    _members: Members
    _rng: random.Random
    _observer: Observer
    processes: Processes | None = None  # of this gateway, if it has workers
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
        processes: Processes | None = None,
    ) -> Self:
        """The cluster of the configuration. `rng` must be cryptographically secure."""
        members = Members(options)
        process = None if processes is None else processes.own
        tokens = HolderTokens(tag_of(members.own), options.secrets, rng, process)
        peers = Peers(tokens, members, options, rng, observer, processes=processes)
        return cls(options, peers, members, rng, observer, processes)

    @property
    def is_alone(self) -> bool:
        """True if this gateway is in no cluster: its processes settle for each other only."""
        return self.options.address == ALONE

    @property
    def takes_advice(self) -> bool:
        """
        True if this process itself sends to the primary, so that it has evidence of its own, which
        wins over a peer's advice.
        """
        return self.processes is None

    @property
    def tokens(self) -> HolderTokens:
        return self.peers.tokens

    def shown(self, visibility: Visibility) -> Visibility:
        """
        The `Visibility` as clients see it. The `Visibility` of an embedded store needs no peer: its
        receipts are the store's own.
        """
        if self.is_alone or not isinstance(visibility, LeasedVisibility):
            return visibility
        return ClusterVisibility(visibility, self.peers)

    def server(
        self, held: HeldParts, advise: Advise = ignore, orders: SendsInOrder | None = None
    ) -> ClusterServer:
        """
        The server for other gateways: settles deliveries that this gateway or its workers hold,
        takes advice, and sends in order.
        """
        found: HeldHere = held.own
        if self.processes is not None:
            found = Forwarded(held, self._is_of_this_gateway)
        return self._server(self._members.own, found, held.visibility, advise, orders)

    def server_of_process(self, held: HeldParts) -> ClusterServer:
        """
        The server for the other processes of this gateway. The parent's server forwards to other
        gateways.
        """
        assert self.processes is not None, "the gateway has workers"
        own = self.processes.own
        found = Forwarded(held, lambda _: True) if own == PARENT else held.own
        return self._server(name_of(own), found)

    def _server(
        self,
        address: str,
        leases: HeldHere,
        held: Visibility | None = None,
        advise: Advise = ignore,
        orders: SendsInOrder | None = None,
    ) -> ClusterServer:
        return ClusterServer(
            self.options,
            ServerHandshake(self.options.secrets, address, self._rng),
            leases,
            held if isinstance(held, LeasedVisibility) else None,
            self._observer,
            advise,
            orders,
        )

    def _is_of_this_gateway(self, lock_token: str) -> bool:
        holder = self.tokens.holder_of(lock_token)
        return holder is not None and holder.tag == self.tokens.own

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
