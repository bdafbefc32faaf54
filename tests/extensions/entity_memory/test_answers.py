"""In an outage questions about known entities are answered from memory, and marked; no others."""

from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities.remembering import answer_source
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityExists, EntityNotFound, Unavailable, Unreachable
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.entity_memory.asking import PATIENCE
from gateway.extensions.entity_memory.broker import RememberingBroker
from gateway.extensions.entity_memory.memory import EntityMemory
from gateway.store.local.memory import MemoryBroker
from tests.harness.faults import Hang
from tests.pairing.harness import BILLS, ORDERS, message, refuse, virtual_time

pytestmark = virtual_time

AWAY = refuse(Unreachable, "refused")
NEWS, LATE = EntityPath("news"), EntityPath("late")
EXTRA = Rule(name="extra")


@attrs.define(eq=False)
class Away:
    """A namespace with topics that can't be reached."""

    store: MemoryBroker

    def __getattr__(self, name: str) -> Any:
        assert hasattr(self.store, name)

        async def refuse(*_: Any, **__: Any) -> None:
            raise Unreachable("refused")

        return refuse


async def remembering(harness):
    """A gateway's broker for clients, once the primary has been asked."""
    pair = await harness.pair()
    memory = EntityMemory(names=pair.entity_cache)
    harness.nursery.start_soon(memory.run)
    await trio.sleep(1.0)
    return RememberingBroker(broker=pair.broker, memory=memory)


async def test_a_list_in_an_outage_has_the_queues_of_the_primary_without_figures(harness):
    broker = await remembering(harness)
    healthy = await broker.list_queues()
    harness.primary.fail(AWAY)

    with answer_source() as source:
        listed = await broker.list_queues()
        part = await broker.list_queues("or", skip=0, top=1)

    assert source.from_memory
    assert [each.path for each in listed] == [each.path for each in healthy] == [BILLS, ORDERS]
    assert [each.properties for each in listed] == [each.properties for each in healthy]
    assert {each.active for each in healthy} == {0}
    assert {each.active for each in listed} == {None}
    assert [each.path for each in part] == [ORDERS]


async def test_a_known_queue_is_described_and_exists(harness):
    broker = await remembering(harness)
    described = await broker.inspect(ORDERS)
    harness.primary.fail(AWAY)

    with answer_source() as source:
        assert (await broker.inspect(ORDERS)).properties == described.properties
    with answer_source() as created, pytest.raises(EntityExists):
        await broker.create_queue(ORDERS, QueueProperties())

    assert source.from_memory
    assert created.from_memory


async def test_an_answer_of_the_primary_is_not_marked(harness):
    broker = await remembering(harness)

    with answer_source() as source:
        await broker.inspect(ORDERS)
        with pytest.raises(EntityExists):
            await broker.create_queue(ORDERS, QueueProperties())
        with pytest.raises(EntityNotFound):
            await broker.inspect(EntityPath("unknown"))

    assert not source.from_memory


async def test_an_unknown_queue_gets_the_error_of_the_outage(harness):
    broker = await remembering(harness)
    harness.primary.fail(AWAY)

    with pytest.raises(Unavailable):
        await broker.inspect(EntityPath("unknown"))
    with pytest.raises(Unavailable):
        await broker.create_queue(EntityPath("unknown"), QueueProperties())
    with pytest.raises(Unavailable):
        await broker.list_queues("unknown")


async def test_a_primary_that_hangs_is_waited_for_only_while_nothing_is_known(harness):
    broker = await remembering(harness)
    harness.primary.fail(Hang())
    began = trio.current_time()

    await broker.inspect(ORDERS)
    assert trio.current_time() - began == pytest.approx(PATIENCE, abs=0.1)
    with trio.move_on_after(10 * PATIENCE) as waiting:
        await broker.inspect(EntityPath("unknown"))
    assert waiting.cancelled_caught


async def test_a_queue_that_was_only_sent_to_is_listed_and_exists_but_isnt_described(harness):
    broker = await remembering(harness)
    await harness.primary.store.create_queue(LATE, QueueProperties())
    await broker.send(LATE, [message("a")])
    harness.primary.fail(AWAY)

    assert LATE in [each.path for each in await broker.list_queues()]
    with pytest.raises(EntityExists):
        await broker.create_queue(LATE, QueueProperties())
    with pytest.raises(Unavailable):
        await broker.inspect(LATE)


async def test_a_deleted_queue_is_forgotten(harness):
    broker = await remembering(harness)
    await broker.send(ORDERS, [message("a")])
    await broker.delete_queue(ORDERS)
    await harness.primary.store.delete_queue(BILLS)
    with pytest.raises(EntityNotFound):
        await broker.inspect(BILLS)
    harness.primary.fail(AWAY)

    for gone in (ORDERS, BILLS):
        with pytest.raises(Unavailable):
            await broker.create_queue(gone, QueueProperties())
    with pytest.raises(Unavailable):
        await broker.list_queues()


