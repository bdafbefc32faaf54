"""Sends to a sharded queue: by key, by turns, and past a shard that fails."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities import Schedules, SendsMany, send_accepted_by
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    MessageNotFound,
    MessageTooLarge,
    NotSupported,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.places import ShardPlaces
from gateway.extensions.sharding.table import ShardingRule, ShardTable
from gateway.offering import required
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.brokers.pairs import pair_of, syphon_of
from tests.extensions.sharding.harness import ORDERS, Altered, sharded
from tests.harness.clocks import START, VirtualClock
from tests.harness.faults import FaultyBroker, LoseAnswer, Operation, Refuse

FOUR = ShardingRule(queue="orders", shards=4)


@attrs.frozen
class Stand:
    """A sharded queue over a namespace that misbehaves on command."""

    broker: ShardedBroker
    faulty: FaultyBroker
    memory: MemoryBroker

    async def bodies(self, shard: int) -> list[bytes]:
        peeked = await self.memory.peek(ORDERS.shard(shard), limit=1000)
        return [each.message.body for each in peeked if isinstance(each.message.body, bytes)]

    async def counts(self) -> list[int]:
        return [len(await self.bodies(shard)) for shard in range(4)]

    def fail(self, shard: int, fault: Any) -> None:
        failing = ORDERS.shard(shard)

        def choose(operation: Operation, entity: EntityPath) -> Any:
            return fault if operation is Operation.SEND and entity == failing else None

        self.faulty.fault = choose


@asynccontextmanager
async def stand(rule: ShardingRule = FOUR, **options: Any) -> AsyncIterator[Stand]:
    clock = VirtualClock()
    async with (
        MemoryBroker(clock, random.Random(0)) as memory,
        trio.open_nursery() as nursery,
    ):
        faulty = FaultyBroker(inner=memory)
        await nursery.start(faulty.run)
        broker = sharded(faulty, rule, clock, **options)
        await broker.create_queue(ORDERS, QueueProperties())
        yield Stand(broker, faulty, memory)
        nursery.cancel_scope.cancel()


def text(number: int, key: str | None = None) -> Message:
    return Message(body=str(number).encode(), partition_key=key)


async def test_messages_without_a_key_go_by_turns(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        for number in range(8):
            await here.broker.send(ORDERS, [text(number)])

        assert await here.counts() == [2, 2, 2, 2]


async def test_messages_with_a_key_stay_in_its_shard_in_their_order(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        for number in range(40):
            await here.broker.send(ORDERS, [text(number, f"key {number % 10}")])

        by_shard = [await here.bodies(shard) for shard in range(4)]
        for key in range(10):
            expected = [b"%d" % number for number in range(key, 40, 10)]
            found = [[each for each in bodies if each in expected] for bodies in by_shard]
            assert sorted(found, key=len)[-1] == expected  # all in one shard
        assert sum(map(bool, by_shard)) > 1


async def test_the_messages_of_a_batch_that_have_no_key_stay_together(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        await here.broker.send(ORDERS, [text(number) for number in range(5)])

        assert sorted(await here.counts()) == [0, 0, 0, 5]


async def test_queues_that_are_not_sharded_are_left_alone(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        bulk = EntityPath("bulk")
        await here.broker.create_queue(bulk, QueueProperties())
        await here.broker.send(bulk, [text(1)])

        assert (await here.broker.inspect(bulk)).active == 1
        assert [info.path.name for info in await here.broker.list_queues()] == ["bulk", "orders"]
        with pytest.raises(EntityNotFound):
            await here.memory.inspect(bulk.shard(1))


@pytest.mark.parametrize("error", [Unavailable, lambda: QuotaExceeded("full")])
async def test_a_message_without_a_key_goes_past_a_shard_that_refuses_it(
    error: Callable[[], BrokerError], autojump_clock: trio.abc.Clock
) -> None:
    async with stand() as here:
        here.fail(1, Refuse(error))
        for number in range(8):
            await here.broker.send(ORDERS, [text(number)])

        counts = await here.counts()
        assert (counts[1], sum(counts)) == (0, 8)


async def test_each_batch_without_a_key_goes_past_the_shards_that_refuse_it(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        here.fail(1, Refuse(lambda: QuotaExceeded("full")))
        batches = [[text(number)] for number in range(4)]  # a batch for each shard
        verdicts = await required(here.broker, SendsMany).send_many(ORDERS, batches)

        counts = await here.counts()
        assert verdicts == [None] * 4
        assert (counts[1], sum(counts)) == (0, 4)


async def test_batches_that_every_shard_refuses_have_its_error(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        asked: list[EntityPath] = []

        def refuse(operation: Operation, entity: EntityPath) -> Any:
            asked.append(entity)
            return Refuse(lambda: QuotaExceeded("full"))

        here.faulty.fault = refuse
        batches = [[text(number)] for number in range(4)]
        verdicts = await required(here.broker, SendsMany).send_many(ORDERS, batches)

        assert [type(each) for each in verdicts] == [QuotaExceeded] * 4
        assert [asked.count(ORDERS.shard(shard)) for shard in range(4)] == [4] * 4


async def test_a_shard_that_failed_rests(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        asked: list[EntityPath] = []
        here.fail(1, Refuse())
        choose = here.faulty.fault

        def note(operation: Operation, entity: EntityPath) -> Any:
            asked.append(entity)
            return choose(operation, entity)

        here.faulty.fault = note
        for number in range(40):
            await here.broker.send(ORDERS, [text(number)])
        assert asked.count(ORDERS.shard(1)) == 1

        await trio.sleep(2.0)
        here.faulty.fault = lambda operation, entity: None
        for number in range(8):
            await here.broker.send(ORDERS, [text(number)])
        assert len(await here.bodies(1)) == 2


async def test_a_message_whose_fate_is_unknown_goes_nowhere_else(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        here.fail(0, LoseAnswer())
        with pytest.raises(OutcomeUnknown):
            await here.broker.send(ORDERS, [text(1)])

        assert await here.counts() == [1, 0, 0, 0]


async def test_a_message_with_a_key_never_leaves_its_shard(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        key = next(key for key in map(str, range(100)) if here_shard(here, key) == 2)
        here.fail(2, Refuse())
        with pytest.raises(Unavailable):
            await here.broker.send(ORDERS, [text(1, key)])

        assert await here.counts() == [0, 0, 0, 0]


def here_shard(here: Stand, key: str) -> int:
    queue = here.broker.table.find(ORDERS)
    assert queue is not None
    return queue.shard_of(key)


def keys_of(here: Stand) -> dict[int, str]:
    """A key for each shard."""
    return {here_shard(here, key): key for key in map(str, range(100))}


async def test_a_fault_of_the_message_is_that_of_every_shard(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        with pytest.raises(MessageTooLarge):
            await here.broker.send(ORDERS, [Message(body=bytes(200 * 1024 * 1024))])

        await here.broker.send(ORDERS, [text(1)])  # no shard rests


async def test_a_batch_of_which_one_shard_has_taken_its_part_is_unknown(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand() as here:
        keys = keys_of(here)
        here.fail(2, Refuse())
        with pytest.raises(OutcomeUnknown, match="1 of 2 shards have accepted"):
            await here.broker.send(ORDERS, [text(1, keys[1]), text(2, keys[2])])
        with pytest.raises(Unavailable):
            await here.broker.send(ORDERS, [text(1, keys[2]), text(2, keys[2])])


async def test_each_of_several_batches_has_its_verdict(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        keys = keys_of(here)
        here.fail(2, Refuse())
        batches = [[text(number, keys[number])] for number in range(4)]
        verdicts = await required(here.broker, SendsMany).send_many(ORDERS, batches)

        assert [each is None for each in verdicts] == [True, True, False, True]
        assert await here.counts() == [1, 1, 0, 1]


async def test_concurrent_calls_keep_the_order_of_each_key(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        keys, began = keys_of(here), list[int]()
        many = required(sharded(here.memory, FOUR, here.broker.clock), SendsMany)

        async def send(first: int) -> None:
            began.append(first)  # has its place before its first checkpoint
            await many.send_many(ORDERS, [[text(first + n, keys[n % 4])] for n in range(8)])

        async with trio.open_nursery() as nursery:
            for first in range(0, 80, 8):
                nursery.start_soon(send, first)

        for shard in range(4):
            numbers = [first + step for first in began for step in (shard, shard + 4)]
            assert await here.bodies(shard) == [b"%d" % number for number in numbers]


async def test_a_sharded_queue_alone_has_no_schedule_in_a_transaction(
    autojump_clock: trio.abc.Clock,
) -> None:
    bulk = EntityPath("bulk")
    later = Message(message_id="1", scheduled=START + timedelta(hours=1))
    async with MemoryBroker(VirtualClock(), random.Random(0)) as memory:
        broker = sharded(memory, FOUR, VirtualClock())
        for queue in (ORDERS, bulk):
            await broker.create_queue(queue, QueueProperties())

        await broker.commit([await broker.enlist_schedule(bulk, [later])])
        [there] = await memory.peek(bulk)
        await broker.commit([broker.enlist_cancellation(bulk, [there.sequence_number])])

        assert await memory.peek(bulk) == []
        with pytest.raises(NotSupported, match="orders is sharded"):
            await broker.enlist_schedule(ORDERS, [later])
        with pytest.raises(NotSupported, match="orders is sharded"):
            broker.enlist_cancellation(ORDERS, [1])


async def test_schedules_are_cancelled_in_their_shards(autojump_clock: trio.abc.Clock) -> None:
    async with stand() as here:
        keys = keys_of(here)
        schedules = required(sharded(here.memory, FOUR, here.broker.clock), Schedules)
        later = START.replace(year=START.year + 1)
        messages = [attrs.evolve(text(n, keys[n]), scheduled=later) for n in range(4)]
        numbers = await schedules.schedule(ORDERS, messages)
        assert (await here.broker.inspect(ORDERS)).scheduled == 4

        await schedules.cancel_scheduled(ORDERS, numbers[1:])
        assert (await here.broker.inspect(ORDERS)).scheduled == 1

        with pytest.raises(MessageNotFound):  # none was removed
            await schedules.cancel_scheduled(ORDERS, numbers[3:])
        with pytest.raises(OutcomeUnknown, match="1 of 2 messages were removed"):
            await schedules.cancel_scheduled(ORDERS, [numbers[0], numbers[3]])
        assert (await here.broker.inspect(ORDERS)).scheduled == 0


@attrs.define(eq=False, kw_only=True)
class Partitioned(Altered):
    """
    A namespace whose scheduled messages have numbers as in a partitioned entity of Service Bus.
    """

    refuses: bool = False  # to cancel them

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        found = await required(self.broker, Schedules).schedule(entity, messages)
        return [number | 1 << 60 for number in found]

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        if self.refuses:
            raise Unavailable("not now")
        numbers = [number & ~(1 << 60) for number in sequence_numbers]
        await required(self.broker, Schedules).cancel_scheduled(entity, numbers)


@pytest.mark.parametrize("refuses", [False, True])
async def test_nothing_stays_scheduled_for_certain_that_has_no_number_in_the_sharded_queue(
    refuses: bool, autojump_clock: trio.abc.Clock
) -> None:
    async with stand() as here:
        namespace = Partitioned(broker=here.memory, refuses=refuses)
        schedules = required(sharded(namespace, FOUR, here.broker.clock), Schedules)
        message = attrs.evolve(text(1), scheduled=START.replace(year=START.year + 1))

        with pytest.raises(BrokerError) as caught:
            await schedules.schedule(ORDERS, [message])

        assert isinstance(caught.value, OutcomeUnknown if refuses else NotSupported)
        assert (await here.broker.inspect(ORDERS)).scheduled == (1 if refuses else 0)


@pytest.mark.parametrize("number", [900 << 53 | 5, 5, -1])
async def test_a_number_that_leads_to_no_message_of_any_shard_isnt_cancelled(
    number: int, autojump_clock: trio.abc.Clock
) -> None:
    async with stand() as here:
        schedules = required(sharded(here.memory, FOUR, here.broker.clock), Schedules)
        later = START.replace(year=START.year + 1)
        [first] = await schedules.schedule(ORDERS, [attrs.evolve(text(1, "key"), scheduled=later)])

        with pytest.raises(MessageNotFound):
            await schedules.cancel_scheduled(ORDERS, [first, number])

        await schedules.cancel_scheduled(ORDERS, [first])


async def test_a_shard_in_another_namespace_is_reached_there(
    autojump_clock: trio.abc.Clock,
) -> None:
    clock, rng = VirtualClock(), random.Random(0)
    rule = ShardingRule(queue="orders", shards=3, namespaces=("east", "other", "east"))
    table = ShardTable.of([rule])
    async with MemoryBroker(clock, rng) as east, MemoryBroker(clock, rng) as other:
        places = ShardPlaces(home=east, others={"other": other}, table=table)
        broker = sharded(places, table, clock)
        await broker.create_queue(ORDERS, QueueProperties())
        for number in range(6):
            await broker.send(ORDERS, [text(number)])

        assert [info.path.name for info in await other.list_queues()] == [ORDERS.shard(1).name]
        assert (await other.inspect(ORDERS.shard(1))).active == 2
        assert (await broker.inspect(ORDERS)).active == 6
        async with broker.open_receiver(ORDERS) as receiver:
            for _ in range(6):
                [delivery] = await receiver.receive(1)
                await receiver.settle(delivery, Complete())
        assert (await broker.inspect(ORDERS)).active == 0


@asynccontextmanager
async def paired(
    rule: ShardingRule, **options: Any
) -> AsyncIterator[tuple[Stand, Any, Broker, ShardTable]]:
    """A sharded queue of a pair, whose primary misbehaves on command."""
    clock, rng = VirtualClock(), random.Random(0)
    table = ShardTable.of([rule])
    async with (
        MemoryBroker(clock, rng) as memory,
        MemoryBroker(clock, rng) as secondary,
        trio.open_nursery() as nursery,
    ):
        faulty = FaultyBroker(inner=memory)
        await nursery.start(faulty.run)
        places = ShardPlaces(home=faulty, others={}, table=table)
        async with pair_of(places, secondary, clock, failover_interval=0.0) as pair:
            states = pair.states
            broker = sharded(
                pair.broker,
                table,
                clock,
                is_healthy=lambda shard: states.state_of(shard) is State.PRIMARY,
                keeps_order=pair.broker.keeps_order,
            )
            await broker.create_queue(ORDERS, QueueProperties())
            yield Stand(broker, faulty, memory), pair, secondary, table
        nursery.cancel_scope.cancel()


async def test_in_a_pair_each_shard_fails_over_by_itself_and_its_keys_return_to_it(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with paired(FOUR) as (here, pair, secondary, _):
        keys = keys_of(here)

        def fault(operation: Operation, entity: EntityPath) -> Any:
            return Refuse() if entity == ORDERS.shard(2) else None

        here.faulty.fault = fault
        accepted = [
            await send_accepted_by(here.broker, ORDERS, [text(number, keys[number])])
            for number in range(4)
        ]
        assert [each is AcceptedBy.BACKLOG for each in accepted] == [False, False, True, False]
        assert pair.states.state_of(ORDERS.shard(2)) is not State.PRIMARY
        assert pair.states.state_of(ORDERS) is State.PRIMARY

        for number in range(8):  # the others are better
            assert await send_accepted_by(here.broker, ORDERS, [text(number)]) is AcceptedBy.PRIMARY
        assert (await here.counts())[2] == 0

        here.faulty.fault = lambda operation, entity: None
        async with trio.open_nursery() as nursery:
            syphon = syphon_of(pair.broker.primary, secondary, VirtualClock())
            await nursery.start(syphon.run)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert await here.bodies(2) == [b"2"]


async def test_in_a_pair_a_backlog_never_returns_to_a_shard_that_drains(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with paired(FOUR) as (here, pair, secondary, table):
        keys = keys_of(here)
        here.faulty.fault = lambda operation, entity: Refuse()
        for number in (2, 2, 1):
            await here.broker.send(ORDERS, [text(number, keys[number])])
        table.replace([attrs.evolve(FOUR, drain=(2,))])
        here.faulty.fault = lambda operation, entity: None

        async with trio.open_nursery() as nursery:
            syphon = syphon_of(pair.broker.primary, secondary, VirtualClock())
            await nursery.start(syphon.run)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()

        counts = await here.counts()
        assert (counts[2], sum(counts)) == (0, 3)
        moved = here_shard(here, keys[2])
        assert [body for body in await here.bodies(moved) if body == b"2"] == [b"2", b"2"]


async def test_an_ordered_queue_keeps_messages_without_a_key_in_one_shard(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with stand(keeps_order=lambda queue: True) as here:
        for number in range(5):
            await here.broker.send(ORDERS, [text(number)])

        assert await here.counts() == [5, 0, 0, 0]
