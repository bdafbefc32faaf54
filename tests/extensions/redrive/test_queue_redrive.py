"""The dead letters of any queue or subscription: shown, changed, and moved to where they may be."""

import random
from datetime import UTC, datetime

import pytest

from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, InvalidRequest
from gateway.domain.message import DeadLetter, Message
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.redrive.order import Redriven, RedriveOrder, Selection
from gateway.extensions.redrive.redrive import QueueRedrive
from gateway.store.local.memory import MemoryBroker

ORDERS = EntityPath("orders")
NEWS = EntityPath("news")
ALL = EntityPath("news/subscriptions/all")


@pytest.fixture
async def broker():
    broker = MemoryBroker(lambda: datetime(2026, 11, 30, tzinfo=UTC), random.Random(0))
    await broker.create_queue(ORDERS, QueueProperties())
    return broker


async def topic(broker, **properties):
    await broker.create_topic(NEWS, TopicProperties(**properties))
    await broker.create_subscription(NEWS, "all", SubscriptionProperties())


async def bury(broker, queue, *messages):
    await broker.send(queue.topic, messages)
    async with broker.open_receiver(queue) as receiver:
        for delivery in await receiver.receive(len(messages)):
            await receiver.settle(delivery, DeadLetter(reason="bad"))


def redrive_of(broker, **order):
    order = RedriveOrder(selection=Selection(), executes=True, **order)
    return QueueRedrive.of(order, broker, Runtime())


async def run(broker, **order):
    return await redrive_of(broker, **order).run(Selection(), add=lambda _: None)


async def test_dead_letters_of_a_subscription_are_moved_to_its_topic(broker):
    await topic(broker)
    await bury(broker, ALL, Message(message_id="m1"))

    done = await run(broker, queue=ALL.name, target="news")

    assert done == Redriven(moved=1)
    info = await broker.inspect(ALL)
    assert (info.active, info.dead_lettered) == (1, 0)


async def test_a_topic_that_detects_duplicates_would_drop_the_copies(broker):
    await topic(broker, requires_duplicate_detection=True)
    await bury(broker, ALL, Message(message_id="m1"))

    done = await run(broker, queue=ALL.name, target="news")

    assert done.moved == 0
    assert "duplicates" in done.problems[0]


async def test_a_target_that_is_neither_a_queue_nor_a_topic_is_not_found(broker):
    with pytest.raises(EntityNotFound):
        await run(broker, queue="orders", target="nowhere")


async def test_a_subscription_is_looked_at_without_a_target_and_moved_only_with_one(broker):
    await topic(broker)
    await bury(broker, ALL, Message(message_id="m1"))
    look = RedriveOrder(selection=Selection(), queue=ALL.name)

    survey = await QueueRedrive.of(look, broker, Runtime()).survey(Selection())

    assert survey.messages == 1
    with pytest.raises(InvalidRequest, match="target: expected for a subscription"):
        redrive_of(broker, queue=ALL.name)


async def test_a_sample_has_as_much_of_the_body_as_was_asked_for(broker):
    bodies = ["héllo".encode(), b"\xff\x00", b""]
    await bury(broker, ORDERS, *(Message(message_id=f"m{n}", body=b) for n, b in enumerate(bodies)))
    redrive = redrive_of(broker, queue="orders")

    shown = [each.body for each in (await redrive.survey(Selection(), 3, 4)).samples]
    without = [each.body for each in (await redrive.survey(Selection(), 3)).samples]

    assert shown == ["h\u00e9l", "\ufffd\x00", ""]
    assert without == [None, None, None]


def test_a_preview_is_of_a_queue_that_is_named():
    with pytest.raises(InvalidRequest, match=r"queue: expected with .*preview"):
        RedriveOrder(selection=Selection(), peek=1, preview=10)
