"""The traps of RabbitMQ's plugin for AMQP 1.0."""

import uuid
from datetime import UTC, datetime

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
)
from gateway.domain.message import (
    Abandon,
    Complete,
    DataBody,
    DeadLetter,
    Defer,
    Kind,
    Message,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from tests.brokers.amqp import rabbit
from tests.brokers.contract import is_empty, make, take_all, take_one
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")


@pytest.fixture
async def broker(rabbits):
    async with rabbit.namespace_at(rabbits) as namespace:
        yield namespace


async def test_once_its_queue_is_gone_a_message_is_not_accepted(rabbits):
    async with rabbit.namespace_at(rabbits, kind="classic") as broker:
        queue = await make(broker, "orders")
        await broker.send(queue, [Message(message_id="1")])
        await broker.delete_queue(queue)
        with trio.fail_after(PATIENCE):
            while True:
                # Messages that are accepted before the news arrives count as deleted with the queue
                try:
                    await broker.send(queue, [Message(message_id="2")])
                except (EntityNotFound, OutcomeUnknown):
                    break
        with pytest.raises(EntityNotFound):
            await broker.send(queue, [Message(message_id="3")])
        await make(broker, "orders")

        assert await is_empty(broker, queue)


async def test_a_queue_that_is_there_again_is_sent_to_again(broker):
    queue = await make(broker, "orders")
    await broker.send(queue, [Message(message_id="1")])
    await broker.delete_queue(queue)
    await make(broker, "orders")
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await broker.send(queue, [Message(message_id="2")])
                break
            except OutcomeUnknown:  # RabbitMQ ended the connection for the queue that went
                continue
    async with broker.open_receiver(queue) as receiver:
        assert (await take_one(receiver)).message.message_id == "2"


@pytest.mark.parametrize(
    "message",
    [
        Message(body=DataBody((b"one", b"two"))),
        Message(body=SequenceBody(((1,), (2,)))),
        Message(body=ValueBody([1])),
        Message(properties={"list": [1]}),
        Message(properties={"map": {"a": 1}}),
        Message(properties={"array": Typed(Kind.ARRAY, (1,))}),
    ],
    ids=repr,
)
async def test_a_message_that_would_come_out_changed_is_refused_and_breaks_nothing(broker, message):
    queue = await make(broker, "orders")
    with pytest.raises(NotSupported):
        await broker.send(queue, [Message(message_id="1"), message])

    assert await is_empty(broker, queue)


async def test_another_users_id_is_refused(broker):
    queue = await make(broker, "orders")
    with pytest.raises(InvalidRequest, match="user_id"):
        await broker.send(queue, [Message(message_id="1", user_id=b"somebody")])
    await broker.send(queue, [Message(message_id="1", user_id=b"guest")])


async def test_simple_types_survive(broker):
    queue = await make(broker, "orders")
    values = [True, -(2**63), 1.5, "text", b"\x00", uuid.UUID(int=7), symbol("s")]
    values += [Typed(Kind.UINT, 7), Typed(Kind.ULONG, 2**64 - 1), Typed(Kind.CHAR, "x")]
    values += [datetime(2026, 1, 1, tzinfo=UTC), Typed(Kind.DECIMAL64, b"12345678"), None]
    message = Message(
        message_id=uuid.UUID(int=1),
        properties={f"value-{number}": value for number, value in enumerate(values)},
        annotations={"x-mine": 1},
        to="there",
        session_id="s",
        body=ValueBody({"map": [1]}),
    )
    await broker.send(queue, [message])
    async with broker.open_receiver(queue) as receiver:
        assert (await take_one(receiver)).message == message


async def test_a_message_on_its_way_to_a_receiver_that_closes_is_received_again(broker):
    """The plugin keeps what it sent to a detached link locked; it ends with the link's session."""
    queue = await make(broker, "orders")
    messages = [Message(message_id=str(number)) for number in range(100)]
    await broker.send(queue, messages)
    for _ in range(5):
        async with broker.open_receiver(queue) as receiver:
            with trio.fail_after(PATIENCE):
                await receiver.receive(50)

    async with broker.open_receiver(queue) as receiver:
        taken = await take_all(receiver, 100)

    assert {each.message.message_id for each in taken} == {str(n) for n in range(100)}


@pytest.mark.parametrize("settlement", [DeadLetter(reason="bad"), Defer()], ids=repr)
async def test_a_settlement_by_which_the_plugin_would_lose_a_message_is_not_used(
    broker, settlement
):
    queue = await make(broker, "orders")
    await broker.send(queue, [Message(message_id="1")])
    async with broker.open_receiver(queue) as receiver:
        delivery = await take_one(receiver)
        with pytest.raises(NotSupported):
            await receiver.settle(delivery, settlement)
        await receiver.settle(delivery, Abandon())
        [again] = await take_all(receiver, 1)
        until = await receiver.renew(again)
        await receiver.settle(again, Complete())

        assert until > datetime.now(UTC)
    assert await is_empty(broker, queue)


async def test_a_classic_queue_is_one_as_well(rabbits):
    async with rabbit.namespace_at(rabbits, kind="classic") as broker:
        queue = await make(broker, "orders")
        messages = [Message(message_id=str(number)) for number in range(100)]
        await broker.send(queue, messages)
        async with broker.open_receiver(queue) as receiver:
            taken = await take_all(receiver, 100)

        assert [each.message.message_id for each in taken] == [str(n) for n in range(100)]


async def test_a_wrong_password_is_no_outage(rabbits, monkeypatch):
    monkeypatch.setattr(rabbit, "PASSWORD", "wrong")
    async with rabbit.client(rabbits.port("primary")) as broker:
        with pytest.raises(NotAuthorized):
            await broker.probe(ORDERS)
