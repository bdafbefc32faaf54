"""Management of a sharded queue: each operation applies to all of its shards."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from gateway.capabilities import Updates
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    OutcomeUnknown,
    Unavailable,
)
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.table import ShardingRule
from gateway.offering import required
from gateway.store.local.memory import MemoryBroker
from tests.extensions.sharding.harness import ORDERS, Altered, sharded
from tests.harness.clocks import VirtualClock

FOUR = ShardingRule(queue="orders", shards=4)


class Refusing(Altered):
    """A namespace that can't create, update or delete one of its queues now."""

    refused: EntityPath | None = None
    hides: bool = False  # whether no queue can be inspected

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        if self.hides:
            raise Unavailable("down")
        return await self.broker.inspect(entity)

    def check(self, entity: EntityPath) -> None:
        if entity == self.refused:
            raise Unavailable("down")

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        self.check(entity)
        return await self.broker.create_queue(entity, properties)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        self.check(entity)
        updates = required(self.broker, Updates)
        return await updates.update_queue(entity, properties, if_version=if_version)

    async def delete_queue(self, entity: EntityPath) -> None:
        self.check(entity)
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
        with pytest.raises(OutcomeUnknown, match="shards were deleted, then: down"):
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


async def test_a_creation_that_failed_halfway_is_unknown_and_completed_by_the_next_one(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as (broker, namespace):
        await broker.delete_queue(ORDERS)
        namespace.refused = ORDERS.shard(1)
        with pytest.raises(OutcomeUnknown, match="shards were created, then: down"):
            await broker.create_queue(ORDERS, QueueProperties())
        with pytest.raises(Unavailable):  # the others exist: this call has created none
            await broker.create_queue(ORDERS, QueueProperties())

        namespace.refused = None
        await broker.create_queue(ORDERS, QueueProperties())
        assert len(await namespace.broker.list_queues()) == 4
        with pytest.raises(EntityExists):
            await broker.create_queue(ORDERS, QueueProperties())


@pytest.mark.parametrize(("shard", "error"), [(0, Unavailable), (2, OutcomeUnknown)])
async def test_the_outcome_of_an_update_is_unknown_after_its_first_shard(
    autojump_clock: trio.abc.Clock, shard: int, error: type[BrokerError]
) -> None:
    async with stand() as (broker, namespace):
        namespace.refused = ORDERS.shard(shard)
        with pytest.raises(error, match="down"):
            await broker.update_queue(ORDERS, QueueProperties(max_delivery_count=3))

        first = await namespace.broker.inspect(ORDERS)
        assert (first.properties.max_delivery_count == 3) is (error is OutcomeUnknown)


async def test_a_queue_that_was_changed_and_then_cant_be_inspected_has_an_unknown_outcome(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as (broker, namespace):
        namespace.hides = True
        with pytest.raises(OutcomeUnknown, match="shards were updated, then: down"):
            await broker.update_queue(ORDERS, QueueProperties(max_delivery_count=3))
        await broker.delete_queue(ORDERS)
        with pytest.raises(OutcomeUnknown, match="shards were created, then: down"):
            await broker.create_queue(ORDERS, QueueProperties())


async def test_a_shard_that_is_still_to_be_made_is_no_missing_queue(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as (broker, _):
        broker.table.replace([attrs.evolve(FOUR, shards=5)])

        assert (await broker.inspect(ORDERS)).active == 0
        changed = QueueProperties(max_delivery_count=3)
        updated = await required(broker, Updates).update_queue(ORDERS, changed)
        assert updated.properties.max_delivery_count == 3

        broker.table.join(ORDERS, 4)
        with pytest.raises(EntityNotFound):
            await broker.inspect(ORDERS)
