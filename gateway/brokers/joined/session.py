"""A session of one of several queues that are received from as one."""

from collections.abc import Sequence
from datetime import datetime

import attrs

from gateway.brokers.forwarding_session import ForwardingSession
from gateway.brokers.joined.sequence import inward, inward_number, outward
from gateway.capabilities import (
    KeepsMessages,
    ReceivesAvailable,
    ReceivesDeferred,
    SessionReceiver,
    SettlesMany,
    TakesBack,
)
from gateway.domain.errors import BrokerError, MessageNotFound
from gateway.domain.message import Delivery, Settlement
from gateway.offering import Wrapper, required


@attrs.frozen(eq=False, kw_only=True)
class JoinedSession(ForwardingSession, Wrapper):
    """A `SessionReceiver` of the queue at that place, whose sequence numbers are those of all."""

    inner: SessionReceiver
    place: int

    @property
    def session(self) -> SessionReceiver:
        return self.inner

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return [outward(each, self.place) for each in await self.inner.receive(limit)]

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        receiver = required(self.inner, ReceivesAvailable)
        return [outward(each, self.place) for each in await receiver.receive_available(limit)]

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self.inner.settle(inward(delivery), settlement)

    async def renew(self, delivery: Delivery) -> datetime:
        return await self.inner.renew(inward(delivery))

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        own = [(inward(delivery), settlement) for delivery, settlement in settlements]
        return await required(self.inner, SettlesMany).settle_many(own)

    def forget_message(self, delivery: Delivery) -> None:
        """As `KeepsMessages.forget_message`."""
        required(self.inner, KeepsMessages).forget_message(inward(delivery))

    @property
    def takes_back_uncounted(self) -> bool:
        """As `TakesBack.takes_back_uncounted`."""
        return required(self.inner, TakesBack).takes_back_uncounted

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """As `ReceivesDeferred.receive_deferred`."""
        own = []
        for each in sequence_numbers:
            place, number = inward_number(each)
            if place != self.place:
                raise MessageNotFound(f"{each}: this session has no message with that number")
            own.append(number)
        receiver = required(self.inner, ReceivesDeferred)
        return [outward(each, self.place) for each in await receiver.receive_deferred(own)]