async def test_a_queue_that_was_made_again_is_known_again(harness):
    broker = await remembering(harness)
    await broker.delete_queue(ORDERS)
    await broker.create_queue(ORDERS, QueueProperties(max_delivery_count=3))
    harness.primary.fail(AWAY)

    assert (await broker.inspect(ORDERS)).properties.max_delivery_count == 3


async def test_a_primary_that_was_away_at_the_start_is_asked_again(harness):
    harness.primary.fail(AWAY)
    broker = await remembering(harness)
    with pytest.raises(Unavailable):
        await broker.list_queues()
    harness.primary.heal()
    await trio.sleep(61.0)
    harness.primary.fail(AWAY)

    assert [each.path for each in await broker.list_queues()] == [BILLS, ORDERS]


async def topics_of(harness):
    """A gateway's broker over a store with topics, and the pair's memory."""
    broker = await remembering(harness)
    return RememberingBroker(broker=harness.primary.store, memory=broker.memory), broker.memory


async def test_topics_are_listed_described_and_exist(harness):
    topics, memory = await topics_of(harness)
    await topics.create_topic(NEWS, TopicProperties(max_size_in_megabytes=2048))
    broker = RememberingBroker(broker=Away(harness.primary.store), memory=memory)

    with answer_source() as source:
        assert (await broker.inspect_topic(NEWS)).properties.max_size_in_megabytes == 2048
        assert [each.path for each in await broker.list_topics()] == [NEWS]
        with pytest.raises(EntityExists):
            await broker.create_topic(NEWS, TopicProperties())
        with pytest.raises(EntityNotFound):  # it is no queue
            await broker.inspect(NEWS)
    assert source.from_memory
    with pytest.raises(Unreachable):
        await broker.inspect_topic(EntityPath("unknown"))
    with pytest.raises(Unreachable):
        await broker.list_rules(NEWS, "s")


async def test_a_deleted_topic_is_forgotten(harness):
    topics, memory = await topics_of(harness)
    await topics.create_topic(NEWS, TopicProperties())
    await topics.delete_topic(NEWS)
    broker = RememberingBroker(broker=Away(harness.primary.store), memory=memory)

    with pytest.raises(Unreachable):
        await broker.inspect_topic(NEWS)


async def test_subscriptions_and_their_rules_are_listed_described_and_exist(harness):
    topics, memory = await topics_of(harness)
    await topics.create_topic(NEWS, TopicProperties())
    made = await topics.create_subscription(NEWS, "Daily", SubscriptionProperties())
    await topics.create_rule(NEWS, "Daily", EXTRA)
    await topics.list_rules(NEWS, "Daily")
    broker = RememberingBroker(broker=Away(harness.primary.store), memory=memory)

    with answer_source() as source:
        found = await broker.inspect_subscription(NEWS, "daily")
        listed = await broker.list_subscriptions(NEWS)
        rules = await broker.list_rules(NEWS, "daily")
        with pytest.raises(EntityExists):
            await broker.create_subscription(NEWS, "daily", SubscriptionProperties())
        with pytest.raises(EntityExists):
            await broker.create_rule(NEWS, "daily", EXTRA)
        assert (await broker.inspect_rule(NEWS, "daily", "EXTRA")).filter == EXTRA.filter

    assert source.from_memory
    assert found.properties == made.properties
    assert (found.active, found.dead_lettered) == (None, None)
    assert listed == [found]
    assert [each.name for each in rules] == ["$Default", "extra"]


async def test_subscriptions_and_rules_are_asked_for_at_the_start(harness):
    store = harness.primary.store
    await store.create_topic(NEWS, TopicProperties())
    await store.create_subscription(NEWS, "daily", SubscriptionProperties())
    pair = await harness.pair()
    pair.entity_cache.primary = store
    memory = EntityMemory(names=pair.entity_cache)
    harness.nursery.start_soon(memory.run)
    await trio.sleep(1.0)
    broker = RememberingBroker(broker=Away(store), memory=memory)

    assert [each.name for each in await broker.list_subscriptions(NEWS)] == ["daily"]
    assert [each.name for each in await broker.list_rules(NEWS, "daily")] == ["$Default"]


async def test_a_subscription_that_nobody_knows_gets_the_error_of_the_outage(harness):
    topics, memory = await topics_of(harness)
    await topics.create_topic(NEWS, TopicProperties())
    for name in ("daily", "weekly"):
        await topics.create_subscription(NEWS, name, SubscriptionProperties())
    await topics.create_rule(NEWS, "weekly", EXTRA)
    await topics.delete_rule(NEWS, "weekly", "extra")
    await topics.delete_subscription(NEWS, "daily")
    broker = RememberingBroker(broker=Away(harness.primary.store), memory=memory)

    with pytest.raises(Unreachable):
        await broker.inspect_subscription(NEWS, "daily")
    with pytest.raises(Unreachable):
        await broker.create_subscription(NEWS, "monthly", SubscriptionProperties())
    with pytest.raises(Unreachable):
        await broker.create_rule(NEWS, "weekly", EXTRA)
    with pytest.raises(Unreachable):
        await broker.update_subscription(NEWS, "weekly", SubscriptionProperties())
    assert [each.name for each in await broker.list_subscriptions(NEWS)] == ["weekly"]
