"""Topics on another namespace: each call arrives there unchanged."""

import random

import attrs
import pytest
from trio.testing import MockClock

from gateway.brokers.servicebus.management import RestManagement
from gateway.brokers.servicebus.peer import RestPeer
from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, InvalidRequest, PreconditionFailed
from gateway.domain.topics.filters import FalseFilter, Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.frontends.leases import Leases
from gateway.offering import offered
from gateway.store.local.memory import MemoryBroker
from tests.brokers.servicebus.broker import tokens
from tests.frontends.rest_client import Client, frontend_of, wall_clock

TOPIC = EntityPath("eu/topic")


@attrs.define(eq=False)
class Management(RestManagement):
    _peer: RestPeer


@pytest.fixture
def there(autojump_clock: MockClock) -> MemoryBroker:
    return MemoryBroker(wall_clock, random.Random(1))


@pytest.fixture
def here(there: MemoryBroker) -> Management:
    """A namespace whose requests reach a front end over `there`, without a socket."""
    client = Client(frontend_of(there, Leases(there, wall_clock)), there)
    return Management(RestPeer(ask=client.send, tokens=tokens()))


def test_management_offers_topology(here: Management) -> None:
    assert offered(here, Topology) is here


async def test_topics_are_managed_there(here: Management, there: MemoryBroker) -> None:
    created = await here.create_topic(TOPIC, TopicProperties(user_metadata="old"))
    changed = await here.update_topic(
        TOPIC, TopicProperties(user_metadata="new"), if_version=created.version
    )

    assert await here.inspect_topic(TOPIC) == changed == await there.inspect_topic(TOPIC)
    assert [info.path for info in await here.list_topics("EU/")] == [TOPIC]
    with pytest.raises(PreconditionFailed):
        await here.update_topic(TOPIC, TopicProperties(), if_version=created.version)
    await here.delete_topic(TOPIC)
    assert await there.list_topics() == []


async def test_queues_are_changed_there(here: Management, there: MemoryBroker) -> None:
    queue = EntityPath("q")
    await here.create_queue(queue, QueueProperties())

    await here.update_queue(queue, QueueProperties(max_delivery_count=3))

    assert (await there.inspect(queue)).properties.max_delivery_count == 3
    with pytest.raises(InvalidRequest, match="RequiresSession"):
        await here.update_queue(queue, QueueProperties(requires_session=True))


async def test_subscriptions_and_rules_are_managed_there(
    here: Management, there: MemoryBroker
) -> None:
    await here.create_topic(TOPIC, TopicProperties())
    first, second = Rule(name="a", filter=FalseFilter()), Rule(name="b")
    await here.create_subscription(TOPIC, "s", SubscriptionProperties(), first)
    await here.update_subscription(TOPIC, "s", SubscriptionProperties(max_delivery_count=3))
    await here.create_rule(TOPIC, "s", second)
    await here.update_rule(TOPIC, "s", attrs.evolve(second, filter=FalseFilter()))
    await here.delete_rule(TOPIC, "s", "a")

    told = await here.inspect_subscription(TOPIC, "s")
    assert told.properties.max_delivery_count == 3
    assert [info.name for info in await here.list_subscriptions(TOPIC)] == ["s"]
    assert (await here.inspect_rule(TOPIC, "s", "b")).filter == FalseFilter()
    assert [rule.name for rule in await here.list_rules(TOPIC, "s")] == ["b"]
    await here.delete_subscription(TOPIC, "s")
    assert await there.list_subscriptions(TOPIC) == []


async def test_a_topic_is_no_queue_and_a_queue_no_topic(
    here: Management, there: MemoryBroker
) -> None:
    await there.create_topic(TOPIC, TopicProperties())
    await there.create_queue(EntityPath("q"), QueueProperties())

    with pytest.raises(EntityNotFound, match="queue"):
        await here.inspect(TOPIC)
    with pytest.raises(EntityNotFound, match="topic"):
        await here.inspect_topic(EntityPath("q"))


async def test_more_than_a_page_is_asked_for_in_pages(
    here: Management, there: MemoryBroker
) -> None:
    for index in range(205):
        await there.create_topic(EntityPath(f"t{index:03}"), TopicProperties())

    found = await here.list_topics(skip=1, top=203)

    assert [info.path.name for info in found] == [f"t{index:03}" for index in range(1, 204)]
