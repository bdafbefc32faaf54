"""The contract of a broker that adds messages where no sender can."""

from datetime import timedelta

import pytest
import trio

from gateway.capabilities import SendsToSubscriptions, Topology, WritesDeadLetters
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, InvalidRequest
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Complete,
    Message,
)
from gateway.domain.topics.filters import CorrelationFilter, Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.offering import required
from gateway.ports import Broker
from tests.brokers.contract import is_empty, numbered, take_one
from tests.brokers.kinds import Capability, needs, waits

WHY = {DEAD_LETTER_REASON: "case 7", DEAD_LETTER_DESCRIPTION: "no such customer"}


@needs(Capability.WRITTEN_DEAD_LETTERS)
async def test_a_dead_letter_that_is_written_has_its_reason_and_is_no_message(
    broker: Broker, orders: EntityPath
) -> None:
    dead = Message(message_id="a", body=b"body", properties={"n": "1", **WHY})
    await required(broker, WritesDeadLetters).dead_letter(orders, dead)

    async with broker.open_receiver(orders.dead_letter) as receiver:
        found = await take_one(receiver)
        await receiver.settle(found, Complete())

    assert (found.message.message_id, found.message.body) == ("a", b"body")
    assert dict(found.message.properties) == dead.properties
    assert await is_empty(broker, orders)


@needs(Capability.WRITTEN_DEAD_LETTERS | Capability.TIME_TO_LIVE)
@waits
async def test_a_dead_letter_that_is_written_does_not_expire(broker: Broker) -> None:
    orders = EntityPath("orders")
    await broker.create_queue(orders, QueueProperties())
    dead = Message(message_id="a", time_to_live=timedelta(seconds=1), properties=WHY)
    await required(broker, WritesDeadLetters).dead_letter(orders, dead)
    await trio.sleep(2)

    async with broker.open_receiver(orders.dead_letter) as receiver:
        assert (await take_one(receiver)).message.message_id == "a"


@needs(Capability.WRITTEN_DEAD_LETTERS)
async def test_a_dead_letter_is_written_to_a_queue_that_is_there(
    broker: Broker, orders: EntityPath
) -> None:
    writes = required(broker, WritesDeadLetters)

    with pytest.raises(EntityNotFound):
        await writes.dead_letter(EntityPath("missing"), Message(message_id="a"))
    with pytest.raises(InvalidRequest):
        await writes.dead_letter(orders.dead_letter, Message(message_id="a"))


@needs(Capability.SUBSCRIPTION_SENDS)
async def test_a_message_for_one_subscription_passes_its_rules_and_the_others(
    broker: Broker,
) -> None:
    news, urgent = EntityPath("news"), EntityPath("news/Subscriptions/urgent")
    topology = required(broker, Topology)
    await topology.create_topic(news, TopicProperties())
    rule = Rule(name="urgent", filter=CorrelationFilter(label="urgent"))
    await topology.create_subscription(news, "urgent", SubscriptionProperties(), rule)
    await topology.create_subscription(news, "all", SubscriptionProperties())

    await required(broker, SendsToSubscriptions).send_to_subscription(urgent, numbered(1, 2))

    found = {each.name: each.active for each in await topology.list_subscriptions(news)}
    assert found == {"urgent": 2, "all": 0}
    async with broker.open_receiver(urgent) as receiver:
        assert (await take_one(receiver)).message.message_id == "1"


@needs(Capability.SUBSCRIPTION_SENDS)
async def test_a_message_for_one_subscription_is_for_no_queue(
    broker: Broker, orders: EntityPath
) -> None:
    sends = required(broker, SendsToSubscriptions)

    for path in (orders, orders.dead_letter):
        with pytest.raises(InvalidRequest, match="a subscription expected"):
            await sends.send_to_subscription(path, numbered(1))
    with pytest.raises(EntityNotFound):
        await sends.send_to_subscription(EntityPath("news/Subscriptions/urgent"), numbered(1))
