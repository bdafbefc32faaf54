"""The shards as an operator sees them, over HTTP, from the control call's row to its executor."""

import random
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

from gateway.app.assembly.building import make_parts
from gateway.app.runtime import Runtime
from gateway.config.file import parse
from gateway.domain.entity import EntityInfo, QueueProperties
from gateway.domain.message import Message
from gateway.domain.operators.control import Operator
from gateway.extensions.sharding.command import _lines
from gateway.extensions.sharding.shards import (
    SHARDS,
    ShardReports,
    ShardsAnswer,
    ShardState,
    is_empty,
)
from gateway.extensions.sharding.table import ShardingRule, ShardTable
from gateway.store.local.memory import MemoryBroker
from gateway.wire.pairgate.control_call import NoKeys
from tests.extensions.sharding.harness import ORDERS
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Hang, Refuse

ANN = Operator(name="ann", peer="127.0.0.1:1")
RULE = ShardingRule(queue="orders", shards=3, drain=(2,))


async def reported(faulty: FaultyBroker, table: ShardTable) -> ShardsAnswer:
    return await ShardReports(broker=faulty, table=table, home="east").execute(NoKeys(), ANN)


@pytest.fixture
async def faulty(autojump_clock: trio.abc.Clock):
    async with (
        MemoryBroker(VirtualClock(), random.Random(0)) as memory,
        trio.open_nursery() as nursery,
    ):
        broker = FaultyBroker(inner=memory)
        for number in range(3):
            await memory.create_queue(ORDERS.shard(number), QueueProperties())
        await nursery.start(broker.run)
        yield broker
        nursery.cancel_scope.cancel()


async def test_each_shard_is_told_with_its_messages_and_its_state(faulty: FaultyBroker) -> None:
    table = ShardTable.of([RULE])
    await faulty.send(ORDERS.shard(1), [Message(body=b"a"), Message(body=b"b")])

    answer = await reported(faulty, table)

    assert [(each.number, each.state, each.messages, each.is_empty) for each in answer.shards] == [
        (0, ShardState.ACTIVE, 0, True),
        (1, ShardState.ACTIVE, 2, False),
        (2, ShardState.DRAINING, 0, True),
    ]
    assert {each.problem for each in answer.shards} == {""}
    assert _lines("", answer) == [
        "orders 0  active, in east: empty",
        "orders 1  active, in east: 2 messages to receive",
        "orders 2  draining, in east: empty: remove it",
    ]


async def test_a_shard_that_a_reload_adds_joins(faulty: FaultyBroker) -> None:
    table = ShardTable.of([attrs.evolve(RULE, shards=2, drain=())])
    table.replace([attrs.evolve(RULE, drain=())])

    answer = await reported(faulty, table)

    assert [each.state for each in answer.shards][2] is ShardState.JOINING


@pytest.mark.parametrize("fault", [Refuse(), Hang()], ids=["refuse", "hang"])
async def test_figures_of_a_shard_that_does_not_answer_are_unknown(faulty, fault) -> None:
    faulty.fault = lambda _, entity: fault if entity == ORDERS.shard(1) else None

    answer = await reported(faulty, ShardTable.of([RULE]))

    first, silent, last = answer.shards
    assert (silent.messages, silent.is_empty) == (None, None)
    assert silent.problem
    assert (first.messages, last.is_empty) == (0, True)
    assert "not known" in _lines("", answer)[1]


@pytest.mark.parametrize(
    ("counts", "empty"),
    [
        ({"active": 0}, True),
        ({"active": 1}, False),
        ({"active": None}, None),
        ({"active": 0, "locked_here": 1}, False),
        ({"active": 0, "other_consumers": 1}, None),
        ({"active": 0, "scheduled": 1}, False),
        ({"active": None, "deferred": 1}, False),
    ],
)
def test_a_shard_is_empty_only_if_nothing_may_be_in_it(counts, empty) -> None:
    assert is_empty(EntityInfo(path=ORDERS, **counts)) is empty


async def test_a_gateway_with_sharded_queues_executes_the_call(tmp_path: Path) -> None:
    text = """
[namespaces.east]
url = "memory:"
queues = ["orders"]
[[sharding]]
queue = "orders"
shards = 2
"""
    config = parse(text, source="x.toml", folder=tmp_path, environ={}).config
    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, Runtime())
        [executor] = [each for each in parts.executors if each.call is SHARDS]
        answer = await executor.execute(NoKeys(), ANN)

    assert [each.path for each in answer.shards] == ["orders", "orders/x-pairgate-shard/1"]
    assert {each.namespace for each in answer.shards} == {"east"}
    assert SHARDS.parse_answer(SHARDS.build_answer(answer), NoKeys()) == answer
