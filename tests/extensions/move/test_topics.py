"""A topic moves with its subscriptions; dead letters stay, and can be received."""

from typing import Any

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.message import Complete, DeadLetter
from gateway.domain.topics.filters import CorrelationFilter, Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from tests.extensions.move.stand import Gateway, MoveStand
from tests.pairing.harness import ORDERS, Harness, message, virtual_time

pytestmark = virtual_time
NEWS = EntityPath("news")
URGENT = EntityPath("news/Subscriptions/urgent")
RULE = Rule(name="urgent", filter=CorrelationFilter(label="urgent"))


@pytest.fixture
async def stand(harness: Harness) -> MoveStand:
    stand, store = await MoveStand.make(harness), harness.primary.store
    await store.create_topic(NEWS, TopicProperties())
    await store.create_subscription(NEWS, "urgent", SubscriptionProperties(), RULE)
    return stand


async def take(gateway: Gateway, entity: EntityPath, number: int) -> list[Any]:
    found: list[Any] = []
    with trio.fail_after(30):
        async with gateway.broker.open_receiver(entity) as receiver:
            while len(found) < number:
                for each in await receiver.receive(5):
                    await receiver.settle(each, Complete())
                    found.append(each.message.message_id)
    return found


async def test_a_topic_is_made_with_its_subscriptions_and_rules(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.order("start", "news")

    assert [each.name for each in await stand.new.store.list_subscriptions(NEWS)] == ["urgent"]
    [rule] = await stand.new.store.list_rules(NEWS, "urgent")
    assert attrs.evolve(rule, created=None) == RULE


async def test_subscriptions_are_received_from_at_both_sides_and_a_topic_ends_when_they_are_empty(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.broker.send(NEWS, [message("a", subject="urgent"), message("x")])
    await gateway.order("start", "news")
    await gateway.until("to-new")
    await gateway.broker.send(NEWS, [message("b", subject="urgent")])
    await trio.sleep(60)
    waiting = await gateway.state()

    found = await take(gateway, URGENT, 2)
    await gateway.until("new")
    await gateway.broker.send(NEWS, [message("c", subject="urgent")])

    assert waiting.stage.value == "to-new"
    assert sorted(found) == ["a", "b"]
    assert await take(gateway, URGENT, 1) == ["c"]


async def test_dead_letters_stay_and_are_received_though_the_move_has_ended(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.send("a")
    async with stand.harness.primary.store.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="case 7"))
    await gateway.order("start")
    await gateway.until("new")

    assert await take(gateway, ORDERS.dead_letter, 1) == ["a"]


async def test_a_transaction_is_refused_for_an_entity_that_is_moved(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.order("start", "news")
    await gateway.until("to-new")

    with pytest.raises(NotSupported, match="a transaction works again once"):
        await gateway.broker.enlist_schedule(NEWS, [message("a")])
