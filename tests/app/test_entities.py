"""Entities of the configuration are made, and existing ones stay."""

import random

import pytest

from gateway.app.entities import make_entities
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.domain.plan import Plan, PlannedQueue, PlannedSubscription, PlannedTopic
from gateway.domain.topics.filters import FalseFilter, Rule, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.frontends.rest_client import wall_clock

TOPIC = EntityPath("t")
RULES = (
    Rule(name="a", filter=SqlFilter(expression="a = 1")),
    Rule(name="b", filter=FalseFilter()),
)
PLAN = Plan(
    queues=(PlannedQueue(path=EntityPath("q"), properties=QueueProperties(max_delivery_count=3)),),
    topics=(
        PlannedTopic(
            path=TOPIC,
            properties=TopicProperties(user_metadata="mine"),
            subscriptions=(
                PlannedSubscription(name="s", rules=RULES),
                PlannedSubscription(name="plain"),
            ),
        ),
    ),
)


@pytest.fixture
def topics() -> MemoryBroker:
    return MemoryBroker(wall_clock, random.Random(1))


async def rules_of(topics: MemoryBroker, subscription: str) -> list[str]:
    return [rule.name for rule in await topics.list_rules(TOPIC, subscription)]


async def test_everything_of_a_plan_is_made(topics: MemoryBroker) -> None:
    made = await make_entities(topics, PLAN)

    assert [path.name for path in made] == [
        "q",
        "t",
        "t/Subscriptions/s",
        "t/Subscriptions/plain",
    ]
    assert (await topics.inspect(EntityPath("q"))).properties.max_delivery_count == 3
    assert (await topics.inspect_topic(TOPIC)).properties.user_metadata == "mine"
    assert await rules_of(topics, "s") == ["a", "b"]
    assert await rules_of(topics, "plain") == ["$Default"]


async def test_an_existing_entity_stays_as_it_is(topics: MemoryBroker) -> None:
    own = SubscriptionProperties(max_delivery_count=7)
    await topics.create_topic(TOPIC, TopicProperties())
    await topics.create_subscription(TOPIC, "s", own, RULES[0])

    made = await make_entities(topics, PLAN)

    assert [path.name for path in made] == ["q", "t/Subscriptions/plain"]
    assert (await topics.inspect_topic(TOPIC)).properties.user_metadata is None
    assert (await topics.inspect_subscription(TOPIC, "s")).properties == own


async def test_rules_are_completed_where_a_killed_process_has_left_them(
    topics: MemoryBroker,
) -> None:
    await topics.create_topic(TOPIC, TopicProperties())
    await topics.create_subscription(TOPIC, "s", SubscriptionProperties(), RULES[0])

    await make_entities(topics, PLAN)

    assert await rules_of(topics, "s") == ["a", "b"]


class QueuesOnly:
    """A namespace that is no `Topology`."""


async def test_a_namespace_without_topics_names_the_first() -> None:
    broker: Broker = QueuesOnly()  # type: ignore[assignment]

    with pytest.raises(NotSupported, match="topic t: "):
        await make_entities(broker, Plan(topics=PLAN.topics))
