"""The queues and subscriptions of a namespace that have dead letters."""

from typing import Any

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Unavailable
from gateway.domain.message import DeadLetter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.redrive.order import DeadLetterCount, DeadLetterList
from gateway.extensions.redrive.queues import list_dead_letters
from tests.pairing.harness import QUEUE, message, virtual_time

pytestmark = virtual_time

ORDERS = EntityPath("orders")
NEWS = EntityPath("news")
ALL = EntityPath("news/Subscriptions/all")


@attrs.frozen
class CountsApart:
    """A namespace that has dead letters in queues of their own, as RabbitMQ has."""

    inner: Any
    known: bool = True

    async def list_queues(self, prefix="", *, skip=0, top=100):
        found = await self.inner.list_queues(prefix, skip=skip, top=top)
        return [attrs.evolve(each, dead_lettered=None) for each in found]

    async def inspect(self, entity):
        assert entity.is_dead_letter
        info = await self.inner.inspect(entity.parent)
        return attrs.evolve(info, active=info.dead_lettered if self.known else None)


async def bury(store: Any, queue: EntityPath, count: int) -> None:
    await store.send(queue.topic, [message(f"m{number}") for number in range(count)])
    async with store.open_receiver(queue) as receiver:
        for delivery in await receiver.receive(count):
            await receiver.settle(delivery, DeadLetter(reason="bad"))


async def test_queues_and_subscriptions_are_listed_the_most_first_without_the_backlogs(harness):
    store = harness.secondary.store
    for name in ("a", "b", "orders"):
        await store.create_queue(EntityPath(name), QueueProperties())
    await store.create_topic(NEWS, TopicProperties())
    await store.create_subscription(NEWS, "all", SubscriptionProperties())
    for queue, count in ((EntityPath("b"), 1), (ORDERS, 3), (ALL, 2), (QUEUE, 4)):
        await bury(store, queue, count)

    found = await list_dead_letters(store)

    listed = [(each.entity, each.messages) for each in found.entities]
    assert listed == [("orders", 3), (ALL.name, 2), ("b", 1)]
    assert found.total == 3
    assert backlog.is_backlog(QUEUE)


@pytest.mark.parametrize(("known", "count"), [(True, 2), (False, None)])
async def test_dead_letters_in_a_queue_of_their_own_are_counted_there_or_unknown(
    harness, known, count
):
    store = harness.secondary.store
    await store.create_queue(ORDERS, QueueProperties())
    await bury(store, ORDERS, 2)

    found = await list_dead_letters(CountsApart(store, known=known))

    entry = DeadLetterCount(entity="orders", messages=count)
    assert found == DeadLetterList(entities=(entry,), total=1)


async def test_more_than_a_page_of_queues_is_read(harness):
    store = harness.secondary.store
    for number in range(101):
        await store.create_queue(EntityPath(f"q{number:03}"), QueueProperties())
    await bury(store, EntityPath("q100"), 1)

    found = await list_dead_letters(store)

    assert [each.entity for each in found.entities] == ["q100"]


@attrs.frozen
class Silent:
    async def list_queues(self, prefix="", *, skip=0, top=100):
        await trio.sleep_forever()


async def test_a_namespace_that_does_not_answer_is_an_outage_after_a_minute():
    with pytest.raises(Unavailable, match="within 60 s"):
        await list_dead_letters(Silent())
