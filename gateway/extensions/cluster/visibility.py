"""`Visibility` over a cluster: a receipt of a peer is changed or removed where it is held."""

from collections.abc import Sequence
from datetime import timedelta

import attrs

from gateway.capabilities import Visibility
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Message
from gateway.domain.storage_queue.poison import TermsOf
from gateway.domain.storage_queue.pop_receipt import PopReceipt, TakenMessage
from gateway.extensions.cluster.peers import Peers


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
