"""RabbitMQ 4 over AMQP 1.0, which has rules of its own."""

import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound, OutcomeUnknown, Unavailable
from gateway.domain.message import Abandon, Complete, Message
from tests.brokers.amqp import rabbit
from tests.brokers.contract import is_empty, make, take_one
from tests.brokers.rabbitmq.nodes import NEWER, Nodes

pytestmark = [pytest.mark.slow, pytest.mark.shared]


@pytest.fixture
async def broker(rabbits: Nodes):
    async with rabbit.namespace_at(rabbits, NEWER) as namespace:
        yield namespace


async def test_a_completion_lasts(broker):
    queue = await make(broker, "orders")
    await broker.send(queue, [Message(message_id="1")])
    async with broker.open_receiver(queue) as receiver:
        await receiver.settle(await take_one(receiver), Complete())

    assert await is_empty(broker, queue)


async def test_an_abandoned_message_counts_its_deliveries(broker):
    queue = await make(broker, "orders")
    await broker.send(queue, [Message(message_id="1")])
    async with broker.open_receiver(queue) as receiver:
        await receiver.settle(await take_one(receiver), Abandon())
        again = await take_one(receiver)
        await receiver.settle(again, Complete())

    assert again.delivery_count == 2


async def test_a_missing_queue_is_refused_and_nothing_is_accepted_for_it(broker):
    with pytest.raises(EntityNotFound):
        await broker.send(EntityPath("missing"), [Message(message_id="1")])


async def sent_after_a_lost_session(broker, queue, message):
    """RabbitMQ ends the session, somewhat later, for a send that crossed the end of its link."""
    try:
        await broker.send(queue, [message])
    except Unavailable:
        await broker.send(queue, [message])


async def test_a_queue_that_went_is_missed_by_the_next_send(broker):
    queue = await make(broker, "orders")
    await broker.send(queue, [Message(message_id="1")])
    await broker.delete_queue(queue)
    with pytest.raises((EntityNotFound, OutcomeUnknown)):  # the end of the link may cross the send
        await broker.send(queue, [Message(message_id="2")])
    with pytest.raises(EntityNotFound):
        await sent_after_a_lost_session(broker, queue, Message(message_id="3"))
