"""What is made of another broker passes on what it doesn't change."""

import random

import attrs
import pytest

from gateway.brokers.memory import MemoryBroker
from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.rules import Rule
from gateway.domain.topology import SubscriptionProperties, TopicProperties
from gateway.passing import PassesOn
from gateway.ports import Broker
from gateway.testing.clocks import VirtualClock

TOPIC = EntityPath("t")


@attrs.define(eq=False)
class Wrapped(PassesOn):
    broker: Broker

    @property
    def inner(self) -> Broker:
        return self.broker


async def test_everything_passes_on() -> None:
    topics = MemoryBroker(VirtualClock(), random.Random(0))
    wrapped = Wrapped(topics)

    topic = await wrapped.create_topic(TOPIC, TopicProperties())
    changed = await wrapped.update_topic(TOPIC, TopicProperties(), if_version=topic.version)
    await wrapped.create_subscription(TOPIC, "s", SubscriptionProperties(), Rule(name="first"))
    await wrapped.update_subscription(TOPIC, "s", SubscriptionProperties(max_delivery_count=3))
    await wrapped.create_rule(TOPIC, "s", Rule(name="second"))
    await wrapped.update_rule(TOPIC, "s", Rule(name="second"))
    await wrapped.delete_rule(TOPIC, "s", "first")

    assert isinstance(wrapped, Topology)
    assert await wrapped.list_topics() == await topics.list_topics()
    assert (await wrapped.inspect_topic(TOPIC)).version == changed.version != topic.version
    assert (await wrapped.inspect_subscription(TOPIC, "s")).properties.max_delivery_count == 3
    assert [info.name for info in await wrapped.list_subscriptions(TOPIC)] == ["s"]
    assert [rule.name for rule in await wrapped.list_rules(TOPIC, "s")] == ["second"]
    assert (await wrapped.inspect_rule(TOPIC, "s", "second")).name == "second"
    await wrapped.delete_subscription(TOPIC, "s")
    assert await topics.list_subscriptions(TOPIC) == []
    await wrapped.delete_topic(TOPIC)
    assert await topics.list_topics() == []


class QueuesOnly:
    """A namespace that is no `Topology`."""


async def test_what_lacks_topics_says_so() -> None:
    wrapped = Wrapped(QueuesOnly())  # type: ignore[arg-type]

    with pytest.raises(NotSupported, match="the namespace has no topics"):
        await wrapped.list_topics()
