"""Shards that are added and drained while the gateway runs."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import NotAuthorized
from gateway.domain.events.gateway import Doubtful
from gateway.domain.message import Complete, Message
from gateway.extensions.sharding.events import ShardAdded, ShardDrained
from gateway.extensions.sharding.setup import ShardSetup
from gateway.extensions.sharding.table import ShardedQueue, ShardingRule, ShardTable
from gateway.store.local.memory import MemoryBroker
from tests.extensions.claims.harness import Events
from tests.extensions.sharding.harness import ORDERS
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Operation, Refuse

TWO = ShardingRule(queue="orders", shards=2)


@attrs.frozen
class Stand:
    table: ShardTable
    faulty: FaultyBroker
    events: Events

    @property
    def queue(self) -> ShardedQueue:
        found = self.table.find(ORDERS)
        assert found is not None
        return found


@asynccontextmanager
async def stand(*, made: int = 2, fault: Any = None) -> AsyncIterator[Stand]:
    async with (
        MemoryBroker(VirtualClock(), random.Random(0)) as memory,
        trio.open_nursery() as nursery,
    ):
        faulty, table, events = FaultyBroker(inner=memory), ShardTable.of([TWO]), Events()
        for number in range(made):
            properties = QueueProperties(max_delivery_count=7)
            await memory.create_queue(ORDERS.shard(number), properties)
        await nursery.start(faulty.run)
        if fault is not None:
            faulty.fault = fault
        setup = ShardSetup(broker=faulty, table=table, observer=events, rng=random.Random(0))
        await nursery.start(setup.run)
        yield Stand(table, faulty, events)
        nursery.cancel_scope.cancel()


async def test_a_shard_that_is_missing_at_the_start_is_created_like_the_first(
    autojump_clock: trio.abc.Clock,
) -> None:
    """Nothing else makes it if no plan names the queue."""
    async with stand(made=1) as here:
        await trio.sleep(1)

        info = await here.faulty.inspect(ORDERS.shard(1))
        assert info.properties.max_delivery_count == 7
        assert [event.shard for event in here.events.of(ShardAdded)] == [1]


async def test_a_shard_that_can_not_be_made_at_the_start_is_told_once_and_made_later(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand(made=1, fault=lambda *_: Refuse()) as here:
        await trio.sleep(100)
        [doubt] = here.events.of(Doubtful)
        here.faulty.fault = lambda *_: None
        await trio.sleep(60)

        assert f"{ORDERS.shard(1)} isn't known to exist, and can't be made" in doubt.text
        assert here.queue.active == (0, 1), "it is taken to exist, as it is after an outage"
        assert (await here.faulty.inspect(ORDERS.shard(1))).active == 0


async def test_nothing_is_created_while_the_shards_of_the_start_exist(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        await trio.sleep(100)

        assert here.events.of(ShardAdded) == here.events.of(Doubtful) == []


async def test_a_shard_that_a_reload_adds_is_created_like_the_first_and_joins(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        here.table.replace([attrs.evolve(TWO, shards=4)])
        await trio.sleep(1)

        assert here.queue.active == (0, 1, 2, 3)
        info = await here.faulty.inspect(ORDERS.shard(3))
        assert info.properties.max_delivery_count == 7
        assert [event.shard for event in here.events.of(ShardAdded)] == [2, 3]


async def test_a_shard_that_can_not_be_reached_joins_later_and_is_told_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:

        def fault(operation: Operation, entity: EntityPath) -> Any:
            return Refuse() if entity == ORDERS.shard(2) else None

        here.faulty.fault = fault
        here.table.replace([attrs.evolve(TWO, shards=3)])
        await trio.sleep(100)
        assert here.queue.active == (0, 1)
        [doubt] = here.events.of(Doubtful)
        assert doubt.text.startswith("sharding: orders/x-pairgate-shard/2 gets no messages before")

        here.faulty.fault = lambda operation, entity: None
        await trio.sleep(100)
        assert here.queue.active == (0, 1, 2)


async def test_a_reload_while_a_shard_is_asked_about_waits_for_no_retry(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        here.faulty.fault = lambda operation, entity: (
            Refuse() if entity == ORDERS.shard(2) else None
        )
        here.table.replace([attrs.evolve(TWO, shards=3)])
        await trio.sleep(100)  # from now on the shard is inspected every 30 s
        asked = trio.Event()

        def reload(operation: Operation, entity: EntityPath) -> Any:
            if entity == ORDERS.shard(2):
                if not asked.is_set():
                    asked.set()
                    here.table.replace([attrs.evolve(TWO, shards=4)])
                return Refuse()
            return None

        here.faulty.fault = reload
        await asked.wait()
        await trio.sleep(1)
        assert here.queue.active == (0, 1, 3)


async def test_a_shard_that_joins_lets_no_other_be_asked_about_at_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        asked: list[EntityPath] = []

        def fault(operation: Operation, entity: EntityPath) -> Any:
            asked.append(entity)
            return Refuse() if entity == ORDERS.shard(2) else None

        here.faulty.fault = fault
        here.table.replace([attrs.evolve(TWO, shards=5)])
        await trio.sleep(0.5)

        assert here.queue.active == (0, 1, 3, 4)
        assert asked.count(ORDERS.shard(2)) == 2  # to create it, and a probe


async def test_without_the_right_to_create_queues_an_existing_shard_joins(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        await here.faulty.create_queue(ORDERS.shard(2), QueueProperties())

        def fault(operation: Operation, entity: EntityPath) -> Any:
            return Refuse(NotAuthorized) if operation is Operation.MANAGE else None

        here.faulty.fault = fault
        here.table.replace([attrs.evolve(TWO, shards=3)])
        await trio.sleep(1)

        assert here.queue.active == (0, 1, 2)


async def test_a_shard_is_drained_when_its_last_message_is_settled(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        await here.faulty.send(ORDERS.shard(1), [Message()])
        here.table.replace([attrs.evolve(TWO, drain=(1,))])
        await trio.sleep(100)
        assert here.queue.active == (0,)
        assert here.events.of(ShardDrained) == []

        async with here.faulty.open_receiver(ORDERS.shard(1)) as receiver:
            [delivery] = await receiver.receive(1)
            await trio.sleep(10)
            await receiver.settle(delivery, Complete())
        await trio.sleep(100)
        assert here.events.of(ShardDrained) == [ShardDrained(queue=ORDERS, shard=1)]


async def test_a_shard_is_not_drained_while_others_may_have_its_messages_locked(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        inner: Any = here.faulty.inner
        real, others = inner.inspect, [1]

        async def inspect(entity: EntityPath) -> EntityInfo:
            return attrs.evolve(await real(entity), other_consumers=others[0])

        inner.inspect = inspect
        here.table.replace([attrs.evolve(TWO, drain=(1,))])
        await trio.sleep(100)
        assert here.events.of(ShardDrained) == []

        others[0] = 0
        await trio.sleep(100)
        assert here.events.of(ShardDrained) == [ShardDrained(queue=ORDERS, shard=1)]


async def test_the_event_of_a_drained_shard_names_what_its_namespace_does_not_count(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        inner: Any = here.faulty.inner
        real = inner.inspect

        async def inspect(entity: EntityPath) -> EntityInfo:
            return attrs.evolve(await real(entity), dead_lettered=None)

        inner.inspect = inspect
        here.table.replace([attrs.evolve(TWO, drain=(1,))])
        await trio.sleep(100)

        assert [each.not_counted for each in here.events.of(ShardDrained)] == ["dead_lettered"]
