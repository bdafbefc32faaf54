"""The contract of brokers with topics."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities import DeletesByVersion, Peeks, Schedules, Sessions, Topology
from gateway.domain.entity import AuthorizationRule, EntityPath, EntityStatus, QueueProperties
from gateway.domain.envelope_fields import TIMESPAN
from gateway.domain.errors import (
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotSupported,
    PreconditionFailed,
    QuotaExceeded,
)
from gateway.domain.message import Complete, Described, Kind, Message, Typed
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.offering import required
from tests.brokers.contract import SHORTLY, SOON, ids, make, numbered, take, take_one
from tests.brokers.kinds import Capability, needs, waits

NEWS = EntityPath("news")


def of(subscription: str) -> EntityPath:
    return EntityPath(f"news/subscriptions/{subscription}")


async def make_topic(broker: Any, **properties: Any) -> EntityPath:
    await required(broker, Topology).create_topic(NEWS, TopicProperties(**properties))
    return NEWS


async def subscribe(
    broker: Any, name: str, rule_filter: Any = None, **properties: Any
) -> EntityPath:
    rule = None if rule_filter is None else Rule(name="only", filter=rule_filter)
    await required(broker, Topology).create_subscription(
        NEWS, name, SubscriptionProperties(**properties), rule
    )
    return of(name)


async def held(broker: Any, *names: str) -> list[list[str]]:
    """The ids of the messages in each of those subscriptions."""
    return [ids(await required(broker, Peeks).peek(of(name), limit=100)) for name in names]


# --- properties

KEPT_BY_TOPICS: dict[str, Any] = {
    "default_time_to_live": timedelta(hours=1),
    "max_size_in_megabytes": 2048,
    "requires_duplicate_detection": True,
    "duplicate_detection_window": timedelta(minutes=5),
    "enable_batched_operations": False,
    "support_ordering": False,
    "auto_delete_on_idle": timedelta(days=1),
    "user_metadata": "of a user",
    "status": EntityStatus.SEND_DISABLED,
    "max_message_size": 32 * 1024,
    "enable_express": True,
    "enable_partitioning": True,
    "filter_before_publishing": True,
    "authorization_rules": (AuthorizationRule(key_name="one", rights=("Send",)),),
}
KEPT_BY_SUBSCRIPTIONS: dict[str, Any] = {
    "lock_duration": timedelta(seconds=45),
    "requires_session": True,
    "default_time_to_live": timedelta(hours=1),
    "dead_lettering_on_expiration": True,
    "dead_lettering_on_filter_error": False,
    "max_delivery_count": 7,
    "enable_batched_operations": False,
    "status": EntityStatus.RECEIVE_DISABLED,
    "forward_to": None,  # not with sessions
    "forward_dead_lettered_messages_to": "elsewhere",
    "user_metadata": "of a user",
    "auto_delete_on_idle": timedelta(days=1),
}


def test_each_property_has_a_value_to_try() -> None:
    assert KEPT_BY_TOPICS.keys() == attrs.fields_dict(TopicProperties).keys()
    assert KEPT_BY_SUBSCRIPTIONS.keys() == attrs.fields_dict(SubscriptionProperties).keys()


@needs(Capability.TOPICS)
async def test_every_property_of_topics_and_subscriptions_is_kept(broker):
    await make(broker, "elsewhere")
    topology = required(broker, Topology)
    await make_topic(broker, **KEPT_BY_TOPICS)
    await subscribe(broker, "s", **KEPT_BY_SUBSCRIPTIONS)

    topic = await topology.inspect_topic(NEWS)
    subscription = await topology.inspect_subscription(NEWS, "s")

    told = attrs.asdict(topic.properties, recurse=False)
    told["max_message_size"] = topic.max_message_size
    assert told == KEPT_BY_TOPICS
    assert attrs.asdict(subscription.properties, recurse=False) == KEPT_BY_SUBSCRIPTIONS
    await topology.update_topic(NEWS, topic.properties)
    await topology.update_subscription(NEWS, "s", subscription.properties)
    assert (await topology.inspect_topic(NEWS)).properties == topic.properties
    there = await topology.inspect_subscription(NEWS, "s")
    assert there.properties == subscription.properties


# --- messages


@needs(Capability.TOPICS | Capability.PEEK)
async def test_each_subscription_gets_a_copy(broker):
    await make_topic(broker)
    for name in ("a", "b"):
        await subscribe(broker, name)
    await broker.send(NEWS, numbered(1, 2))
    async with broker.open_receiver(of("A")) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Complete())

    assert (delivery.enqueued_sequence_number, delivery.sequence_number) == (1, 1)
    assert await held(broker, "a", "b") == [["2"], ["1", "2"]]


@needs(Capability.TOPICS | Capability.PEEK)
async def test_a_topic_without_subscriptions_takes_messages_and_drops_them(broker):
    await make_topic(broker)
    await broker.send(NEWS, numbered(1))
    await subscribe(broker, "late")

    assert await held(broker, "late") == [[]]
    assert (await required(broker, Topology).inspect_topic(NEWS)).size == 0


@needs(Capability.TOPICS | Capability.PEEK)
@pytest.mark.parametrize(
    ("rule_filter", "taken"),
    [
        (TrueFilter(), ["1", "2", "3"]),
        (FalseFilter(), []),
        (CorrelationFilter(label="red"), ["1", "2"]),
        (CorrelationFilter(label="red", properties={"n": 1}), ["1"]),
        (CorrelationFilter(properties={"n": 2}), ["2", "3"]),
        (CorrelationFilter(correlation_id="x"), []),
        (SqlFilter(expression="n > 1 AND sys.Label = 'red'"), ["2"]),
        (SqlFilter(expression="n = @n", parameters={"@n": 1}), ["1"]),
    ],
    ids=repr,
)
async def test_a_subscription_gets_what_its_rule_takes(broker, rule_filter, taken):
    await make_topic(broker)
    await subscribe(broker, "s", rule_filter)
    for number, (label, n) in enumerate((("red", 1), ("red", 2), ("blue", 2)), 1):
        await broker.send(
            NEWS, [Message(message_id=str(number), subject=label, properties={"n": n})]
        )

    assert await held(broker, "s") == [taken]


@needs(Capability.TOPICS | Capability.PEEK)
async def test_one_copy_however_many_rules_take_it(broker):
    await make_topic(broker)
    await subscribe(broker, "s", CorrelationFilter(label="red"))
    await required(broker, Topology).create_rule(
        NEWS, "s", Rule(name="more", filter=SqlFilter(expression="1=1"))
    )
    await broker.send(NEWS, [Message(message_id="1", subject="red"), Message(message_id="2")])

    assert await held(broker, "s") == [["1", "2"]]


@needs(Capability.TOPICS | Capability.PEEK)
async def test_rules_count_from_when_they_come_until_they_go(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    await required(broker, Topology).delete_rule(NEWS, "s", "$default")
    await broker.send(NEWS, numbered(1))
    await required(broker, Topology).create_rule(NEWS, "s", Rule(name="r", filter=TrueFilter()))
    await broker.send(NEWS, numbered(2))
    await required(broker, Topology).update_rule(NEWS, "s", Rule(name="R", filter=FalseFilter()))
    await broker.send(NEWS, numbered(3))

    assert await held(broker, "s") == [["2"]]


def acting(name: str, action: str, rule_filter: Filter | None = None) -> Rule:
    """A rule with that action, for all messages unless it has a filter."""
    return Rule(name=name, filter=rule_filter or TrueFilter(), action=SqlAction(expression=action))


async def properties_in(broker: Any, path: EntityPath) -> list[dict[str, Any]]:
    shown = await required(broker, Peeks).peek(path, limit=100)
    return [dict(each.message.properties) for each in shown]


@needs(Capability.TOPICS | Capability.PEEK)
async def test_an_action_changes_the_copy_of_its_subscription_alone(broker):
    await make_topic(broker)
    await subscribe(broker, "plain")
    await subscribe(broker, "s", FalseFilter())
    rule = acting(
        "paint", "SET color = 'red' REMOVE size SET sys.Label = 'new'", CorrelationFilter(label="a")
    )
    await required(broker, Topology).create_rule(NEWS, "s", rule)
    sent = {"color": "blue", "size": 5, "n": 1}
    await broker.send(
        NEWS, [*numbered(1), Message(message_id="2", subject="a", body=b"x", properties=sent)]
    )
    [copy] = await required(broker, Peeks).peek(of("s"), limit=100)
    plain = await required(broker, Peeks).peek(of("plain"), limit=100)

    assert (await required(broker, Topology).inspect_rule(NEWS, "s", "paint")).action == rule.action
    assert copy.message.properties == {"color": "red", "n": 1, "RuleName": "paint"}
    assert (copy.message.message_id, copy.message.body) == ("2", b"x")
    assert copy.message.subject == "new"
    assert ids(plain) == ["1", "2"]
    assert (plain[1].message.properties, plain[1].message.subject) == (sent, "a")


@needs(Capability.TOPICS | Capability.PEEK)
async def test_each_rule_with_an_action_makes_a_copy_and_all_others_one_together(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    for rule in (
        Rule(name="more", filter=SqlFilter(expression="1=1")),
        Rule(name="third", filter=CorrelationFilter(message_id="1")),
        acting("a", "SET x = 1"),
        acting("b", "SET x = 2", CorrelationFilter(message_id="1")),
        acting("c", "SET x = 3", CorrelationFilter(message_id="2")),
    ):
        await required(broker, Topology).create_rule(NEWS, "s", rule)
    await broker.send(NEWS, numbered(1))
    found = await properties_in(broker, of("s"))

    assert sorted(each.get("RuleName", "") for each in found) == ["", "a", "b"]
    assert sorted(each.get("x", 0) for each in found) == [0, 1, 2]


@needs(Capability.TOPICS | Capability.PEEK)
async def test_an_action_is_followed_from_when_it_comes_until_it_goes(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    await required(broker, Topology).update_rule(NEWS, "s", acting("$Default", "SET x = 1"))
    await broker.send(NEWS, numbered(1))
    await required(broker, Topology).update_rule(NEWS, "s", acting("$Default", "SET x = 2"))
    await broker.send(NEWS, numbered(2))
    await required(broker, Topology).update_rule(NEWS, "s", Rule(name="$Default"))
    await broker.send(NEWS, numbered(3))

    assert [each.get("x") for each in await properties_in(broker, of("s"))] == [1, 2, None]


@needs(Capability.TOPICS | Capability.PEEK)
@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("", "1 to 1024 characters"),
        ("SET x = 1;" * 103, "1 to 1024 characters"),
        ("x = 1", "SET or REMOVE"),
        ("SET x = 1 " * 33, "up to 32 statements"),
        ("SET sys.Size = 1", "one of ContentType"),
        ("REMOVE sys.ScheduledEnqueueTimeUtc", "a property that an action can change"),
    ],
)
async def test_an_action_that_cannot_be_read_is_refused(broker, action, error):
    await make_topic(broker)
    await subscribe(broker, "s")
    topology = required(broker, Topology)
    with pytest.raises(InvalidRequest, match=error):
        await topology.create_rule(NEWS, "s", acting("r", action))
    with pytest.raises(InvalidRequest, match=error):
        await topology.update_rule(NEWS, "s", acting("$default", action))
    with pytest.raises(InvalidRequest, match=error):
        await topology.create_subscription(NEWS, "t", SubscriptionProperties(), acting("r", action))

    assert [(rule.name, rule.action) for rule in await topology.list_rules(NEWS, "s")] == [
        ("$Default", None)
    ]
    assert [each.name for each in await topology.list_subscriptions(NEWS)] == ["s"]


@needs(Capability.TOPICS | Capability.PEEK)
@pytest.mark.parametrize("keeps", [True, False])
async def test_a_copy_that_an_action_cannot_change_is_a_dead_letter_if_those_are_kept(
    broker, keeps
):
    await make_topic(broker)
    await subscribe(broker, "plain")
    await subscribe(broker, "s", FalseFilter(), dead_lettering_on_filter_error=keeps)
    await required(broker, Topology).create_rule(NEWS, "s", acting("r", "SET sys.To = flag"))
    await broker.send(NEWS, [Message(message_id="1", properties={"flag": True})])
    dead = await required(broker, Peeks).peek(of("s").dead_letter, limit=100)

    assert await held(broker, "plain", "s") == [["1"], []]
    assert ids(dead) == (["1"] if keeps else [])
    for each in dead:
        assert each.message.properties["DeadLetterReason"] == "RuleActionFailed"
        assert "'r'" in each.message.properties["DeadLetterErrorDescription"]
        assert each.message.properties["flag"] is True


@needs(Capability.TOPICS | Capability.FORWARDING | Capability.PEEK)
async def test_a_message_that_is_forwarded_to_a_topic_meets_its_actions(broker):
    await make_topic(broker)
    await subscribe(broker, "s", FalseFilter())
    await required(broker, Topology).create_rule(NEWS, "s", acting("r", "SET x = 'new'"))
    source = await make(broker, "source", forward_to="news")
    await broker.send(source, numbered(1))

    assert await properties_in(broker, of("s")) == [{"RuleName": "r", "x": "new"}]


@needs(Capability.TOPICS | Capability.SESSIONS | Capability.PEEK)
async def test_an_action_may_choose_the_session(broker):
    await make_topic(broker)
    await subscribe(broker, "s", FalseFilter(), requires_session=True)
    rule = acting("r", "SET sys.SessionId = customer")
    await required(broker, Topology).create_rule(NEWS, "s", rule)
    await broker.send(
        NEWS,
        [
            Message(message_id=(customer or "none")[:4], properties={"customer": customer})
            for customer in ("a", "b", None, "x" * 129)
        ],
    )
    async with required(broker, Sessions).open_session(of("s"), "b") as receiver:
        assert ids(await take(receiver)) == ["b"]
    dead = await required(broker, Peeks).peek(of("s").dead_letter, limit=100)

    assert ids(dead) == ["none", "xxxx"]


@needs(Capability.TOPICS | Capability.TIME_TO_LIVE | Capability.PEEK | Capability.EXPIRY)
async def test_an_action_may_shorten_a_life_but_not_beyond_that_of_the_topic(broker):
    await make_topic(broker, default_time_to_live=timedelta(hours=2))
    await subscribe(broker, "short", FalseFilter())
    await subscribe(broker, "long", FalseFilter())
    topology = required(broker, Topology)
    for name, hours in (("short", 1), ("long", 9)):
        action = SqlAction(
            expression="SET sys.TimeToLive = @life",
            parameters={"@life": Described(TIMESPAN, hours * 36_000_000_000)},
        )
        await topology.create_rule(NEWS, name, Rule(name="r", action=action))
    await broker.send(NEWS, numbered(1))
    shown = [(await required(broker, Peeks).peek(of(name)))[0] for name in ("short", "long")]

    lives = [each.expires - each.enqueued for each in shown]
    assert lives == [timedelta(hours=1), timedelta(hours=2)]


@needs(Capability.TOPICS | Capability.TIME_TO_LIVE | Capability.PEEK | Capability.EXPIRY)
async def test_the_shortest_life_counts(broker):
    await make_topic(broker, default_time_to_live=timedelta(hours=2))
    await subscribe(broker, "long")
    await subscribe(broker, "short", default_time_to_live=timedelta(hours=1))
    await broker.send(NEWS, numbered(1))
    shown = [(await required(broker, Peeks).peek(of(name)))[0] for name in ("long", "short")]

    lives = [each.expires - each.enqueued for each in shown]
    assert lives == [timedelta(hours=2), timedelta(hours=1)]


@needs(Capability.TOPICS | Capability.SESSIONS | Capability.PEEK)
async def test_a_subscription_may_have_sessions(broker):
    await make_topic(broker)
    await subscribe(broker, "s", requires_session=True)
    await broker.send(NEWS, [*numbered(1), Message(message_id="2", session_id="x")])
    async with required(broker, Sessions).open_session(of("s"), None) as receiver:
        assert ids(await take(receiver)) == ["2"]
    [dead] = await required(broker, Peeks).peek(of("s").dead_letter)

    assert dead.message.message_id == "1"


@needs(Capability.TOPICS | Capability.DUPLICATES | Capability.PEEK)
async def test_a_topic_detects_duplicates(broker):
    await make_topic(broker, requires_duplicate_detection=True)
    await subscribe(broker, "s")
    await broker.send(NEWS, numbered(1))
    await broker.send(NEWS, numbered(1, 2))

    assert await held(broker, "s") == [["1", "2"]]


@needs(Capability.TOPICS | Capability.FORWARDING | Capability.PEEK)
async def test_a_subscription_may_forward_and_be_forwarded_to(broker, orders):
    await make_topic(broker)
    await subscribe(broker, "s", forward_to="orders")
    source = await make(broker, "source", forward_to="news")
    await broker.send(source, numbered(1))

    assert ids(await required(broker, Peeks).peek(orders, limit=10)) == ["1"]
    with pytest.raises(InvalidRequest):
        await subscribe(broker, "circle", forward_to="source")
    await subscribe(broker, "circle", forward_to="news")
    await broker.send(NEWS, numbered(2))
    assert ids(await required(broker, Peeks).peek(orders, limit=10)) == ["1", "2"]
    assert ids(await required(broker, Peeks).peek(of("circle").transfer_dead_letter)) == ["2"]


@needs(Capability.TOPICS | Capability.NUMBERED_SCHEDULE)
@waits
async def test_a_topic_keeps_what_is_scheduled_until_it_is_due(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    await broker.send(NEWS, numbered("now"))
    async with broker.open_receiver(of("s")) as receiver:
        first = await take_one(receiver)
        await receiver.settle(first, Complete())
        # Seconds, before which one of the two is cancelled, on a busy machine, too.
        due = (first.enqueued + SOON).replace(microsecond=0)
        messages = [Message(message_id=name, scheduled=due) for name in ("later", "never")]
        _, number = await required(broker, Schedules).schedule(NEWS, messages)
        info = await required(broker, Topology).inspect_topic(NEWS)
        await required(broker, Schedules).cancel_scheduled(NEWS, [number])
        later = await take_one(receiver)
        await receiver.settle(later, Complete())
        with trio.move_on_after(SHORTLY):
            await receiver.receive(1)
            pytest.fail("it was cancelled")

        assert (info.scheduled, later.message.message_id) == (2, "later")
        assert later.enqueued >= due


@needs(Capability.TOPICS)
@waits
async def test_a_receiver_that_waits_at_a_subscription_is_woken(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    async with broker.open_receiver(of("s")) as receiver, trio.open_nursery() as nursery:

        async def send_later() -> None:
            await trio.sleep(SHORTLY)
            await broker.send(NEWS, numbered(1))

        nursery.start_soon(send_later)

        assert ids(await take(receiver)) == ["1"]


@needs(Capability.TOPICS | Capability.QUOTA | Capability.PEEK)
async def test_a_full_topic_refuses_until_something_is_completed(broker):
    await make_topic(broker, max_size_in_megabytes=1)
    for name in ("a", "b"):
        await subscribe(broker, name)
    big = Message(message_id="big", body=b"x" * 400_000)
    await broker.send(NEWS, [big])
    with pytest.raises(QuotaExceeded):
        await broker.send(NEWS, [big])
    assert (await required(broker, Topology).inspect_topic(NEWS)).size > 800_000
    await required(broker, Topology).delete_subscription(NEWS, "a")
    await broker.send(NEWS, [big])

    assert await held(broker, "b") == [["big", "big"]]


@needs(Capability.TOPICS | Capability.SIZES)
async def test_a_topic_has_limits_and_a_status(broker):
    await make_topic(broker, max_message_size=1024)
    with pytest.raises(MessageTooLarge):
        await broker.send(NEWS, [Message(body=b"x" * 2000)])
    await required(broker, Topology).update_topic(
        NEWS, TopicProperties(status=EntityStatus.SEND_DISABLED)
    )
    with pytest.raises(EntityDisabled):
        await broker.send(NEWS, numbered(1))


@needs(Capability.TOPICS)
async def test_nobody_sends_to_a_subscription_nor_receives_from_a_topic(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    with pytest.raises(InvalidRequest):
        await broker.send(of("s"), numbered(1))
    with pytest.raises(InvalidRequest):
        async with broker.open_receiver(NEWS) as receiver:
            await take(receiver)


# --- management


@needs(Capability.TOPICS)
async def test_a_topic_is_created_told_updated_and_deleted(broker):
    wanted = TopicProperties(user_metadata="mine", auto_delete_on_idle=timedelta(hours=1))
    created = await required(broker, Topology).create_topic(NEWS, wanted)
    with pytest.raises(EntityExists):
        await required(broker, Topology).create_topic(EntityPath("News"), TopicProperties())
    updated = await required(broker, Topology).update_topic(
        NEWS, TopicProperties(), if_version=created.version
    )
    with pytest.raises(PreconditionFailed):
        await required(broker, Topology).update_topic(NEWS, wanted, if_version=created.version)
    info = await required(broker, Topology).inspect_topic(EntityPath("NEWS"))

    assert created.properties == wanted
    assert updated.properties == info.properties == TopicProperties()
    assert (info.path.name, info.created) == ("news", created.created)
    await required(broker, Topology).delete_topic(NEWS)
    topics = required(broker, Topology)
    for attempt in (topics.inspect_topic, topics.delete_topic):
        with pytest.raises(EntityNotFound):
            await attempt(NEWS)


@needs(Capability.TOPICS)
async def test_a_topic_is_no_queue(broker, orders):
    await make_topic(broker)
    await subscribe(broker, "s")
    for path in (NEWS, EntityPath("orders")):
        with pytest.raises(EntityExists):
            await make(broker, path.name)
        with pytest.raises(EntityExists):
            await required(broker, Topology).create_topic(path, TopicProperties())
    with pytest.raises(EntityNotFound):
        await broker.inspect(NEWS)
    with pytest.raises(EntityNotFound):
        await required(broker, Topology).inspect_topic(orders)
    with pytest.raises(InvalidRequest):
        await make(broker, "news/subscriptions/t")

    assert [info.path.name for info in await broker.list_queues()] == ["orders"]
    assert [info.path.name for info in await required(broker, Topology).list_topics("n")] == [
        "news"
    ]


@needs(Capability.TOPICS | Capability.DELETE_BY_KIND)
async def test_to_delete_a_queue_deletes_neither_topic_nor_subscription(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    for path in (NEWS, of("s")):
        with pytest.raises(EntityNotFound):
            await broker.delete_queue(path)

    assert [info.name for info in await required(broker, Topology).list_subscriptions(NEWS)] == [
        "s"
    ]


@needs(Capability.TOPICS | Capability.PEEK)
async def test_a_topic_takes_its_subscriptions_along(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    await broker.send(NEWS, numbered(1))
    await required(broker, Topology).delete_topic(NEWS)
    with pytest.raises(EntityNotFound):
        await required(broker, Peeks).peek(of("s"))
    await make_topic(broker)
    await subscribe(broker, "s")

    assert await held(broker, "s") == [[]]


@needs(Capability.TOPICS)
@waits
async def test_a_waiting_receiver_learns_that_the_topic_was_deleted(broker):
    await make_topic(broker)
    await subscribe(broker, "s")

    async def wait_in_vain() -> None:
        with pytest.raises(EntityNotFound):
            async with broker.open_receiver(of("s")) as receiver:
                await take(receiver)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_vain)
        await trio.sleep(SHORTLY)
        await required(broker, Topology).delete_topic(NEWS)


@needs(Capability.TOPICS)
async def test_an_entity_that_was_changed_is_not_deleted_by_its_old_version(broker, orders):
    await make_topic(broker)
    await subscribe(broker, "s")
    topics, versions = required(broker, Topology), required(broker, DeletesByVersion)
    subscription = await topics.inspect_subscription(NEWS, "s")
    topic, queue = await topics.inspect_topic(NEWS), await broker.inspect(orders)
    changed = await topics.update_queue(orders, QueueProperties(max_delivery_count=3))

    with pytest.raises((PreconditionFailed, NotSupported)) as refusal:
        await versions.delete_version(orders, queue.version)
    assert (await broker.inspect(orders)).version == changed.version
    if refusal.type is NotSupported:
        return  # Service Bus itself
    for path, version in (
        (orders, changed.version),
        (subscription.path, subscription.version),
        (NEWS, topic.version),
    ):
        await versions.delete_version(path, version)
        with pytest.raises(EntityNotFound):
            await versions.delete_version(path, version)


@needs(Capability.TOPICS)
async def test_subscriptions_are_created_listed_updated_and_deleted(broker):
    await make_topic(broker)
    for name in ("b", "A", "c"):
        await subscribe(broker, name, max_delivery_count=3)
    await broker.send(NEWS, numbered(1))
    page = await required(broker, Topology).list_subscriptions(NEWS, skip=1, top=1)
    before = await required(broker, Topology).inspect_subscription(NEWS, "a")
    with pytest.raises(EntityExists):
        await subscribe(broker, "B")
    wanted = SubscriptionProperties(user_metadata="mine")
    updated = await required(broker, Topology).update_subscription(
        NEWS, "a", wanted, if_version=before.version
    )
    with pytest.raises(PreconditionFailed):
        await required(broker, Topology).update_subscription(
            NEWS, "a", wanted, if_version=before.version
        )
    with pytest.raises(InvalidRequest, match="RequiresSession"):
        await required(broker, Topology).update_subscription(
            NEWS, "a", SubscriptionProperties(requires_session=True)
        )

    assert [info.name for info in page] == ["b"]
    assert (before.name, before.topic, before.active) == ("A", NEWS, 1)
    assert before.properties.max_delivery_count == 3
    assert updated.properties == wanted
    assert (await required(broker, Topology).inspect_topic(NEWS)).subscriptions == 3
    await required(broker, Topology).delete_subscription(NEWS, "a")
    topics = required(broker, Topology)
    for attempt in (topics.inspect_subscription, topics.delete_subscription):
        with pytest.raises(EntityNotFound):
            await attempt(NEWS, "a")


@needs(Capability.TOPICS)
async def test_a_subscription_is_inspected_as_a_queue_is(broker):
    await make_topic(broker)
    await subscribe(broker, "s", max_delivery_count=3)
    await broker.send(NEWS, numbered(1, 2))
    info = await broker.inspect(of("s"))

    assert (info.path, info.active, info.properties.max_delivery_count) == (of("s"), 2, 3)
    with pytest.raises(EntityNotFound):
        await broker.inspect(of("missing"))


@needs(Capability.TOPICS)
@pytest.mark.parametrize("name", ["", "a/b", "x" * 51, "a b"])
async def test_a_subscription_needs_a_name(broker, name):
    await make_topic(broker)
    with pytest.raises(InvalidRequest, match="name"):
        await subscribe(broker, name)


@needs(Capability.TOPICS)
async def test_a_subscription_needs_a_topic(broker, orders):
    for topic in (NEWS, orders):
        with pytest.raises(EntityNotFound):
            await required(broker, Topology).create_subscription(
                topic, "s", SubscriptionProperties()
            )


@needs(Capability.TOPICS)
async def test_rules_are_created_listed_updated_and_deleted(broker):
    await make_topic(broker)
    await subscribe(broker, "s")
    values = {"@n": Typed(Kind.INT, 5), "@t": "x"}
    rule = Rule(name="Big", filter=SqlFilter(expression="n > @n OR t = @t", parameters=values))
    created = await required(broker, Topology).create_rule(NEWS, "s", rule)
    with pytest.raises(EntityExists):
        await required(broker, Topology).create_rule(NEWS, "s", Rule(name="big"))
    rules = await required(broker, Topology).list_rules(NEWS, "s")
    updated = await required(broker, Topology).update_rule(
        NEWS, "s", Rule(name="Big", filter=CorrelationFilter(label="x", properties={"n": 1}))
    )

    assert (created.filter, created.name) == (rule.filter, "Big")
    assert [each.name for each in rules] == ["$Default", "Big"]
    assert rules[0].filter == TrueFilter()
    assert updated == await required(broker, Topology).inspect_rule(NEWS, "s", "BIG")
    assert updated.created == created.created is not None
    assert len(await required(broker, Topology).list_rules(NEWS, "s", skip=1, top=5)) == 1
    await required(broker, Topology).delete_rule(NEWS, "s", "big")
    topics = required(broker, Topology)
    for attempt in (topics.inspect_rule, topics.delete_rule):
        with pytest.raises(EntityNotFound):
            await attempt(NEWS, "s", "big")
    with pytest.raises(EntityNotFound):
        await required(broker, Topology).update_rule(NEWS, "s", rule)


@needs(Capability.TOPICS)
@pytest.mark.parametrize(
    "rule",
    [
        Rule(name="r", filter=SqlFilter(expression="n >")),
        Rule(name="no/name"),
        Rule(name="r", filter=SqlFilter(expression="x" * 1025)),
    ],
    ids=["syntax", "name", "length"],
)
async def test_a_rule_that_cannot_be_read_is_refused(broker, rule):
    await make_topic(broker)
    await subscribe(broker, "s")
    with pytest.raises(InvalidRequest):
        await required(broker, Topology).create_rule(NEWS, "s", rule)
    with pytest.raises(InvalidRequest):
        await required(broker, Topology).create_subscription(
            NEWS, "other", SubscriptionProperties(), rule
        )

    assert [each.name for each in await required(broker, Topology).list_rules(NEWS, "s")] == [
        "$Default"
    ]
    assert [each.name for each in await required(broker, Topology).list_subscriptions(NEWS)] == [
        "s"
    ]
