"""Receiving over Service Bus REST: long polls, one after the other, and locks to give back."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.brokers.rest_peer import RestPeer
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, NotSupported
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.ports import WallClock
from gateway.wire.servicebus_operations import (
    MAX_LIMIT,
    Delivered,
    Operation,
    ReceiveMessages,
    Renewed,
    RenewLock,
    SettleMessage,
)

_MAX_HELD: Final = 10_000  # locks that are remembered, to be given back at the end
_GIVERS: Final = 16  # locks that are given back at once
_SHORT_POLL: Final = 1.0  # seconds: who says "nothing" sooner doesn't wait
_NO_MESSAGE: Final = Message()
_LOCK: Final = timedelta(seconds=30)  # where a namespace doesn't say how long it locks


@attrs.define(eq=False, kw_only=True)
class RestReceiver:
    """Takes messages of one queue; what it still holds at the end it abandons."""

    _peer: RestPeer
    _polls: RestPeer  # the same namespace over other connections
    _entity: EntityPath
    _mode: ReceiveMode
    _poll: float
    _most: int
    _clock: WallClock
    # Lock token -> the delivery without its message, and how long its lock held when it came.
    _held: dict[str, tuple[Delivery, timedelta]] = attrs.field(factory=dict)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`. A namespace that is no Pairgate gives one at a time."""
        while True:
            began = trio.current_time()
            if deliveries := await self.poll(limit):
                return deliveries
            if trio.current_time() - began < _SHORT_POLL:
                await trio.sleep(_SHORT_POLL)

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`, which waits. How long a message is locked is its queue's matter."""
        is_pairgate = await self._peer.is_pairgate(self._entity)
        operation = ReceiveMessages(
            entity=self._entity,
            mode=self._mode,
            timeout=self._poll,
            limit=min(limit, self._most, MAX_LIMIT) if is_pairgate else None,
        )
        answer = await self._polls.run(operation)
        if not isinstance(answer, Delivered):
            return ()
        self._hold(answer.deliveries)
        return answer.deliveries

    @property
    def takes_back_uncounted(self) -> bool:
        """As `TakesBack.takes_back_uncounted`: a Pairgate does."""
        return self._polls.is_known_pairgate

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`.

        Raises:
            NotSupported: a dead-letter on what is no Pairgate, or new properties: REST has no place
                for them.
        """
        token = _token_of(delivery)
        if not isinstance(settlement, Complete) and settlement.properties:
            raise NotSupported("REST can't change a message that is settled")
        if isinstance(settlement, DeadLetter) and not await self._peer.is_pairgate(self._entity):
            raise NotSupported("Service Bus REST can't dead-letter a message")
        try:
            await self._peer.run(self._settlement(delivery, token, settlement))
        except LockLost:
            self._held.pop(token, None)
            raise
        self._held.pop(token, None)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`; a namespace that doesn't say it locks for as long as before."""
        token = _token_of(delivery)
        lock = RenewLock(
            entity=self._entity, message=str(delivery.sequence_number), lock_token=token
        )
        asked = self._clock()
        answer = await self._peer.run(lock)
        if isinstance(answer, Renewed) and answer.locked_until is not None:
            return answer.locked_until
        _, duration = self._held.get(token, (delivery, _LOCK))
        return asked + duration

    async def give_back(self) -> None:
        """Abandon what is held, as far as the namespace can be reached. Runs until done."""
        limiter = trio.CapacityLimiter(_GIVERS)
        async with trio.open_nursery() as nursery:
            for token, (delivery, _) in list(self._held.items()):
                abandon = self._settlement(delivery, token, Abandon())
                nursery.start_soon(self._give, abandon, limiter)

    async def _give(self, abandon: Operation, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            with suppress(BrokerError):  # its lock runs out instead
                await self._peer.run(abandon)

    def _settlement(self, delivery: Delivery, token: str, settlement: Settlement) -> SettleMessage:
        return SettleMessage(
            entity=self._entity,
            message=str(delivery.sequence_number),
            lock_token=token,
            settlement=settlement,
        )

    def _hold(self, deliveries: Sequence[Delivery]) -> None:
        now = self._clock()
        for delivery in deliveries:
            if delivery.lock_token is not None:
                until = delivery.locked_until
                handle = attrs.evolve(delivery, message=_NO_MESSAGE)
                self._held[delivery.lock_token] = (handle, until - now if until else _LOCK)
        while len(self._held) > _MAX_HELD:  # the oldest: its lock ran out first
            del self._held[next(iter(self._held))]


def _token_of(delivery: Delivery) -> str:
    if delivery.lock_token is None:
        raise LockLost("this delivery was never locked")
    return delivery.lock_token
