"""Management of a pair's topics is the primary's."""

import random

import attrs
import pytest

from gateway.brokers.memory import MemoryBroker
from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.rules import Rule
from gateway.domain.topology import SubscriptionProperties, TopicProperties
from gateway.pairing.topology import PrimaryTopology
from gateway.ports import Broker
from gateway.testing.clocks import VirtualClock

TOPIC = EntityPath("t")


@attrs.define(eq=False)
class Pair(PrimaryTopology):
    primary: Broker


async def test_everything_passes_to_the_primary() -> None:
    topics = MemoryBroker(VirtualClock(), random.Random(0))
    pair = Pair(topics)

    topic = await pair.create_topic(TOPIC, TopicProperties())
    changed = await pair.update_topic(TOPIC, TopicProperties(), if_version=topic.version)
    await pair.create_subscription(TOPIC, "s", SubscriptionProperties(), Rule(name="first"))
    await pair.update_subscription(TOPIC, "s", SubscriptionProperties(max_delivery_count=3))
    await pair.create_rule(TOPIC, "s", Rule(name="second"))
    await pair.update_rule(TOPIC, "s", Rule(name="second"))
    await pair.delete_rule(TOPIC, "s", "first")

    assert isinstance(pair, Topology)
    assert await pair.list_topics() == await topics.list_topics()
    assert (await pair.inspect_topic(TOPIC)).version == changed.version != topic.version
    assert (await pair.inspect_subscription(TOPIC, "s")).properties.max_delivery_count == 3
    assert [info.name for info in await pair.list_subscriptions(TOPIC)] == ["s"]
    assert [rule.name for rule in await pair.list_rules(TOPIC, "s")] == ["second"]
    assert (await pair.inspect_rule(TOPIC, "s", "second")).name == "second"
    await pair.delete_subscription(TOPIC, "s")
    assert await topics.list_subscriptions(TOPIC) == []
    await pair.delete_topic(TOPIC)
    assert await topics.list_topics() == []


class QueuesOnly:
    """A namespace that is no `Topology`."""


async def test_a_primary_without_topics_says_so() -> None:
    pair = Pair(QueuesOnly())  # type: ignore[arg-type]

    with pytest.raises(NotSupported, match="primary"):
        await pair.list_topics()
