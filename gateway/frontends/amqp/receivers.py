"""
Where the messages of a client's receiver come from.

Those of a plain queue come from the leases, which outlive the link: what a client has locked stays
locked until it is settled, on whichever connection, or until its lock runs out. A session is held
by its link alone.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, Outcome, OutcomeUnknown
from gateway.domain.message import Complete, Delivery, Settlement
from gateway.frontends.leases import Leases
from gateway.ports import Receiver


@attrs.frozen(eq=False)
class LeasedReceiver:
    """`ports.Receiver` of one queue, without a lock of its own."""

    _leases: Leases
    _entity: EntityPath

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return await self._leases.receive(self._entity, limit)

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        return await self._leases.receive_deferred(self._entity, sequence_numbers)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self._leases.settle(self._entity, _token(delivery), settlement)

    async def renew(self, delivery: Delivery) -> datetime:
        renewed = await self._leases.renew(self._entity, _token(delivery))
        if renewed.locked_until is None:
            raise LockLost(f"{self._entity} doesn't say until when the lock holds")
        return renewed.locked_until

    def end_of(self, delivery: Delivery) -> float:
        """When (by Trio's clock) its lock runs out, if nobody renews it."""
        return self._leases.end_of(_token(delivery))


@asynccontextmanager
async def leased(leases: Leases, entity: EntityPath) -> AsyncIterator[LeasedReceiver]:
    """
    Open a receiver of a queue without sessions; leaving it changes nothing.

    Raises:
        BrokerError: it can't be received from.
    """
    await leases.open(entity)
    yield LeasedReceiver(leases, entity)


async def settle_in_time(
    receiver: Receiver, delivery: Delivery, settlement: Settlement, seconds: float
) -> None:
    """
    As `Receiver.settle`, for at most that many seconds.

    Raises:
        OutcomeUnknown: there was no answer.
    """
    with trio.move_on_after(seconds) as scope:
        await receiver.settle(delivery, settlement)
    if scope.cancelled_caught:
        raise OutcomeUnknown("no answer from the namespace in time")


async def take_away(
    receiver: Receiver, deliveries: Sequence[Delivery], seconds: float
) -> Sequence[Delivery]:
    """Complete what was locked; return what is the client's now. Unknown counts as done."""
    kept: set[int] = set()

    async def take(  # noqa: ASYNC910 a settlement waits, or raises after that
        index: int, delivery: Delivery
    ) -> None:
        try:
            await settle_in_time(receiver, delivery, Complete(), seconds)
        except BrokerError as error:
            if error.outcome is Outcome.NOT_SENT:
                kept.add(index)

    async with trio.open_nursery() as nursery:
        for index, delivery in enumerate(deliveries):
            nursery.start_soon(take, index, delivery)
    return [delivery for index, delivery in enumerate(deliveries) if index not in kept]


def _token(delivery: Delivery) -> str:
    assert delivery.lock_token is not None, "what is leased has one"
    return delivery.lock_token
