"""Topics, subscriptions and rules over Atom, on a namespace that has them."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, InvalidRequest
from gateway.domain.topics.filters import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.frontends.servicebus.management import manage
from gateway.store.engine.topics import MAX_SUBSCRIPTIONS
from gateway.wire.servicebus import atom
from gateway.wire.servicebus import atom_operations as management
from tests.frontends.rest_client import ORDERS, Client

TOPIC = EntityPath("eu/topic")
NEW = EntityPath("new")


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


async def locked(client: Client) -> str:
    """Send a message to the topic and lock it at the subscription; where it's settled."""
    await client.ask("POST", "/eu/topic/messages", b"hello")
    received = await client.ask("POST", "/eu/topic/subscriptions/s/messages/head?timeout=1")
    assert received.status == 201
    return (received.headers.get("Location") or "").removeprefix("http://localhost:8080")


async def test_a_lock_doesnt_outlive_its_topic_though_another_one_has_its_name(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)
    lock = await locked(client)
    await client.manage(management.DeleteEntity(entity=TOPIC))
    await make_subscription(client)
    await client.ask("POST", "/eu/topic/messages", b"new")

    settled = [(await client.ask(method, lock)).status for method in ("DELETE", "PUT", "POST")]
    received = await client.ask("DELETE", "/eu/topic/subscriptions/s/messages/head?timeout=1")

    assert settled == [404, 404, 404]
    assert (received.status, received.body) == (200, b"new")


async def test_a_client_that_waits_at_a_subscription_that_goes_gets_404(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)
    statuses: list[int] = []

    async def wait() -> None:
        head = "/eu/topic/subscriptions/s/messages/head?timeout=60"
        statuses.append((await client.ask("POST", head)).status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1.0)
        await client.manage(management.DeleteEntity(entity=TOPIC))

    assert statuses == [404]
    assert trio.current_time() < 10.0


async def test_an_action_changes_the_copy_of_its_subscription(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)
    action = SqlAction(expression="SET a = 1")
    await client.broker.create_rule(TOPIC, "s", Rule(name="paint", action=action))

    answer = await client.ask("POST", "/eu/topic/messages", b"hello")
    copies = await client.broker.peek(EntityPath("eu/topic/subscriptions/s"), limit=9)

    assert answer.status == 201
    assert [each.message.properties for each in copies] == [{}, {"RuleName": "paint", "a": 1}]


async def test_nobody_sends_to_a_subscription_nor_receives_from_a_topic(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)

    sent = await client.ask("POST", "/eu/topic/subscriptions/s/messages", b"hello")
    received = await client.ask("POST", "/eu/topic/messages/head?timeout=1")

    assert (sent.status, received.status) == (400, 400)


async def test_one_subscription_too_many_is_403(autojump_clock: MockClock, client: Client) -> None:
    await make_subscription(client)
    for index in range(MAX_SUBSCRIPTIONS - 1):
        await client.broker.create_subscription(TOPIC, f"s{index}", SubscriptionProperties())
    wish = management.PutSubscription(topic=TOPIC, name="x", properties=SubscriptionProperties())

    refused = await client.send(atom.build_request(wish))

    assert (refused.status, refused.headers.get("X-Pairgate-Error")) == (403, "quota-exceeded")


@pytest.mark.parametrize(
    "put",
    [
        management.PutQueue(entity=NEW, properties=QueueProperties(max_message_size=2**20)),
        management.PutTopic(entity=TOPIC, properties=TopicProperties(max_message_size=2**20)),
    ],
)
async def test_an_entity_of_the_standard_tier_has_no_message_size_of_its_own(
    autojump_clock: MockClock, client: Client, put: management.PutQueue | management.PutTopic
) -> None:
    standard = management.NamespaceInfo(name="n", tier=management.STANDARD)

    with pytest.raises(InvalidRequest, match="Standard tier"):
        await manage(client.broker, put, standard)
    await manage(client.broker, attrs.evolve(put, properties=type(put.properties)()), standard)
    changed = await manage(client.broker, attrs.evolve(put, update=True), standard)

    assert isinstance(changed, EntityInfo | TopicInfo)


async def test_the_filters_of_a_topic_are_counted_by_kind(
    autojump_clock: MockClock, client: Client
) -> None:
    await make_subscription(client)
    for name, rule_filter in (
        ("a", SqlFilter(expression="1=1")),
        ("b", CorrelationFilter(label="x")),
    ):
        await client.broker.create_rule(TOPIC, "s", Rule(name=name, filter=rule_filter))
    counted = await client.manage(management.GetEntity(entity=TOPIC))
    await client.broker.delete_rule(TOPIC, "s", "b")
    left = await client.manage(management.GetEntity(entity=TOPIC))

    assert isinstance(counted, TopicInfo)
    assert isinstance(left, TopicInfo)
    assert (counted.sql_filters, counted.correlation_filters) == (2, 1)
    assert (left.sql_filters, left.correlation_filters) == (2, 0)
