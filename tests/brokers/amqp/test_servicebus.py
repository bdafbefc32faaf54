"""Service Bus over AMQP beyond the contract: batches, pages, keys of one entity."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import attrs
import pytest
import trio
import trio.testing

from gateway.brokers.servicebus.management import RestManagement
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest, NotAuthorized
from gateway.domain.message import Abandon, Defer, Message
from gateway.frontends.amqp import outgoing
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.sessions import LocalSessionReceiver
from gateway.wire.amqp.servicebus.deliveries import encode_delivery
from tests.brokers.amqp.served import House, client, served

ORDERS, OTHERS = EntityPath("orders"), EntityPath("others")
CHATS = EntityPath("chats")


@pytest.fixture
async def house():
    async with served() as house:
        for queue in (ORDERS, OTHERS):
            await house.broker.create_queue(queue, QueueProperties())
        yield house


@pytest.fixture
async def broker(house):
    async with client(house.port) as broker:
        yield broker


async def sent(house: House) -> list[str]:
    ids: list[str] = []
    after = 0
    while shown := await house.broker.peek(ORDERS, from_sequence=after, limit=10_000):
        ids += [str(each.message.message_id) for each in shown]
        after = shown[-1].sequence_number + 1
    return ids


async def test_a_batch_above_the_limit_of_the_link_goes_in_several_in_order(house, broker):
    messages = [Message(message_id=str(number), body=bytes(400_000)) for number in range(5)]
    await broker.send(ORDERS, messages)

    assert await sent(house) == ["0", "1", "2", "3", "4"]


async def test_a_batch_of_very_many_messages_goes_in_several_in_order(house, broker):
    await broker.send(ORDERS, [Message(message_id=str(number)) for number in range(5000)])

    assert await sent(house) == [str(number) for number in range(5000)]


async def test_a_batch_with_one_that_cannot_be_written_is_not_sent(house, broker):
    bad = Message(message_id="2", properties={"n": 2**70})
    with pytest.raises(InvalidRequest):
        await broker.send(ORDERS, [Message(message_id="1"), bad])

    assert await sent(house) == []


async def test_a_peek_of_more_than_one_reply_holds_shows_all(broker):
    for number in range(3):
        await broker.send(ORDERS, [Message(message_id=str(number), body=bytes(600_000))])
    shown = await broker.peek(ORDERS, limit=10)

    assert [each.message.message_id for each in shown] == ["0", "1", "2"]


async def test_messages_over_amqp_are_as_large_as_the_namespace_allows(house, broker):
    large = EntityPath("large")
    await house.broker.create_queue(large, QueueProperties(max_message_size=100 * 2**20))

    assert (await broker.inspect(large)).max_message_size == 100 * 2**20


async def test_a_deferred_message_is_given_back_when_its_receiver_is_left(broker):
    await broker.send(ORDERS, [Message(message_id="1")])
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Defer())
        await receiver.receive_deferred([delivery.sequence_number])
    async with broker.open_receiver(ORDERS) as receiver:
        [again] = await receiver.receive_deferred([delivery.sequence_number])

    assert again.message.message_id == "1"


async def test_a_delivery_of_a_queue_that_was_listed_tells_when_it_was_received(house, broker):
    await broker.send(ORDERS, [Message(message_id=str(number)) for number in range(2)])
    async with broker.open_receiver(ORDERS) as receiver:
        [unknown] = await receiver.receive(1)
        await broker.list_queues()
        [known] = await receiver.receive(1)

    lock = (await house.broker.inspect(ORDERS)).properties.lock_duration
    assert unknown.received is None
    assert known.received == known.locked_until - lock
    assert known.received >= known.enqueued


async def test_of_a_delivery_whose_lock_ended_in_the_year_1_nobody_knows_when_it_was_received(
    broker, monkeypatch
):
    def encode(delivery):
        return encode_delivery(attrs.evolve(delivery, locked_until=datetime(1, 1, 1, tzinfo=UTC)))

    monkeypatch.setattr(outgoing, "encode_delivery", encode)
    await broker.list_queues()
    await broker.send(ORDERS, [Message(message_id="1")])
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)

    assert delivery.received is None


async def test_lock_durations_are_kept_of_the_queues_that_were_listed_last(broker, monkeypatch):
    """A namespace may list other queues each time."""
    await broker.list_queues()
    await broker.send(ORDERS, [Message(message_id="1")])

    async def list_queues(*_arguments, skip, top):
        await trio.lowlevel.checkpoint()
        return [EntityInfo(path=EntityPath(f"q{number}")) for number in range(skip, skip + top)]

    monkeypatch.setattr(RestManagement, "list_queues", list_queues)
    for page in range(10):
        await broker.list_queues(skip=page * 1000, top=1000)
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)

    assert delivery.received is None


async def test_a_key_for_one_entity_serves_for_that_one_and_its_management(house):
    policy = AccessPolicy(
        name="limited", keys=("k" * 16,), rights=frozenset(Right), entities=("orders",)
    )
    house.authorizer.replace([policy])
    async with client(house.port, key_name="limited", key="k" * 16) as broker:
        await broker.send(ORDERS, [Message(message_id="1")])
        shown = await broker.peek(ORDERS)
        async with broker.open_receiver(ORDERS.dead_letter):
            pass
        with pytest.raises(NotAuthorized):
            await broker.send(OTHERS, [Message(message_id="1")])

    assert len(shown) == 1


async def test_a_session_that_was_closed_is_free_for_who_asks_next(house, broker, monkeypatch):
    await house.broker.create_queue(CHATS, QueueProperties(requires_session=True))
    await broker.send(CHATS, [Message(session_id=each) for each in ("a", "b")])
    open_session = house.broker.open_session

    @asynccontextmanager
    async def released_late(_, entity, wanted):
        async with open_session(entity, wanted) as session:
            yield session
            with trio.CancelScope(shield=True):
                await trio.sleep(0.1)

    monkeypatch.setattr(MemoryBroker, "open_session", released_late)
    found = []
    async with client(house.port) as other:
        for each, wanted in ((broker, None), (broker, None), (other, None), (broker, "a")):
            async with each.open_session(CHATS, wanted) as session:
                found.append(session.session_id)

    assert found == ["a", "a", "a", "a"]


async def test_a_receive_of_a_session_waits_while_a_message_goes_back(house, broker, monkeypatch):
    look = LocalSessionReceiver.receive_available

    async def look_late(receiver, limit):
        await trio.sleep(0.05)
        return await look(receiver, limit)

    await house.broker.create_queue(CHATS, QueueProperties(requires_session=True))
    await broker.send(CHATS, [Message(session_id="a", message_id="0")])
    found = []
    async with broker.open_session(CHATS, "a") as session, trio.open_nursery() as nursery:
        [first] = await session.receive(2)
        monkeypatch.setattr(LocalSessionReceiver, "receive_available", look_late)
        await broker.send(CHATS, [Message(session_id="a", message_id=f"{each}") for each in (1, 2)])
        nursery.start_soon(session.settle, first, Abandon())
        await trio.testing.wait_all_tasks_blocked(0.01)
        while len(found) < 3:
            found += await session.receive(3)

    assert [each.message.message_id for each in found] == ["0", "1", "2"]
