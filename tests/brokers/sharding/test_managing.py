"""Management of a sharded queue: what is done to it is done to all of its shards."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.brokers.local.memory import MemoryBroker
from gateway.brokers.sharding.broker import ShardedBroker
from gateway.brokers.sharding.table import ShardingRule
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, OutcomeUnknown, Unavailable
from tests.brokers.sharding.harness import ORDERS, Altered, sharded
from tests.harness.clocks import VirtualClock

FOUR = ShardingRule(queue="orders", shards=4)


class Refusing(Altered):
    """A namespace that doesn't delete one of its queues now."""

    refused: EntityPath | None = None

    async def delete_queue(self, entity: EntityPath) -> None:
        if entity == self.refused:
            raise Unavailable("down")
        await self.broker.delete_queue(entity)


@asynccontextmanager
async def stand() -> AsyncIterator[tuple[ShardedBroker, Refusing]]:
    clock = VirtualClock()
    async with MemoryBroker(clock, random.Random(0)) as memory:
        namespace = Refusing(broker=memory)
        broker = sharded(namespace, FOUR, clock)
        await broker.create_queue(ORDERS, QueueProperties())
        yield broker, namespace


async def test_a_deletion_that_failed_halfway_is_completed_by_the_next_one(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as (broker, namespace):
        namespace.refused = ORDERS.shard(2)
        with pytest.raises(OutcomeUnknown, match="only some shards were deleted, then: down"):
            await broker.delete_queue(ORDERS)

        namespace.refused = None
        await broker.delete_queue(ORDERS)
        assert await namespace.broker.list_queues() == []
        with pytest.raises(EntityNotFound):
            await broker.delete_queue(ORDERS)


async def test_a_deletion_that_deleted_nothing_has_its_own_error(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as (broker, namespace):
        namespace.refused = ORDERS
        with pytest.raises(Unavailable):
            await broker.delete_queue(ORDERS)

        assert len(await namespace.broker.list_queues()) == 4
