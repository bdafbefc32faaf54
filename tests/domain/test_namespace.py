"""What a namespace does on its own: who is idle for too long, and whom a step concerns."""

import random
from datetime import timedelta
from typing import Any

import pytest

from gateway.brokers.memory import MemoryShelf
from gateway.brokers.tokens import lock_tokens
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, QuotaExceeded
from gateway.domain.message import Message, ReceiveMode
from gateway.domain.namespace import Namespace
from gateway.domain.packing import Packing
from gateway.domain.queue_values import Report
from gateway.domain.rules import FalseFilter, Rule, SqlFilter
from gateway.domain.stored import Incoming, Now, State, to_date
from gateway.domain.topics import MAX_SQL_RULES, MAX_SUBSCRIPTIONS, Topics
from gateway.domain.topology import SubscriptionProperties, TopicProperties

ORDERS = EntityPath("orders")
NEWS = EntityPath("news")
HOUR = 3600.0


def at(seconds: float) -> Now:
    return Now(round(seconds * 1e6), seconds)


def message(due: float | None = None) -> Incoming:
    scheduled = None if due is None else to_date(round(due * 1e6))
    return Incoming(content=Message(), size=10, scheduled=scheduled)


def make(**options: Any) -> Namespace:
    return Namespace(
        max_message_size=1000,
        **{"max_queues": 10_000, "create_missing": False, **options},
        shelf=MemoryShelf(),
        new_token=lock_tokens(random.Random(0)),
        packing=Packing(lambda message: (message, 10), lambda content: content),
        compile_sql=lambda _filter: lambda _message: False,
    )


def told(space: Namespace, path: EntityPath, seconds: float) -> Report:
    """What is known after a step on `path`."""
    space.concern(path)
    return space.report(at(seconds))


def idle_queue() -> Namespace:
    """With a queue that is deleted after an hour."""
    space = make()
    space.create(ORDERS, QueueProperties(auto_delete_on_idle=timedelta(hours=1)), at(0))
    told(space, ORDERS, 0)
    return space


def pass_time(space: Namespace, seconds: float, watched: bool = False) -> None:
    """As the alarm does: whatever is due until then, at the moment when it is."""
    while (due := space.next_errand()) is not None and due <= seconds:
        space.run_errands(at(max(due, 0)), lambda _key: watched)
        space.report(at(max(due, 0)))


def test_an_idle_queue_goes_after_its_time():
    space = idle_queue()
    pass_time(space, HOUR - 1)
    space.find(ORDERS)
    pass_time(space, HOUR + 1)

    with pytest.raises(EntityNotFound):
        space.find(ORDERS)
    assert space.next_errand() is None


def test_whoever_uses_a_queue_keeps_it():
    space = idle_queue()
    space.find(ORDERS).send([message()], at(HOUR - 1))
    told(space, ORDERS, HOUR - 1)
    pass_time(space, 2 * HOUR - 2)
    space.find(ORDERS)
    pass_time(space, 2 * HOUR)

    assert space.known(ORDERS) is None


def test_whoever_waits_at_a_queue_keeps_it():
    space = idle_queue()
    pass_time(space, 10 * HOUR, watched=True)

    assert space.known(ORDERS) is not None


def test_what_is_scheduled_keeps_a_queue():
    space = idle_queue()
    space.find(ORDERS).send([message(due=10 * HOUR)], at(1))
    told(space, ORDERS, 1)
    pass_time(space, 9 * HOUR)

    assert space.known(ORDERS) is not None
    pass_time(space, 20 * HOUR)
    assert space.known(ORDERS) is None


def test_a_queue_that_was_just_loaded_has_its_time_before_it():
    space = idle_queue()
    [queue] = [space.find(ORDERS)]
    queue.entity.used = None
    pass_time(space, HOUR)

    assert space.known(ORDERS) is not None


def test_an_idle_topic_takes_its_subscriptions_along():
    space = make()
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(auto_delete_on_idle=timedelta(hours=1)), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))
    told(space, NEWS, 0)
    space.run_errands(at(2 * HOUR), lambda _key: False)
    gone = [path.key for path, news in space.report(at(2 * HOUR)).news if not news]

    assert space.known(EntityPath("news/subscriptions/s")) is None
    assert {"news", "news/subscriptions/s"} <= set(gone)


@pytest.mark.parametrize("use", ["receive", "rule", "wait"])
def test_whoever_uses_a_subscription_keeps_its_topic(use: str):
    space, subscription = make(), EntityPath("news/subscriptions/s")
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(auto_delete_on_idle=timedelta(hours=1)), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))
    told(space, NEWS, 0)
    if use == "receive":
        space.find(subscription).take(State.ACTIVE, 1, ReceiveMode.PEEK_LOCK, at(HOUR - 1))
    elif use == "rule":
        topics.add_rule(NEWS, "s", Rule(name="r"), at(HOUR - 1))
    space.run_errands(at(HOUR), lambda key: use == "wait" and key == subscription.key)
    space.report(at(HOUR))

    assert space.known(NEWS) is not None
    pass_time(space, 2 * HOUR + 1)
    assert space.known(NEWS) is None


def test_an_idle_subscription_goes_alone():
    space = make()
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(), at(0))
    idle = SubscriptionProperties(auto_delete_on_idle=timedelta(hours=1))
    topics.subscribe(NEWS, "s", idle, None, at(0))
    topics.subscribe(NEWS, "t", SubscriptionProperties(), None, at(0))
    told(space, EntityPath("news/subscriptions/s"), 0)
    pass_time(space, 2 * HOUR)
    space.find(NEWS).send([message()], at(3 * HOUR))

    assert [info.name for info in topics.page_of_subscriptions(NEWS, 0, 9, at(3 * HOUR))] == ["t"]
    assert topics.inspect_subscription(NEWS, "t", at(3 * HOUR)).active == 1


def test_a_step_concerns_the_queues_that_it_forwards_to():
    space = make()
    space.create(EntityPath("b"), QueueProperties(), at(0))
    space.create(EntityPath("a"), QueueProperties(forward_to="b"), at(0))
    for name in ("a", "b"):
        told(space, EntityPath(name), 0)
    space.find(EntityPath("a")).send([message()], at(1))
    report = told(space, EntityPath("a"), 1)
    news = {path.name: fresh.active for path, fresh in report.news if fresh}

    assert news == {"a": 0, "b": 1}


def test_entities_of_every_kind_are_bounded_together():
    space = make(max_queues=3)
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))
    space.create(ORDERS, QueueProperties(), at(0))

    with pytest.raises(QuotaExceeded):
        topics.subscribe(NEWS, "t", SubscriptionProperties(), None, at(0))


def test_subscriptions_and_sql_filters_of_a_topic_are_bounded():
    space = make()
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(), at(0))
    for number in range(MAX_SUBSCRIPTIONS):
        topics.subscribe(NEWS, f"s{number}", SubscriptionProperties(), None, at(0))
    sql = SqlFilter(expression="1=1")
    for number in range(MAX_SQL_RULES):
        topics.add_rule(NEWS, "s0", Rule(name=f"r{number}", filter=sql), at(0))

    with pytest.raises(QuotaExceeded, match="subscriptions"):
        topics.subscribe(NEWS, "more", SubscriptionProperties(), None, at(0))
    with pytest.raises(QuotaExceeded, match="SQL"):
        topics.add_rule(NEWS, "s0", Rule(name="more", filter=sql), at(0))
    topics.update_rule(NEWS, "s0", Rule(name="r1", filter=sql), at(0))
    topics.add_rule(NEWS, "s0", Rule(name="more", filter=FalseFilter()), at(0))
