"""All peers of a gateway, and its own processes: finds the holder of a delivery."""

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import LockLost, Unreachable
from gateway.domain.message import AcceptedBy, Delivery, Message, Settlement
from gateway.domain.storage_queue import PopReceipt
from gateway.extensions.cluster.members import Members
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.peer import IDLE_SECONDS, Dial, Peer
from gateway.extensions.cluster.processes import Processes
from gateway.extensions.cluster.requests import (
    ChangeHidden,
    ForwardSend,
    HeldAnswer,
    NameOrderer,
    RemoveHidden,
    RenewHeld,
    SettleHeld,
    SuspectEntities,
)
from gateway.extensions.cluster.tokens import Holder, HolderTokens, tag_of
from gateway.net.dialing import open_stream
from gateway.net.listeners import split_address
from gateway.net.server_address import ServerAddress
from gateway.ports import Observer


async def dial_tcp(address: str) -> trio.abc.Stream:
    """Connect to the address; raises one of `gateway.net.dialing.FAILURES`."""
    host, port = split_address(address)
    return await open_stream(ServerAddress(host=host, port=port))


@attrs.define(eq=False)
class Peers:
    """
    All peers; each is asked to settle the deliveries with its tag. Implements
    `gateway.pairing.additions.OrderPeers`.
    """

    tokens: HolderTokens
    _members: Members
    _options: ClusterOptions
    _rng: random.Random
    _observer: Observer
    _dial: Dial = dial_tcp
    processes: Processes | None = None  # None: this gateway has one
    # `run` removes peers that have left.
    _peers: dict[str, Peer] = attrs.field(factory=dict, init=False)

    def is_elsewhere(self, lock_token: str) -> bool:
        """True if another gateway, or another process of this one, has made that token."""
        holder = self.tokens.holder_of(lock_token)
        return holder is not None and not self.tokens.is_made_here(holder)

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """
        Return once the holder has settled the delivery. Raises as `Peer.ask`; `LockLost` also if
        the holder is no peer.
        """
        peer = await self._holder(self.tokens.holder_of(lock_token))
        await peer.ask(SettleHeld(entity, lock_token, settlement))

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """
        Have the holder extend the lock; return a delivery without a message, with the new end.
        Raises as `settle`.
        """
        peer = await self._holder(self.tokens.holder_of(lock_token))
        answer = await peer.ask(RenewHeld(entity, lock_token))
        return Delivery(
            message=Message(),
            sequence_number=0,
            lock_token=lock_token,
            locked_until=answer.until,
        )

    async def change(
        self, entity: EntityPath, receipt: PopReceipt, hidden: timedelta, body: bytes | None
    ) -> HeldAnswer:
        """Have the holder hide the message for that time from now on. Raises as `settle`."""
        peer = await self._holder(Holder(receipt.holder))
        return await peer.ask(ChangeHidden(entity, receipt, hidden, body))

    async def remove(self, entity: EntityPath, receipt: PopReceipt) -> None:
        """Return once the holder has removed the message. Raises as `settle`."""
        peer = await self._holder(Holder(receipt.holder))
        await peer.ask(RemoveHidden(entity, receipt))

    def addresses(self) -> Sequence[str]:
        """The addresses of all peers."""
        return self._members.peers

    async def advise(self, address: str, advice: SuspectEntities) -> None:
        """Return when the peer has the advice. Raises as `Peer.ask`."""
        await self._peer(address).ask(advice)

    @property
    def own(self) -> str:
        """As `OrderPeers.own`."""
        return self._members.own

    async def forward(
        self,
        address: str,
        entity: EntityPath,
        queue: EntityPath,
        hand_over: Callable[[], Sequence[Message]],
        seconds: float,
        *,
        not_sent: Callable[[], object],
    ) -> AcceptedBy:
        """As `OrderPeers.forward`."""
        peer = self._peer(await self._member(address))
        return await peer.forward(
            lambda left: ForwardSend(entity, queue, left, tuple(hand_over())),
            seconds,
            not_sent=not_sent,
        )

    async def notify_orderer(self, address: str, queue: EntityPath) -> None:
        """As `OrderPeers.notify_orderer`."""
        peer = self._peer(await self._member(address))
        # An old process that drains has no use for the name: the new one has the clients' sends.
        await peer.ask(NameOrderer(self.own, queue), connects=True)

    async def _member(self, address: str) -> str:
        """The address, if it is that of a peer: other clients may write into the lease queue."""
        if await self._members.find(tag_of(address)) != address:
            raise Unreachable(f"{address} is no gateway of this cluster")
        return address

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close connections that are of no use any more, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(IDLE_SECONDS)
            if self.processes is not None:
                await self.processes.close_unused()
            members = set(self._members.peers)
            for address, peer in list(self._peers.items()):
                if address in members:
                    await peer.close_unused()
                else:
                    del self._peers[address]
                    await peer.aclose()

    async def aclose(self) -> None:
        """As `Peer.aclose`, for all peers."""
        if self.processes is not None:
            await self.processes.aclose()
        for peer in list(self._peers.values()):
            await peer.aclose()

    async def _holder(self, holder: Holder | None) -> Peer:
        if holder is not None and self.processes is not None:
            process = self.processes.find(holder, self.tokens.own)
            if process is not None:
                return process
        address = None if holder is None else await self._members.find(holder.tag)
        if address is None:
            raise LockLost("the gateway that holds the delivery isn't in this cluster any more")
        return self._peer(address)

    def _peer(self, address: str) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            make = partial(Peer, address, self._options)
            peer = self._peers[address] = make(self._dial, self._rng, self._observer)
        return peer
