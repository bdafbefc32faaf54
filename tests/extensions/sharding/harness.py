"""Sharded queues over any namespace."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar, Final

import attrs
import trio

from gateway.capabilities import Peeks, ReceivesDeferred, TakesBack
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Message, ReceiveMode, Settlement
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.table import ShardedQueue, ShardingRule, ShardTable
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver, WallClock

ORDERS: Final = EntityPath("orders")


def sharded(
    broker: Broker, rule: ShardingRule | ShardTable, clock: WallClock, **options: Any
) -> ShardedBroker:
    """The namespace with one sharded queue, or with those of a table."""
    table = rule if isinstance(rule, ShardTable) else ShardTable.of([rule])
    return ShardedBroker(broker=broker, table=table, rng=random.Random(0), clock=clock, **options)


@attrs.define(eq=False)
class EveryQueue(ShardTable):
    """
    Every queue has three shards, of which the last gets all messages: so their order is kept, and
    each delivery has to lead back to a shard that isn't the queue itself.
    """

    def find(self, entity: EntityPath) -> ShardedQueue | None:
        if entity.is_subscription or entity.shard_number:
            return None
        path = entity.parent
        return ShardedQueue(path=path, rule=ShardingRule(queue=path.name, shards=3, drain=(0, 1)))


async def at_once() -> None:
    await trio.lowlevel.checkpoint()


@attrs.define(eq=False, kw_only=True)
class Altered(ForwardingBroker):
    """A namespace whose deliveries are altered, and whose receivers take their time."""

    broker: Broker
    alter: Callable[[Delivery], Delivery] = lambda delivery: delivery
    after_receive: Callable[[], Awaitable[None]] = at_once
    before_settle: Callable[[], Awaitable[None]] = at_once

    @property
    def inner(self) -> Broker:
        return self.broker

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.broker.send(entity, messages)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        async with self.broker.open_receiver(entity, mode) as receiver:
            yield AlteredReceiver(namespace=self, inner=receiver)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        peeks = required(self.broker, Peeks)
        found = await peeks.peek(entity, from_sequence=from_sequence, limit=limit)
        return [self.alter(each) for each in found]


@attrs.define(eq=False, kw_only=True)
class AlteredReceiver(Wrapper):
    """Receives from an `Altered` namespace."""

    namespace: Altered
    inner: Receiver
    forwards: ClassVar[frozenset[type]] = frozenset((TakesBack,))

    async def receive(self, limit: int) -> Sequence[Delivery]:
        found = await self.inner.receive(limit)
        await self.namespace.after_receive()
        return [self.namespace.alter(each) for each in found]

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        receiver = required(self.inner, ReceivesDeferred)
        found = await receiver.receive_deferred(sequence_numbers)
        return [self.namespace.alter(each) for each in found]

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self.namespace.before_settle()
        await self.inner.settle(delivery, settlement)

    async def renew(self, delivery: Delivery) -> datetime:
        return await self.inner.renew(delivery)
