"""A namespace that must be polled, as Storage Queue: it doesn't announce new messages."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import attrs
import trio

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.domain.message import (
    Abandon,
    DeadLetter,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.ports import Broker, Receiver

LATENCY = 0.001  # seconds of a request


@attrs.define(eq=False, kw_only=True)
class PolledBroker:
    """`inner`, but its receivers ask. `polls` counts the requests of each queue."""

    inner: Broker
    has_dead_letters: bool = True
    counts_returns: bool = False  # of messages that no client has seen
    polls: Counter[EntityPath] = attrs.field(factory=Counter, init=False)
    # The lock durations that receives asked for.
    locks: list[timedelta | None] = attrs.field(factory=list, init=False)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator["PolledReceiver"]:
        async with self.inner.open_receiver(entity, mode) as receiver:
            yield PolledReceiver(broker=self, entity=entity, inner=receiver)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.inner.send(entity, messages)

    async def probe(self, entity: EntityPath) -> None:
        await self.inner.probe(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.inner.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self.inner.list_queues(prefix, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self.inner.create_queue(entity, properties)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.inner.delete_queue(entity)


@attrs.define(eq=False, kw_only=True)
class PolledReceiver:
    """`ports.Receiver` and `capabilities.Polls`."""

    broker: PolledBroker
    entity: EntityPath
    inner: Receiver

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`."""
        self.broker.polls[self.entity] += 1
        self.broker.locks.append(lock)
        with trio.move_on_after(LATENCY):
            return await self.inner.receive(limit)
        return ()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        while True:
            if deliveries := await self.poll(limit):
                return deliveries
            await trio.sleep(1.0)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        if isinstance(settlement, DeadLetter) and not self.broker.has_dead_letters:
            await trio.lowlevel.checkpoint()
            raise NotSupported("this namespace has no dead letters")
        if isinstance(settlement, Abandon) and self.broker.counts_returns:
            settlement = Abandon()
        await self.inner.settle(delivery, settlement)

    @property
    def takes_back_uncounted(self) -> bool:
        return not self.broker.counts_returns

    async def renew(self, delivery: Delivery) -> datetime:
        return await self.inner.renew(delivery)
