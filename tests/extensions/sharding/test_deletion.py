"""Messages of a sharded queue that are deleted without being received."""

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities import DeletesMessages, Sessions
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    OutcomeUnknown,
    SessionLockLost,
    SessionRequired,
)
from gateway.domain.message import Message
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.table import ShardingRule, ShardTable
from gateway.offering import required
from gateway.store.local.memory import MemoryBroker
from tests.extensions.sharding.harness import ORDERS, sharded
from tests.harness.clocks import VirtualClock

THREE = ShardingRule(queue="orders", shards=3)


class Refusing(MemoryBroker):
    """Refuses deletions from some queues."""

    refused: tuple[EntityPath, ...] = ()

    async def delete_messages(self, entity: EntityPath, limit: int, **options: Any) -> int:
        if entity in self.refused:
            await trio.lowlevel.checkpoint()
            raise NotAuthorized("no")
        return await super().delete_messages(entity, limit, **options)


@attrs.define(eq=False)
class Stand:
    memory: Refusing
    broker: ShardedBroker
    table: ShardTable

    async def fill(self, *counts: int) -> None:
        """Put the messages into each shard."""
        for number, count in enumerate(counts):
            await self.memory.send(ORDERS.shard(number), [Message() for _ in range(count)])

    async def left(self) -> Sequence[int | None]:
        infos = [await self.memory.inspect(ORDERS.shard(number)) for number in range(3)]
        return [info.active for info in infos]

    async def delete(self, limit: int, session_id: str | None = None) -> int:
        deletes = required(self.broker, DeletesMessages)
        return await deletes.delete_messages(ORDERS, limit, session_id=session_id)


@pytest.fixture
async def stand(request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    properties = getattr(request, "param", QueueProperties())
    async with Refusing(VirtualClock(), random.Random(0)) as memory:
        for number in range(3):
            await memory.create_queue(ORDERS.shard(number), properties)
        table = ShardTable.of([THREE])
        yield Stand(memory, sharded(memory, table, VirtualClock()), table)


async def test_a_deletion_is_divided_among_the_shards(stand: Stand) -> None:
    await stand.fill(10, 10, 10)

    assert await stand.delete(7) == 7
    assert await stand.left() == [7, 8, 8]
    assert await stand.delete(2) == 2
    assert await stand.left() == [6, 7, 8]


@pytest.mark.parametrize("counts", [(10, 0, 0), (0, 10, 0), (0, 0, 10), (1, 8, 1), (5, 0, 5)])
async def test_a_deletion_is_less_than_its_limit_only_if_nothing_is_left(
    stand: Stand, counts: Sequence[int]
) -> None:
    await stand.fill(*counts)

    assert [await stand.delete(9) for _ in range(3)] == [9, 1, 0]


async def test_a_shard_that_joins_and_does_not_exist_yet_has_nothing_to_delete(
    stand: Stand,
) -> None:
    await stand.fill(2, 2, 0)
    await stand.memory.delete_queue(ORDERS.shard(2))
    with pytest.raises(OutcomeUnknown, match="2 messages were deleted; shard 2"):
        await stand.delete(3)
    stand.table.replace([ShardingRule(queue="orders", shards=2)])
    stand.table.replace([THREE])

    assert await stand.delete(100) == 2


async def test_an_error_before_anything_was_deleted_is_the_error(stand: Stand) -> None:
    await stand.fill(0, 2, 2)
    stand.memory.refused = (ORDERS.shard(1), ORDERS.shard(2))

    with pytest.raises(NotAuthorized):
        await stand.delete(3)
    stand.memory.refused = (ORDERS.shard(2),)
    with pytest.raises(OutcomeUnknown, match="1 messages were deleted; shard 2: no"):
        await stand.delete(3)
    assert await stand.left() == [0, 1, 2]
    for limit in (0, 4001):
        with pytest.raises(InvalidRequest, match="message-count: a number from 1 to 4000"):
            await stand.delete(limit)
    for number in range(3):
        await stand.memory.delete_queue(ORDERS.shard(number))
    with pytest.raises(EntityNotFound):
        await stand.delete(1)


@pytest.mark.parametrize("stand", [QueueProperties(requires_session=True)], indirect=True)
async def test_messages_of_a_session_are_deleted_where_it_is_locked_also_while_it_drains(
    stand: Stand,
) -> None:
    queue = stand.table.find(ORDERS)
    assert queue is not None
    former = queue.shard_of("a")
    await stand.broker.send(ORDERS, [Message(session_id="a") for _ in range(3)])
    with pytest.raises(SessionRequired):
        await stand.delete(1)
    with pytest.raises(SessionLockLost):
        await stand.delete(1, "a")
    stand.table.replace([attrs.evolve(THREE, drain=(former,))])
    async with required(stand.broker, Sessions).open_session(ORDERS, "a"):
        assert await stand.delete(2, "a") == 2
        assert await stand.delete(2, "a") == 1

    assert await stand.left() == [0, 0, 0]
