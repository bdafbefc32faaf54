"""A topic moves with its subscriptions, their messages and dead letters."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.message import DEAD_LETTER_REASON, Complete, DeadLetter
from gateway.domain.topics.filters import CorrelationFilter, Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from tests.extensions.move.stand import Gateway, MoveStand, Unable
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


async def bury(stand: MoveStand, entity: EntityPath) -> None:
    """Dead-letter a message of the old side."""
    async with stand.harness.primary.store.open_receiver(entity) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="case 7"))


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


async def test_the_messages_of_subscriptions_move_past_the_rules_of_the_new_side(
    stand: MoveStand,
) -> None:
    await stand.harness.primary.store.create_subscription(NEWS, "all", SubscriptionProperties())
    gateway = await stand.gateway(is_plain=True)
    await gateway.broker.send(NEWS, [message("a", subject="urgent"), message("x")])
    await gateway.order("start", "news")
    await gateway.until("new")

    found = {
        name: await stand.new.ids(EntityPath(f"news/Subscriptions/{name}"))
        for name in ("urgent", "all")
    }
    assert found == {"urgent": ["a"], "all": ["a", "x"]}
    assert await stand.harness.primary.ids(URGENT) == []
    assert (await gateway.state()).report.active == 3


async def test_dead_letters_of_subscriptions_move(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.broker.send(NEWS, [message("a", subject="urgent")])
    await bury(stand, URGENT)
    await gateway.order("start", "news")
    before = await gateway.state()
    await gateway.until("new")

    [dead] = await stand.new.messages(URGENT.dead_letter)
    assert (dead.message_id, dead.properties[DEAD_LETTER_REASON]) == ("a", "case 7")
    assert (before.left, before.dead_letters) == (0, 1)


async def test_a_scheduled_message_of_a_topic_moves(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    due = stand.harness.clock() + timedelta(hours=2)
    number, _ = await gateway.broker.schedule(
        NEWS, [message("a", scheduled=due), message("b", scheduled=due)]
    )
    await gateway.order("start", "news")
    await gateway.until("new")
    await gateway.broker.cancel_scheduled(NEWS, [number])

    assert await stand.harness.primary.ids(NEWS) == []
    assert await stand.new.ids(NEWS) == ["b"]


async def test_subscriptions_are_received_from_at_both_sides_where_none_can_be_sent_to(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(without=Unable)
    await gateway.broker.send(NEWS, [message("a", subject="urgent"), message("x")])
    await gateway.order("start", "news")
    await gateway.until("to-new")
    await gateway.broker.send(NEWS, [message("b", subject="urgent")])
    await trio.sleep(60)
    waiting = await gateway.state()

    found = await take(gateway, URGENT, 2)
    await gateway.until("new")
    await gateway.broker.send(NEWS, [message("c", subject="urgent")])

    assert (waiting.stage.value, waiting.left) == ("to-new", 1)
    assert sorted(found) == ["a", "b"]
    assert await take(gateway, URGENT, 1) == ["c"]


async def test_a_dead_letter_moves_with_its_reason_and_never_expires(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.send("a", time_to_live=timedelta(seconds=30))
    await bury(stand, ORDERS)
    await gateway.order("start")
    await gateway.until("new")
    await trio.sleep(60)

    [dead] = await stand.new.messages(ORDERS.dead_letter)
    assert (dead.message_id, dead.properties[DEAD_LETTER_REASON]) == ("a", "case 7")
    assert await stand.ids() == ([], [])
    assert await stand.harness.primary.ids(ORDERS.dead_letter) == []
    assert (await gateway.state()).report.dead_lettered == 1


async def test_dead_letters_stay_and_are_received_though_the_move_has_ended_where_none_are_taken(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(without=Unable)
    await gateway.send("a")
    await bury(stand, ORDERS)
    await gateway.order("start")
    await gateway.until("new")
    state = await gateway.state()

    assert (state.left, state.dead_letters) == (0, 1)
    assert await take(gateway, ORDERS.dead_letter, 1) == ["a"]


async def test_a_transaction_is_refused_for_an_entity_that_is_moved(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    await gateway.order("start", "news")
    await gateway.until("to-new")

    with pytest.raises(NotSupported, match="a transaction works again once"):
        await gateway.broker.enlist_schedule(NEWS, [message("a")])
