"""Each kind of namespace counts its operations, as a cloud would bill them."""

import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.brokers.meter import Meter
from gateway.brokers.storage_queue.broker import StorageQueueBroker
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound
from gateway.domain.message import Complete, Delivery, Message
from gateway.domain.storage_queue import Terms
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from tests.brokers.amqp import served as amqp
from tests.brokers.servicebus import served as rest
from tests.brokers.storage_queue.harness import harness
from tests.harness.clocks import VirtualClock

ORDERS = EntityPath("orders")
NOWHERE = EntityPath("nowhere")
SESSIONS = EntityPath("sessions")
SECOND = timedelta(seconds=1)


async def counted(meter: Meter, work: Callable[[], Awaitable[object]]) -> Mapping[str, int]:
    """Return the operations that the meter counts while `work` is done."""
    before = meter.usage().operations
    await work()
    after = meter.usage().operations
    return {
        each.value: after[each] - before[each] for each in Operation if after[each] != before[each]
    }


@pytest.fixture
async def memory() -> MemoryBroker:
    broker = MemoryBroker(VirtualClock(), random.Random(1))
    await broker.create_queue(ORDERS, QueueProperties())
    return broker


async def test_a_batch_counts_as_its_messages(memory: MemoryBroker) -> None:
    async def work() -> None:
        await memory.send(ORDERS, [Message(body=b"x")] * 10)
        await memory.send_many(ORDERS, [[Message(body=b"x")], [Message(body=b"y")] * 2])

    assert await counted(memory.meter, work) == {"send": 13}
    assert memory.meter.usage().sent == 13


async def test_a_large_message_counts_for_each_64_kib_both_ways(memory: MemoryBroker) -> None:
    async def work() -> None:
        await memory.send(ORDERS, [Message(body=b"x" * 96 * 1024)])
        async with memory.open_receiver(ORDERS) as receiver:
            (delivery,) = await receiver.receive(10)
            await receiver.settle(delivery, Complete())

    assert await counted(memory.meter, work) == {"send": 2, "receive": 2, "settle": 1}


async def test_locks_questions_and_changes_count(memory: MemoryBroker) -> None:
    await memory.send(ORDERS, [Message()])

    async def work() -> None:
        async with memory.open_receiver(ORDERS) as receiver:
            (delivery,) = await receiver.receive(1)
            await receiver.renew(delivery)
            await receiver.settle_many([(delivery, Complete())])
        await memory.peek(ORDERS)
        await memory.probe(ORDERS)
        await memory.inspect(ORDERS)
        await memory.list_queues()
        await memory.create_queue(NOWHERE, QueueProperties())
        await memory.delete_queue(NOWHERE)

    assert await counted(memory.meter, work) == {
        "receive": 1,
        "renew": 1,
        "settle": 1,
        "peek": 1,
        "inspect": 3,
        "manage": 2,
    }


async def test_to_hold_a_session_counts(memory: MemoryBroker) -> None:
    await memory.create_queue(SESSIONS, QueueProperties(requires_session=True))
    await memory.send(SESSIONS, [Message(session_id="s")])

    async def work() -> None:
        async with memory.open_session(SESSIONS, None) as session:
            await session.renew_session()
            await session.set_state(b"1")
            await session.get_state()

    assert await counted(memory.meter, work) == {"renew": 1, "manage": 3}


async def test_to_wait_for_a_message_that_is_pushed_costs_nothing(
    memory: MemoryBroker, autojump_clock: MockClock
) -> None:
    async def work() -> None:
        async with memory.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(3600):
                await receiver.receive(1)

    assert await counted(memory.meter, work) == {}


async def test_a_message_that_is_refused_at_once_was_never_sent(memory: MemoryBroker) -> None:
    async def work() -> None:
        with pytest.raises(EntityNotFound):
            await memory.send(NOWHERE, [Message()])

    assert await counted(memory.meter, work) == {}


async def test_a_storage_client_of_a_store_is_counted_by_its_requests(
    memory: MemoryBroker,
) -> None:
    visibility = LocalVisibility(memory)

    async def work() -> None:
        for _ in range(3):
            await visibility.put(ORDERS, Message(body=b"x" * 70_000), timedelta())
        first, *_ = await visibility.dequeue(ORDERS, 32, lambda _: Terms(hidden=SECOND))
        await visibility.dequeue(ORDERS, 32, lambda _: Terms(hidden=SECOND))
        changed = await visibility.change(ORDERS, first.receipt, SECOND)
        await visibility.remove(ORDERS, changed.receipt)
        await visibility.peek(ORDERS, 1)

    assert await counted(memory.meter, work) == {
        "send": 3,
        "receive": 1,
        "empty": 1,
        "renew": 1,
        "settle": 1,
        "peek": 1,
    }


async def storage(broker: StorageQueueBroker, messages: int) -> None:
    await broker.send(ORDERS, [Message(body=b"x")] * messages)
    async with broker.open_receiver(ORDERS) as receiver:
        found = list(await receiver.poll(32))
        while len(found) < messages:
            found += await receiver.poll(32)
        await receiver.poll(32)
        for delivery in found:
            await receiver.settle(delivery, Complete())


async def test_each_request_to_storage_counts_an_empty_one_too(
    autojump_clock: MockClock,
) -> None:
    async with harness() as place:
        await place.broker.create_queue(ORDERS, QueueProperties())

        told = await counted(place.broker.meter, lambda: storage(place.broker, 5))

    # To open a receiver reads the metadata of its queue.
    assert told == {"send": 5, "inspect": 1, "receive": 1, "empty": 1, "settle": 5}
    assert place.broker.meter.usage().received == 5


async def test_looks_of_a_receiver_that_waits_at_storage_count(autojump_clock: MockClock) -> None:
    async def work() -> None:
        async with place.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(60):
                await receiver.receive(1)

    async with harness() as place:
        await place.broker.create_queue(ORDERS, QueueProperties())
        told = await counted(place.broker.meter, work)

    assert told.pop("inspect") == 1
    assert set(told) == {"empty"}
    assert told["empty"] == place.account.count("GET", "messages")


@pytest.mark.parametrize("open_place", [rest.pairgate, amqp.pairgate])
async def test_over_the_network_messages_settlements_and_questions_count(
    open_place: Callable[[Path], AbstractAsyncContextManager[Any]], tmp_path: Path
) -> None:
    async def work() -> None:
        await broker.send(ORDERS, [Message(body=b"x"), Message(body=b"y")])
        async with broker.open_receiver(ORDERS) as receiver:
            found: list[Delivery] = []
            while len(found) < 2:
                found += await receiver.receive(2)
            await receiver.renew(found[0])
            for delivery in found:
                await receiver.settle(delivery, Complete())
        await broker.peek(ORDERS)
        await broker.inspect(ORDERS)

    async with open_place(tmp_path) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
        await broker.probe(ORDERS)
        with trio.fail_after(30):
            told = await counted(broker.meter, work)

    assert told == {"send": 2, "receive": 2, "renew": 1, "settle": 2, "peek": 1, "inspect": 1}
