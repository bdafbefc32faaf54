"""Counts the messages that clients of a bounded queue may hold: none of them is in excess."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import attrs

from gateway.capabilities import ReceivesAvailable, SettlesMany
from gateway.domain.errors import BrokerError, LockLost
from gateway.domain.message import Delivery, Settlement
from gateway.frontends.rabbitmq_broker.vhost import ServedQueue
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver


@attrs.define(eq=False)
class CountedReceiver(Wrapper):
    """
    A `Receiver` of a client that counts in `queue.taken` and `queue.given`: what a receive asks
    for, until it returns, and what it returns, until its settlement has returned.
    """

    inner: Receiver
    _queue: ServedQueue
    _held: set[str | None] = attrs.field(factory=set, init=False)  # lock tokens
    _is_closed: bool = attrs.field(default=False, init=False)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`."""
        return await self._receive(self.inner.receive, limit)

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        return await self._receive(required(self.inner, ReceivesAvailable).receive_available, limit)

    async def _receive(
        self, receive: Callable[[int], Awaitable[Sequence[Delivery]]], limit: int
    ) -> Sequence[Delivery]:
        self._queue.taken += limit
        found: Sequence[Delivery] = ()
        try:
            found = await receive(limit)
        finally:
            self._queue.given += limit - len(found)
            self._held.update(each.lock_token for each in found)
            if self._is_closed:
                self.close()
        return found

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `Receiver.settle`."""
        try:
            await self.inner.settle(delivery, settlement)
        finally:
            self._release(delivery.lock_token)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        try:
            return await required(self.inner, SettlesMany).settle_many(settlements)
        finally:
            for delivery, _ in settlements:
                self._release(delivery.lock_token)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`."""
        try:
            return await self.inner.renew(delivery)
        except LockLost:
            self._release(delivery.lock_token)
            raise

    def close(self) -> None:
        """The receiver has ended: what clients held is the queue's again."""
        self._is_closed = True
        for each in list(self._held):
            self._release(each)

    def _release(self, token: str | None) -> None:
        if token in self._held:
            self._held.remove(token)
            self._queue.given += 1


@asynccontextmanager
async def open_counted(broker: Broker, queue: ServedQueue) -> AsyncIterator[Receiver]:
    """A receiver for clients; of a bounded queue it counts what they hold. Raises: BrokerError."""
    counted: CountedReceiver | None = None
    try:
        async with broker.open_receiver(queue.entity) as receiver:
            if queue.terms.is_bounded:
                counted = CountedReceiver(receiver, queue)
            yield counted or receiver
    finally:
        if counted is not None:
            counted.close()
