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

from gateway.capabilities import SettlesMany
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
        return self._leases.lock_of(_token(delivery)).latest


class LeasedManyReceiver(LeasedReceiver):
    """The same, where the namespace is one that settles several deliveries in one step."""

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        asked = [(_token(delivery), settlement) for delivery, settlement in settlements]
        return await self._leases.settle_many(self._entity, asked)


@asynccontextmanager
async def leased(leases: Leases, entity: EntityPath) -> AsyncIterator[LeasedReceiver]:
    """
    Open a receiver of a queue without sessions; leaving it changes nothing.

    Raises:
        BrokerError: it can't be received from.
    """
    many = isinstance(await leases.open(entity), SettlesMany)
    yield LeasedManyReceiver(leases, entity) if many else LeasedReceiver(leases, entity)


async def settle_in_time(
    receiver: Receiver, delivery: Delivery, settlement: Settlement, seconds: float
) -> BrokerError | None:
    """As `Receiver.settle`, for at most that many seconds; the error, if it isn't done."""
    try:
        with trio.move_on_after(seconds):
            await receiver.settle(delivery, settlement)
            return None
    except BrokerError as error:
        return error  # noqa: ASYNC910 the settlement has waited
    return OutcomeUnknown("no answer from the namespace in time")


async def settle_all_in_time(
    receiver: Receiver, settlements: Sequence[tuple[Delivery, Settlement]], seconds: float
) -> Sequence[BrokerError | None]:
    """All in one step where the receiver can, and else side by side; of each what went wrong."""
    if isinstance(receiver, SettlesMany):
        return await _settle_many(receiver, settlements, seconds)
    verdicts: list[BrokerError | None] = [None] * len(settlements)

    async def settle(index: int, delivery: Delivery, settlement: Settlement) -> None:
        verdicts[index] = await settle_in_time(receiver, delivery, settlement, seconds)

    async with trio.open_nursery() as nursery:
        for index, (delivery, settlement) in enumerate(settlements):
            nursery.start_soon(settle, index, delivery, settlement)
    return verdicts


async def _settle_many(
    receiver: SettlesMany, settlements: Sequence[tuple[Delivery, Settlement]], seconds: float
) -> Sequence[BrokerError | None]:
    error: BrokerError = OutcomeUnknown("no answer from the namespace in time")
    try:
        with trio.move_on_after(seconds):
            return await receiver.settle_many(settlements)
    except BrokerError as refusal:
        error = refusal
    return [error] * len(settlements)  # noqa: ASYNC910 the settlement has waited


async def take_away(
    receiver: Receiver, deliveries: Sequence[Delivery], seconds: float
) -> Sequence[Delivery]:
    """Complete what was locked; return what is the client's now. Unknown counts as done."""
    asked = [(delivery, Complete()) for delivery in deliveries]
    verdicts = await settle_all_in_time(receiver, asked, seconds)
    return [
        delivery
        for delivery, error in zip(deliveries, verdicts, strict=True)
        if error is None or error.outcome is not Outcome.NOT_SENT
    ]


def _token(delivery: Delivery) -> str:
    assert delivery.lock_token is not None, "what is leased has one"
    return delivery.lock_token
