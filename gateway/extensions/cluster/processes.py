"""
The processes of a gateway with workers. Each settles the deliveries that it holds for the others,
as the gateways of a cluster do:

    worker → worker               what another worker holds
    worker → parent               what the parent holds, or another gateway
    gateway → parent → worker     what a worker holds, for a client of another gateway
"""

import random
from collections.abc import Callable

import attrs

from gateway.app.assembly.others import PARENT, Dial, HeldParts
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Settlement
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.peer import Peer
from gateway.extensions.cluster.tokens import Holder
from gateway.frontends.leasing import Leasing
from gateway.ports import Observer


def name_of(number: int) -> str:
    """The process as a peer has it in place of an address."""
    return f"worker {number}" if number else "parent"


@attrs.define(eq=False, kw_only=True)
class Processes:
    """The other processes of this gateway; each is asked to settle the deliveries that it holds."""

    own: int  # the number of this process
    workers: int  # how many there are
    _options: ClusterOptions
    _rng: random.Random
    _observer: Observer
    dial: Dial | None = None  # None: none of them runs yet
    _peers: dict[int, Peer] = attrs.field(factory=dict, init=False)  # by number

    def find(self, holder: Holder, own_tag: int) -> Peer | None:
        """
        The process that holds the delivery, or that knows its holder; None: no other process of
        this gateway. `own_tag` is this gateway's.
        """
        number, dial = holder.process if holder.tag == own_tag else PARENT, self.dial
        if dial is None or number == self.own or number > self.workers:
            return None
        peer = self._peers.get(number)
        if peer is None:
            options, rng, observer = self._options, self._rng, self._observer
            peer = Peer(name_of(number), options, lambda _: dial(number), rng, observer)
            self._peers[number] = peer
        return peer

    async def close_unused(self) -> None:
        """As `Peer.close_unused`, for all of them."""
        for peer in list(self._peers.values()):
            await peer.close_unused()

    async def aclose(self) -> None:
        """As `Peer.aclose`, for all of them."""
        for peer in list(self._peers.values()):
            await peer.aclose()


@attrs.frozen(eq=False)
class Forwarded:
    """
    `gateway.extensions.cluster.server.HeldHere`: a delivery of this process, and one of another
    process or gateway if `forwards` says so of its lock token.
    """

    _held: HeldParts
    _forwards: Callable[[str], bool]

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """As `Leasing.settle`."""
        await self._holder(lock_token).settle(entity, lock_token, settlement)

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """As `Leasing.renew`."""
        return await self._holder(lock_token).renew(entity, lock_token)

    def _holder(self, lock_token: str) -> Leasing:
        return self._held.leases if self._forwards(lock_token) else self._held.own
