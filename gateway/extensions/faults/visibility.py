"""The queues of the Queue service, as its clients meet them while faults are in force."""

from collections.abc import Sequence
from datetime import timedelta

import attrs

from gateway.capabilities import Visibility
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Message
from gateway.domain.storage_queue import PopReceipt, TakenMessage, TermsOf
from gateway.extensions.faults.faults import Faults
from gateway.extensions.faults.meeting import meeting
from gateway.extensions.faults.order import FaultOperation


@attrs.frozen(eq=False)
class FaultyVisibility:
    """
    As `inner`, which an embedded store answers without interceptors. A dequeue counts as a receive,
    a change as a renewal, a removal as a settlement.
    """

    inner: Visibility
    faults: Faults

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> TakenMessage:
        """As `Visibility.put`."""
        async with meeting(self.faults, FaultOperation.SEND, entity):
            return await self.inner.put(entity, message, hidden)

    async def sent(self, entity: EntityPath, message_id: str) -> PopReceipt | None:
        """As `Visibility.sent`."""
        return await self.inner.sent(entity, message_id)

    async def dequeue(
        self, entity: EntityPath, limit: int, terms_of: TermsOf
    ) -> Sequence[TakenMessage]:
        """As `Visibility.dequeue`."""
        async with meeting(self.faults, FaultOperation.RECEIVE, entity):
            return await self.inner.dequeue(entity, limit, terms_of)

    async def peek(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `Visibility.peek`."""
        return await self.inner.peek(entity, limit)

    async def change(
        self, entity: EntityPath, receipt: PopReceipt, hidden: timedelta, body: bytes | None = None
    ) -> TakenMessage:
        """As `Visibility.change`."""
        async with meeting(self.faults, FaultOperation.RENEW, entity):
            return await self.inner.change(entity, receipt, hidden, body)

    async def remove(self, entity: EntityPath, receipt: PopReceipt) -> None:
        """As `Visibility.remove`."""
        async with meeting(self.faults, FaultOperation.SETTLE, entity):
            await self.inner.remove(entity, receipt)

    async def clear(self, entity: EntityPath) -> None:
        """As `Visibility.clear`."""
        await self.inner.clear(entity)
