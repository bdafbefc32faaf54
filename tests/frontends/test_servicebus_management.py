"""Topics, subscriptions and rules over Atom, on a namespace that has them."""

import attrs
import pytest
from trio.testing import MockClock

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound
from gateway.domain.rules import FalseFilter, Rule, SqlFilter
from gateway.domain.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.wire import atom
from gateway.wire import atom_operations as management
from tests.frontends.rest_client import ORDERS, Client

TOPIC = EntityPath("eu/topic")


async def make_subscription(client: Client) -> None:
    await client.broker.create_topic(TOPIC, TopicProperties())
    await client.broker.create_subscription(TOPIC, "s", SubscriptionProperties())


async def test_topic_is_created_told_changed_and_deleted(
    autojump_clock: MockClock, client: Client
) -> None:
    wish = management.PutTopic(entity=TOPIC, properties=TopicProperties(user_metadata="old"))
    change = attrs.evolve(wish, properties=TopicProperties(user_metadata="new"), update=True)

    created = await client.send(atom.build_request(wish))
    changed = await client.send(atom.build_request(change))
    told = await client.manage(management.GetEntity(entity=TOPIC))
    listed = await client.manage(management.ListTopics())
    await client.manage(management.DeleteEntity(entity=TOPIC))

    assert (created.status, changed.status) == (201, 200)
    assert isinstance(told, TopicInfo)
    assert told.properties.user_metadata == "new"
    assert listed == (attrs.evolve(told, version=0),)
    assert await client.manage(management.GetEntity(entity=TOPIC)) is None


async def test_subscription_is_created_with_its_first_rule(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.broker.create_topic(TOPIC, TopicProperties())
    rule = Rule(name="mine", filter=FalseFilter())
    properties = SubscriptionProperties(max_delivery_count=3)

    await client.manage(
        management.PutSubscription(topic=TOPIC, name="s", properties=properties, rule=rule)
    )
    told = await client.manage(management.GetSubscription(topic=TOPIC, name="s"))
    rules = await client.manage(management.ListRules(topic=TOPIC, subscription="s"))

    assert isinstance(told, SubscriptionInfo)
    assert told.properties == properties
    assert isinstance(rules, tuple)
    assert [attrs.evolve(each, created=None) for each in rules] == [rule]


async def test_subscription_is_changed_and_deleted(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)
    properties = SubscriptionProperties(max_delivery_count=3)
    wish = management.PutSubscription(topic=TOPIC, name="s", properties=properties, update=True)

    changed = await client.manage(wish)
    await client.manage(management.DeleteSubscription(topic=TOPIC, name="s"))
    left = await client.manage(management.ListSubscriptions(topic=TOPIC))

    assert isinstance(changed, SubscriptionInfo)
    assert changed.properties == properties
    assert left == ()


async def test_rule_is_created_changed_and_deleted(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)
    rule = Rule(name="r", filter=SqlFilter(expression="a = 1"))
    wish = management.PutRule(topic=TOPIC, subscription="s", rule=rule)
    other = attrs.evolve(rule, filter=FalseFilter())
    question = management.GetRule(topic=TOPIC, subscription="s", name="r")

    created = await client.send(atom.build_request(wish))
    await client.manage(attrs.evolve(wish, rule=other, update=True))
    told = await client.manage(question)
    await client.manage(management.DeleteRule(topic=TOPIC, subscription="s", name="r"))

    assert created.status == 201
    assert isinstance(told, Rule)
    assert attrs.evolve(told, created=None) == other
    with pytest.raises(EntityNotFound):
        await client.manage(question)


async def test_stale_etag_is_412_and_changes_nothing(
    autojump_clock: MockClock, client: Client
) -> None:
    told = await client.manage(management.GetEntity(entity=ORDERS))
    assert isinstance(told, EntityInfo)
    wish = management.PutQueue(
        entity=ORDERS,
        properties=QueueProperties(max_delivery_count=3),
        update=True,
        if_version=told.version,
    )

    fresh = await client.send(atom.build_request(wish))
    stale = await client.send(atom.build_request(attrs.evolve(wish, properties=QueueProperties())))

    assert (fresh.status, stale.status) == (200, 412)
    assert (await client.broker.inspect(ORDERS)).properties.max_delivery_count == 3


async def test_missing_subscription_and_rule_are_404(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)

    statuses = [
        (await client.ask("GET", f"/eu/topic/subscriptions/{path}")).status
        for path in ("missing", "s/rules/missing", "missing/rules")
    ]

    assert statuses == [404, 404, 404]


@pytest.mark.parametrize("path", ["eu/topic/subscriptions/s", "EU/Topic/Subscriptions/S"])
async def test_messages_of_a_subscription_are_settled_under_its_own_path(
    autojump_clock: MockClock, client: Client, path: str
) -> None:
    await make_subscription(client)
    await client.ask("POST", "/eu/topic/messages", b"hello")

    received = await client.ask("POST", f"/{path}/messages/head?timeout=1")
    location = received.headers.get("Location") or ""
    settled = await client.ask("DELETE", location.removeprefix("http://localhost:8080"))

    assert (received.status, received.body) == (201, b"hello")
    assert location.startswith(f"http://localhost:8080/{path}/messages/")
    assert settled.status == 200
