"""Sends to a single namespace, receives and settlements are counted and timed."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.app.assembly.building import make_parts
from gateway.app.assembly.parts import Parts
from gateway.app.runtime import Runtime
from gateway.app.status.board import StatusBoard
from gateway.capabilities import SettlesMany
from gateway.config.file import parse
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, LockLost
from gateway.domain.health.distribution import LATENCIES, Distribution
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message
from gateway.domain.status.pair import SendCount
from gateway.domain.status.process import OperationDuration, Status
from gateway.offering import required
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.abilities import AbilityWatch
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Operation, T, Work
from tests.harness.watched import watched
from tests.telemetry.metrics import value

ORDERS = EntityPath("orders")
ALONE = '[namespaces.east]\nurl = "memory:"\nqueues = ["orders"]\n'
DURATION = "messaging_client_operation_duration_seconds"


@attrs.frozen
class Second:
    """A fault: the answer takes a second."""

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        await trio.sleep(1)
        return await work()


def took(*seconds: float) -> Distribution:
    """A distribution with one value in each range that these seconds fall in."""
    counts = [0] * (len(LATENCIES) + 1)
    for each in seconds:
        counts[sum(bound < each for bound in LATENCIES)] += 1
    return Distribution(LATENCIES, tuple(counts), sum(seconds))


@attrs.frozen
class Stand:
    """A namespace in memory that answers late, and its measured times."""

    faulty: FaultyBroker
    broker: Broker
    watch: AbilityWatch

    def told(self) -> dict[tuple[str, str], Distribution]:
        read: Sequence[OperationDuration] = self.watch.times.read()
        return {(each.name, each.error): each.seconds for each in read}


@pytest.fixture
async def stand(nursery: trio.Nursery) -> Stand:
    clock = VirtualClock()
    store = MemoryBroker(clock, random.Random(0))
    await store.create_queue(ORDERS, QueueProperties())
    faulty = FaultyBroker(inner=store)
    await nursery.start(faulty.run)
    watch = AbilityWatch(clock=clock)
    return Stand(faulty, watched(faulty, watch), watch)


async def test_a_receive_takes_until_its_messages_are_there(
    stand: Stand, autojump_clock: MockClock
) -> None:
    async with stand.broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:
        nursery.start_soon(receiver.receive, 1)
        await trio.sleep(3)
        await stand.broker.send(ORDERS, [Message()])

    assert stand.told() == {("receive", ""): took(3.0)}


async def test_a_receive_without_messages_is_none_and_a_failed_one_has_its_error(
    stand: Stand, autojump_clock: MockClock
) -> None:
    async with stand.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(5):
            await receiver.receive(1)
        idle = stand.told()
        await stand.faulty.inner.delete_queue(ORDERS)
        with pytest.raises(EntityNotFound):
            await receiver.receive(1)

    assert idle == {}
    assert set(stand.told()) == {("receive", "EntityNotFound")}


async def test_settlements_are_told_apart_by_their_kind_and_error(
    stand: Stand, autojump_clock: MockClock
) -> None:
    await stand.broker.send(ORDERS, [Message()] * 4)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        first, *others = await receiver.receive(4)
        stand.faulty.fault = lambda asked, _: Second() if asked is Operation.SETTLE else None
        await receiver.settle(first, Complete())
        stand.faulty.fault = lambda *_: None
        for delivery, settlement in zip(
            others, (Abandon(), DeadLetter(reason="wrong"), Defer()), strict=True
        ):
            await receiver.settle(delivery, settlement)
        with pytest.raises(LockLost):
            await receiver.settle(first, Complete())

    told = stand.told()
    del told["receive", ""]
    assert told == {
        ("complete", ""): took(1.0),
        ("abandon", ""): took(0.0),
        ("dead_letter", ""): took(0.0),
        ("defer", ""): took(0.0),
        ("complete", "LockLost"): took(0.0),
    }


async def test_settlements_in_one_step_are_one_operation(
    stand: Stand, autojump_clock: MockClock
) -> None:
    await stand.broker.send(ORDERS, [Message()] * 4)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        one, two, three, four = await receiver.receive(4)
        many = required(receiver, SettlesMany)
        await many.settle_many([(one, Complete()), (two, Complete())])
        await many.settle_many([(three, Complete()), (four, Abandon())])
        await many.settle_many([(one, Complete())])

    told = stand.told()
    del told["receive", ""]
    assert told == {
        ("complete", ""): took(0.0),
        ("settle", ""): took(0.0),
        ("complete", "LockLost"): took(0.0),
    }


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[tuple[Parts, StatusBoard]]:
    """A gateway in front of a single namespace."""
    config = parse(ALONE, source="test", folder=tmp_path, environ={}).config
    runtime = Runtime()
    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, runtime)
        yield (
            parts,
            StatusBoard(config=config, runtime=runtime, refusals=parts.refusals, parts=parts),
        )


async def test_sends_receives_and_settlements_have_metrics_without_a_pair(
    alone: tuple[Parts, StatusBoard],
) -> None:
    parts, board = alone
    before = board.counts()
    await parts.broker.send(ORDERS, [Message(), Message()])
    with pytest.raises(EntityNotFound):
        await parts.broker.send(EntityPath("missing"), [Message()])
    async with parts.broker.open_receiver(ORDERS) as receiver:
        for delivery in await receiver.receive(2):
            await receiver.settle(delivery, Complete())
    told: Status = board.counts()

    assert (before.sends, before.durations) == ((), ())
    assert told.pair is None
    assert told.sends == (
        SendCount(accepted_by="primary", outcome="accepted", messages=2),
        SendCount(accepted_by="", outcome="not-sent", messages=1, error="EntityNotFound"),
    )
    sent = ("pairgate", "send", "primary", "accepted", "")
    assert value(told, "messaging_client_sent_messages_total", *sent) == 2
    assert value(told, f"{DURATION}_count", "pairgate", "send", "primary", "") == 1
    assert value(told, f"{DURATION}_count", "pairgate", "receive", "east", "") == 1
    assert value(told, f"{DURATION}_count", "pairgate", "complete", "settle", "east", "") == 2


async def test_a_send_whose_caller_leaves_counts_as_cancelled(
    alone: tuple[Parts, StatusBoard],
) -> None:
    parts, board = alone
    with trio.CancelScope() as scope:
        scope.cancel()
        await parts.broker.send(ORDERS, [Message()])

    [count] = board.counts().sends
    assert (count.outcome, count.error, count.messages) == ("unknown", "Cancelled", 1)
