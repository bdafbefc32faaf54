"""
Receivers behind clients' links.

Messages of a queue without sessions come from `Leases`, which outlive the link: a lock that a
client has stays valid until the message is settled, on any connection, or until the lock expires. A
session is held by its link alone.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial

import attrs

from gateway.capabilities import TransactedSettlement
from gateway.capabilities.settling import settle_all
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, Outcome
from gateway.domain.message import Complete, Delivery, Settlement
from gateway.frontends.leasing import Leasing
from gateway.frontends.outages import Outages
from gateway.offering import Wrapper
from gateway.ports import Receiver


@attrs.define(eq=False)
class LeasedReceiver:
    """`ports.Receiver` of one queue, over `Leasing`."""

    _leases: Leasing
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
            raise LockLost(f"{self._entity} doesn't report when its locks expire")
        return renewed.locked_until

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        """As `Leasing.enlist`."""
        return self._leases.enlist(self._entity, _token(delivery), settlement)

    def forget(self, delivery: Delivery) -> None:
        """Note that the delivery was settled in a transaction."""
        self._leases.settled(_token(delivery))

    def lock_end_of(self, delivery: Delivery) -> float:
        """The time at which the lock expires (by Trio's clock), unless it is renewed."""
        return self._leases.lock_of(_token(delivery)).latest


@attrs.define(eq=False)
class OpenedReceiver(LeasedReceiver, Wrapper):
    """
    A `LeasedReceiver` that has the capabilities of the queue's receiver, `inner`; none before it is
    open. With `outages`, its receives outlast them.
    """

    _outages: Outages | None
    inner: Receiver | None = attrs.field(default=None, init=False)

    async def open(self) -> None:
        """As `Leasing.open`."""
        self.inner = await self._leases.open(self._entity)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        receive = partial(self._leases.receive, self._entity, limit)
        return await self._outlasting(receive)

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        receive = partial(self._leases.receive_available, self._entity, limit)
        return await self._outlasting(receive)

    async def _outlasting(
        self, receive: Callable[[], Awaitable[Sequence[Delivery]]]
    ) -> Sequence[Delivery]:
        async def receive_opened() -> Sequence[Delivery]:
            if self.inner is None:
                await self.open()
            return await receive()

        if self._outages is None:
            return await receive_opened()
        return await self._outages.outlast(self._entity, receive_opened)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        asked = [(_token(delivery), settlement) for delivery, settlement in settlements]
        return await self._leases.settle_many(self._entity, asked)


@attrs.frozen(eq=False)
class Leased(AbstractAsyncContextManager[LeasedReceiver]):
    """
    Opens a receiver of a queue without sessions. Leaving the scope changes nothing: the leases
    stay. With `outages`, a receiver that can't be opened in `open_timeout` opens after the outage.
    """

    _leases: Leasing
    _entity: EntityPath
    _outages: Outages | None
    _open_timeout: float  # seconds

    async def __aenter__(self) -> LeasedReceiver:
        """
        As any context manager.

        Raises:
            BrokerError: the queue can't be received from.
        """
        receiver = OpenedReceiver(self._leases, self._entity, self._outages)
        try:
            with answered_within(self._open_timeout, f"from {self._entity}"):
                await receiver.open()
        except BrokerError as error:
            if self._outages is None or not error.counts_as_outage:
                raise
        return receiver

    async def __aexit__(self, *_: object) -> None:
        """As any context manager."""


async def complete_all(
    receiver: Receiver, deliveries: Sequence[Delivery], seconds: float
) -> Sequence[Delivery]:
    """
    Complete the deliveries; return the completed ones, which are the client's now. An unknown
    outcome counts as completed.
    """
    asked = [(delivery, Complete()) for delivery in deliveries]
    verdicts = await settle_all(receiver, asked, seconds)
    return [
        delivery
        for delivery, error in zip(deliveries, verdicts, strict=True)
        if error is None or error.outcome is not Outcome.NOT_SENT
    ]


def _token(delivery: Delivery) -> str:
    assert delivery.lock_token is not None, "a leased delivery has a lock token"
    return delivery.lock_token
