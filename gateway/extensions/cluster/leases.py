"""
`Leasing` and `Visibility` over a cluster: a delivery that another process holds is settled, and a
receipt of a peer changed or removed, where it is held.
"""

from collections.abc import Sequence
from datetime import timedelta

import attrs
import trio

from gateway.capabilities import (
    TransactedSettlement,
    Visibility,
)
from gateway.capabilities.settling import SettlementDoubts
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, Message, Settlement
from gateway.domain.storage_queue import PopReceipt, TakenMessage, TermsOf
from gateway.extensions.cluster.peers import Peers
from gateway.frontends.leases import Leases
from gateway.ports import Receiver


@attrs.frozen(eq=False)
class ClusterLeases:
    """
    Implements `gateway.frontends.leasing.Leasing`. Raises as `Peers.settle` too, for deliveries of
    peers.
    """

    _own: Leases  # of this process
    _peers: Peers
    # Of deliveries that this process doesn't hold.
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)

    async def open(self, entity: EntityPath) -> Receiver:
        """As `Leasing.open`."""
        return await self._own.open(entity)

    async def receive(
        self, entity: EntityPath, limit: int, *, any_token: bool = False
    ) -> Sequence[Delivery]:
        """As `Leasing.receive`."""
        return await self._own.receive(entity, limit, any_token=any_token)

    async def receive_now(
        self, entity: EntityPath, limit: int, *, any_token: bool = False
    ) -> Sequence[Delivery]:
        """As `Leasing.receive_now`."""
        return await self._own.receive_now(entity, limit, any_token=any_token)

    async def receive_available(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `Leasing.receive_available`."""
        return await self._own.receive_available(entity, limit)

    async def receive_deferred(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> Sequence[Delivery]:
        """As `Leasing.receive_deferred`."""
        return await self._own.receive_deferred(entity, sequence_numbers)

    async def asks_once(self, entity: EntityPath) -> bool:
        """As `Leasing.asks_once`."""
        return await self._own.asks_once(entity)

    async def poll(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `Leasing.poll`."""
        return await self._own.poll(entity, limit)

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """As `Leasing.settle`, by the process that holds the delivery."""
        if self._is_elsewhere(lock_token):
            with self._doubts.settling(lock_token):
                await self._peers.settle(entity, lock_token, settlement)
        else:
            await self._own.settle(entity, lock_token, settlement)

    async def settle_many(
        self, entity: EntityPath, settlements: Sequence[tuple[str, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `Leasing.settle_many`: those that this process holds together, each other alone."""
        here, away = list[int](), list[int]()
        for index, (token, _) in enumerate(settlements):
            (away if self._is_elsewhere(token) else here).append(index)
        if not away:
            return await self._own.settle_many(entity, settlements)
        verdicts: list[BrokerError | None] = [None] * len(settlements)

        async def settle_here() -> None:
            found = await self._own.settle_many(entity, [settlements[each] for each in here])
            for index, verdict in zip(here, found, strict=True):
                verdicts[index] = verdict

        async def settle(index: int) -> None:
            try:
                await self.settle(entity, *settlements[index])
            except BrokerError as error:
                verdicts[index] = error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle_here)
            for index in away:
                nursery.start_soon(settle, index)
        return verdicts

    def enlist(
        self, entity: EntityPath, lock_token: str, settlement: Settlement
    ) -> TransactedSettlement:
        """As `Leasing.enlist`, for the leases of this process."""
        return self._own.enlist(entity, lock_token, settlement)

    def settled(self, lock_token: str) -> None:
        """As `Leasing.settled`."""
        self._own.settled(lock_token)

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """As `Leasing.renew`, by the process that holds the delivery."""
        if self._is_elsewhere(lock_token):
            with self._doubts.using(lock_token):
                return await self._peers.renew(entity, lock_token)
        return await self._own.renew(entity, lock_token)

    async def change_body(self, entity: EntityPath, lock_token: str, body: bytes) -> Delivery:
        """As `Leasing.change_body`, for the leases of this process."""
        return await self._own.change_body(entity, lock_token, body)

    def holds(self, lock_token: str) -> bool:
        """As `Leasing.holds`."""
        return self._own.holds(lock_token)

    def lock_of(self, lock_token: str) -> LockEnds:
        """As `Leasing.lock_of`."""
        return self._own.lock_of(lock_token)

    async def hides(self, entity: EntityPath) -> bool:
        """As `Leasing.hides`."""
        return await self._own.hides(entity)

    async def receive_hidden(
        self, entity: EntityPath, limit: int, duration: timedelta
    ) -> Sequence[Delivery]:
        """As `Leasing.receive_hidden`."""
        return await self._own.receive_hidden(entity, limit, duration)

    async def hide(
        self, entity: EntityPath, lock_token: str, duration: timedelta, body: bytes | None = None
    ) -> Delivery:
        """As `Leasing.hide`."""
        return await self._own.hide(entity, lock_token, duration, body)

    def _is_elsewhere(self, lock_token: str) -> bool:
        return not self._own.holds(lock_token) and self._peers.is_elsewhere(lock_token)


@attrs.frozen(eq=False)
class ClusterVisibility:
    """Implements `capabilities.Visibility`. Raises as `Peers.settle` too, for receipts of peers."""

    _inner: Visibility  # of this gateway
    _peers: Peers

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> TakenMessage:
        """As `Visibility.put`."""
        return self._held_here(await self._inner.put(entity, message, hidden))

    async def sent(self, entity: EntityPath, message_id: str) -> PopReceipt | None:
        """As `Visibility.sent`, for messages that were sent through this gateway."""
        return await self._inner.sent(entity, message_id)

    async def dequeue(
        self, entity: EntityPath, limit: int, terms_of: TermsOf
    ) -> Sequence[TakenMessage]:
        """As `Visibility.dequeue`."""
        taken = await self._inner.dequeue(entity, limit, terms_of)
        return [self._held_here(each) for each in taken]

    async def peek(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `Visibility.peek`."""
        return await self._inner.peek(entity, limit)

    async def change(
        self, entity: EntityPath, receipt: PopReceipt, hidden: timedelta, body: bytes | None = None
    ) -> TakenMessage:
        """As `Visibility.change`."""
        if not self._is_elsewhere(receipt):
            return self._held_here(await self._inner.change(entity, receipt, hidden, body))
        answer = await self._peers.change(entity, receipt, hidden, body)
        changed = answer.receipt
        return TakenMessage(
            delivery=Delivery(
                message=Message(), sequence_number=receipt.sequence, locked_until=answer.until
            ),
            receipt=None if changed is None else attrs.evolve(changed, holder=receipt.holder),
        )

    async def remove(self, entity: EntityPath, receipt: PopReceipt) -> None:
        """As `Visibility.remove`."""
        if self._is_elsewhere(receipt):
            await self._peers.remove(entity, receipt)
        else:
            await self._inner.remove(entity, receipt)

    async def clear(self, entity: EntityPath) -> None:
        """As `Visibility.clear`."""
        await self._inner.clear(entity)

    def _is_elsewhere(self, receipt: PopReceipt) -> bool:
        return receipt.holder not in {0, self._peers.tokens.own}

    def _held_here(self, taken: TakenMessage) -> TakenMessage:
        if taken.receipt is None or taken.receipt.token:
            return taken
        held = attrs.evolve(taken.receipt, holder=self._peers.tokens.own)
        return attrs.evolve(taken, receipt=held)
