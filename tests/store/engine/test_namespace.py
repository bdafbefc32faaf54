"""A namespace deletes idle entities, reports on the queues that a step concerns, and bounds all."""

from datetime import timedelta

import pytest

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    PreconditionFailed,
    QuotaExceeded,
    StorageFull,
)
from gateway.domain.message import DeadLetter, ReceiveMode
from gateway.domain.topics.filters import FalseFilter, Rule, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.engine.deliveries import StepReport
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import State
from gateway.store.engine.topics import MAX_SQL_RULES, MAX_SUBSCRIPTIONS, Topics
from tests.store.engine.namespace import (
    HOUR,
    NEWS,
    Disk,
    at,
    create,
    make,
    message,
    names,
    pass_time,
    restarted,
)

ORDERS = EntityPath("orders")


def told(space: Namespace, path: EntityPath, seconds: float) -> StepReport:
    """Return the report after a step on `path`."""
    space.concern(path)
    return space.report(at(seconds))


def idle_queue() -> Namespace:
    """A namespace with a queue that is deleted after an idle hour."""
    space = make()
    space.create(ORDERS, QueueProperties(auto_delete_on_idle=timedelta(hours=1)), at(0))
    told(space, ORDERS, 0)
    return space


def test_a_queue_where_nobody_waits_is_not_reported():
    space = make()
    for name in (ORDERS, NEWS):
        space.create(name, QueueProperties(), at(0))
        space.find(name).send([message()], at(0))
        space.concern(name)

    found = space.report(at(0), lambda key: key == NEWS.key)

    assert [(path, news and news.active) for path, news in found.news] == [(NEWS, 1)]


def test_the_end_of_an_idle_queue_is_known_though_nobody_waits_there():
    space = make()
    space.create(ORDERS, QueueProperties(auto_delete_on_idle=timedelta(hours=1)), at(0))
    space.concern(ORDERS)

    assert space.report(at(0), lambda _key: False).next_due_work == HOUR


def test_damage_is_reported_though_nobody_waits_there():
    space = make()
    space.create(ORDERS, QueueProperties(), at(0))
    queue = space.find(ORDERS)
    queue.send([message()], at(0))
    [taken] = queue.receive(State.ACTIVE, 1, ReceiveMode.PEEK_LOCK, at(1))
    assert taken.token is not None
    queue.quarantine(taken.token, at(2))
    space.concern(ORDERS)

    [(_, news)] = space.report(at(2), lambda _key: False).news

    assert news is not None
    assert len(news.quarantined) == 1


def test_an_idle_queue_goes_after_its_time():
    space = idle_queue()
    pass_time(space, HOUR - 1)
    space.find(ORDERS)
    pass_time(space, HOUR + 1)

    with pytest.raises(EntityNotFound):
        space.find(ORDERS)
    assert space.next_due_work() is None


def test_each_user_of_a_queue_keeps_it():
    space = idle_queue()
    space.find(ORDERS).send([message()], at(HOUR - 1))
    told(space, ORDERS, HOUR - 1)
    pass_time(space, 2 * HOUR - 2)
    space.find(ORDERS)
    pass_time(space, 2 * HOUR)

    assert space.known(ORDERS) is None


def test_each_caller_that_waits_at_a_queue_keeps_it():
    space = idle_queue()
    pass_time(space, 10 * HOUR, watched=True)

    assert space.known(ORDERS) is not None


def test_a_scheduled_message_keeps_a_queue():
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
    space.run_due_work(at(2 * HOUR), lambda _key: False)
    gone = [path.key for path, news in space.report(at(2 * HOUR)).news if not news]

    assert space.known(EntityPath("news/subscriptions/s")) is None
    assert {"news", "news/subscriptions/s"} <= set(gone)


@pytest.mark.parametrize("use", ["receive", "rule", "wait"])
def test_each_user_of_a_subscription_keeps_its_topic(use: str):
    space, subscription = make(), EntityPath("news/subscriptions/s")
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(auto_delete_on_idle=timedelta(hours=1)), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))
    told(space, NEWS, 0)
    if use == "receive":
        space.find(subscription).receive(State.ACTIVE, 1, ReceiveMode.PEEK_LOCK, at(HOUR - 1))
    elif use == "rule":
        topics.add_rule(NEWS, "s", Rule(name="r"), at(HOUR - 1))
    space.run_due_work(at(HOUR), lambda key: use == "wait" and key == subscription.key)
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


def test_a_restart_brings_back_what_is_stored() -> None:
    space = make(store=Disk())
    topics = Topics(space)
    create(space, "Orders", max_delivery_count=3)
    space.find(ORDERS).send([message()], at(1))
    topics.create(NEWS, TopicProperties(), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))
    create(space, "gone")
    space.delete(EntityPath("gone"))
    space.update(ORDERS, QueueProperties(max_delivery_count=4), None, at(5))
    space.reload()
    info = space.inspect(ORDERS, at(5))

    assert names(space) == ["Orders"]
    assert (info.properties.max_delivery_count, info.version, info.active) == (4, 1, 1)
    assert (info.created, info.updated) == (to_date(0), to_date(5_000_000))
    assert topics.inspect_subscription(NEWS, "s", at(5)).name == "s"


def test_a_queue_is_found_by_its_name_in_any_case_and_by_its_sub_queue() -> None:
    space = make()
    create(space, "Orders")

    assert space.find(EntityPath("ORDERS/$DeadLetterQueue")).path.name == "Orders"
    assert space.known(EntityPath("orders")) is not None
    with pytest.raises(EntityNotFound):
        space.find(EntityPath("invoices"))


@pytest.mark.parametrize("name", ["orders/$DeadLetterQueue", "news/subscriptions/s"])
def test_nobody_makes_what_comes_with_its_entity(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not the path of a sub-queue"):
        create(make(), name)


def test_an_entity_is_made_once_whatever_its_kind() -> None:
    space = make()
    create(space, "orders")

    with pytest.raises(EntityExists):
        create(space, "ORDERS")
    with pytest.raises(EntityExists):
        Topics(space).create(ORDERS, TopicProperties(), at(0))


def test_a_full_disk_takes_no_entity() -> None:
    disk = Disk(is_full=True)

    with pytest.raises(StorageFull):
        create(make(store=disk), "orders")
    assert disk.kept == {}


def test_a_missing_queue_is_made_only_where_that_is_asked_for() -> None:
    space, eager = make(), make(create_missing=True)

    with pytest.raises(EntityNotFound):
        space.find_or_create(ORDERS, at(0))
    made = eager.find_or_create(EntityPath("orders/$DeadLetterQueue"), at(0))
    assert made.path == ORDERS
    assert eager.find_or_create(ORDERS, at(0)) is made
    with pytest.raises(EntityNotFound):
        eager.find_or_create(EntityPath("news/subscriptions/s"), at(0))


def test_queues_are_listed_by_name_in_pages_and_by_how_they_begin() -> None:
    space = make()
    for name in ("b", "a2", "A1", "a3", "c"):
        create(space, name)
    Topics(space).create(NEWS, TopicProperties(), at(0))

    assert names(space) == ["A1", "a2", "a3", "b", "c"]
    assert names(space, "A") == ["A1", "a2", "a3"]
    assert names(space, "a", 1, 1) == ["a2"]
    assert names(space, "a", 2, 9) == ["a3"]
    assert names(space, "a", -1, 1) == ["A1"]
    assert names(space, "x") == names(space, "", 0, -1) == names(space, "", 9) == []


def test_a_deleted_entity_is_listed_no_more_and_its_name_is_free() -> None:
    space = make(max_queues=2)
    create(space, "a")
    create(space, "b")
    space.delete(EntityPath("A"))

    assert names(space) == ["b"]
    create(space, "a")
    with pytest.raises(QuotaExceeded, match="2 entities"):
        create(space, "c")


def test_only_a_queue_is_updated_or_deleted_as_one() -> None:
    space = make()
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))

    for path in (NEWS, EntityPath("news/subscriptions/s"), ORDERS):
        with pytest.raises(EntityNotFound):
            space.delete(path)
        with pytest.raises(EntityNotFound):
            space.update(path, QueueProperties(), None, at(0))


def test_an_update_is_refused_where_somebody_else_was_quicker() -> None:
    space = make()
    create(space, "orders")
    space.update(ORDERS, QueueProperties(max_delivery_count=3), 0, at(1))

    with pytest.raises(PreconditionFailed, match="version 0 expected, the entity has 1"):
        space.update(ORDERS, QueueProperties(), 0, at(2))
    assert space.inspect(ORDERS, at(2)).properties.max_delivery_count == 3


def test_an_update_changes_the_limit_of_a_message_and_uses_the_queue() -> None:
    space = make()
    create(space, "orders")
    sizes = [space.inspect(ORDERS, at(0)).max_message_size]
    for limit in (200, None):
        space.update(ORDERS, QueueProperties(max_message_size=limit), None, at(7))
        sizes.append(space.inspect(ORDERS, at(7)).max_message_size)

    assert sizes == [1000, 200, 1000]
    assert space.inspect(ORDERS, at(7)).accessed == to_date(7_000_000)


def test_a_backlog_queue_has_room_for_the_envelope() -> None:
    space = make()
    create(space, "east/x-servicebus-transfer/0")

    assert space.page("east", 0, 1)[0].max_message_size == 1000 + 4096


def test_an_update_may_lead_messages_elsewhere_and_back() -> None:
    space = make()
    create(space, "a")
    create(space, "b")
    queue = space.find(EntityPath("a"))
    queue.send([message()], at(1))
    space.update(EntityPath("a"), QueueProperties(forward_to="b"), None, at(2))
    forwarded = space.inspect(EntityPath("b"), at(2)).active
    space.update(EntityPath("a"), QueueProperties(), None, at(3))
    queue.send([message()], at(3))

    assert forwarded == 1
    assert space.inspect(EntityPath("a"), at(3)).active == 1


def test_messages_never_come_back_in_a_circle() -> None:
    space = make()
    create(space, "a", forward_to="b")
    create(space, "b", forward_dead_lettered_messages_to="c")

    with pytest.raises(InvalidRequest, match="would come back"):
        create(space, "c", forward_to="A")
    create(space, "c")
    with pytest.raises(InvalidRequest, match="would come back"):
        space.update(EntityPath("c"), QueueProperties(forward_to="a"), None, at(1))


def test_a_circle_through_a_topic_is_one_too() -> None:
    space = make()
    topics = Topics(space)
    topics.create(NEWS, TopicProperties(), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(forward_to="a"), None, at(0))

    with pytest.raises(InvalidRequest, match="would come back"):
        create(space, "a", forward_to="news")
    topics.subscribe(NEWS, "t", SubscriptionProperties(forward_to="b"), None, at(0))
    with pytest.raises(InvalidRequest, match="would come back"):
        create(space, "b", forward_to="news")


def test_each_waiting_caller_learns_that_an_entity_was_changed_or_is_gone() -> None:
    space = make()
    create(space, "orders")
    space.report(at(0))
    space.update(ORDERS, QueueProperties(max_delivery_count=3), None, at(1))
    changed = space.report(at(1)).news
    space.delete(ORDERS)

    assert changed == [(ORDERS, None)]
    assert space.report(at(2)).news == [(ORDERS, None)]
    assert space.report(at(3)).news == []


def test_a_step_on_what_is_not_there_is_told_once() -> None:
    space = make()
    space.concern(EntityPath("orders/$DeadLetterQueue"))

    assert space.report(at(1)).news == [(ORDERS, None)]
    assert space.report(at(1)).news == []


def test_when_nobody_knows_what_was_done_everybody_looks_again_soon() -> None:
    space = make()
    create(space, "a")
    create(space, "b")
    report = space.report_all(at(5))

    assert [(path.name, news) for path, news in report.news] == [("a", None), ("b", None)]
    assert report.next_due_work == 6.0


def test_after_a_restart_too_an_idle_queue_goes_after_its_time() -> None:
    space = make(store=Disk())
    create(space, "orders", auto_delete_on_idle=timedelta(hours=1))
    space.reload()
    pass_time(space, 2 * HOUR)

    assert space.known(ORDERS) is None


def test_a_subscription_that_went_with_its_topic_keeps_no_other_entity_from_going() -> None:
    space = make()
    topics, idle = Topics(space), timedelta(hours=1)
    topics.create(NEWS, TopicProperties(auto_delete_on_idle=idle), at(0))
    topics.subscribe(NEWS, "s", SubscriptionProperties(auto_delete_on_idle=idle), None, at(0))
    create(space, "orders", auto_delete_on_idle=idle)
    for path in (NEWS, EntityPath("news/subscriptions/s"), ORDERS):
        told(space, path, 0)
    space.run_due_work(at(HOUR), lambda _key: False)

    assert space.known(NEWS) is space.known(ORDERS) is None


def test_a_restart_forgets_what_is_gone() -> None:
    disk = Disk()
    space = make(store=disk)
    topics = Topics(space)
    create(space, "orders", auto_delete_on_idle=timedelta(hours=1))
    topics.create(NEWS, TopicProperties(), at(0))
    space.concern(ORDERS)
    space.delete(ORDERS)
    create(space, "orders", auto_delete_on_idle=timedelta(hours=1))
    space.concern(ORDERS)
    disk.kept.clear()
    space.reload()

    assert space.known(ORDERS) is None
    assert names(space) == []
    assert (space.report(at(1)).news, space.next_due_work()) == ([], None)
    with pytest.raises(EntityNotFound):
        space.routing(NEWS)


def test_a_message_that_has_expired_by_then_is_not_counted_in_a_queue() -> None:
    space = make()
    create(space, "orders", default_time_to_live=timedelta(seconds=5))
    space.find(ORDERS).send([message()], at(1))

    assert space.inspect(ORDERS, at(5)).active == 1
    assert space.inspect(ORDERS, at(6)).active == 0


def test_an_update_tells_what_the_queue_is_now() -> None:
    space = make()
    create(space, "orders")

    assert space.update(ORDERS, QueueProperties(), None, at(1)).version == 1


def test_a_queue_whose_properties_make_no_sense_is_not_made() -> None:
    space = make()

    with pytest.raises(InvalidRequest, match="LockDuration"):
        create(space, "orders", lock_duration=timedelta(0))
    assert names(space) == []


def test_a_deleted_entity_is_told_once_and_has_nothing_to_be_done() -> None:
    space = idle_queue()
    space.concern(ORDERS)
    space.delete(ORDERS)

    assert space.report(at(1)).news == [(ORDERS, None)]
    assert space.next_due_work() is None


def test_an_unused_queue_is_listed_and_told_of_without_its_storage() -> None:
    disk = Disk()
    space = make(store=disk)
    create(space, "Orders", max_message_size=77)
    create(space, "pairgate-backlog-1")
    create(space, "empty")
    orders = space.find(ORDERS)
    orders.send([message(), message(), message(due=50.0)], at(1))
    [taken] = orders.receive(State.ACTIVE, 1, ReceiveMode.PEEK_LOCK, at(1))
    orders.settle(taken.token, DeadLetter(reason="odd"), at(1))
    orders.entity.accessed = 0
    space.find(EntityPath("empty"))
    before = space.page("", 0, 9)
    restarted(space, disk)

    assert space.page("", 0, 9) == before
    assert (before[1].active, before[1].dead_lettered, before[1].scheduled) == (1, 1, 1)
    assert space.inspect(EntityPath("empty"), at(2)) == before[0]
    assert disk.opened == []
    assert space.inspect(ORDERS, at(2)) == before[1]
    assert disk.opened == ["orders"]


def test_an_unused_queue_has_its_name_its_place_and_its_way_on() -> None:
    disk = Disk()
    space = make(store=disk, max_queues=2)
    create(space, "b")
    create(space, "a", forward_to="b")
    restarted(space, disk)

    with pytest.raises(EntityExists):
        create(space, "A")
    with pytest.raises(InvalidRequest, match="would come back"):
        space.update(EntityPath("b"), QueueProperties(forward_to="a"), None, at(1))
    with pytest.raises(QuotaExceeded):
        create(space, "c")
    space.delete(EntityPath("a"))
    create(space, "c")
    assert names(space) == ["b", "c"]
    assert space.update(EntityPath("b"), QueueProperties(), 0, at(2)).version == 1


def test_unused_queues_move_their_messages_when_these_become_due() -> None:
    disk = Disk()
    space = make(store=disk)
    create(space, "done")
    create(space, "orders")
    create(space, "parted", requires_session=True)
    space.find(ORDERS).send([message(due=50.0)], at(0))
    create(
        space,
        "late",
        default_time_to_live=timedelta(seconds=70),
        dead_lettering_on_expiration=True,
        forward_dead_lettered_messages_to="done",
    )
    space.find(EntityPath("late")).send([message()], at(0))
    space.update(ORDERS, QueueProperties(forward_to="done"), None, at(0))
    restarted(space, disk)
    pass_time(space, 49.0)
    assert space.inspect(EntityPath("done"), at(49)).active == 0
    pass_time(space, 69.0)
    assert space.inspect(EntityPath("done"), at(69)).active == 1
    pass_time(space, 71.0)

    assert space.inspect(EntityPath("done"), at(71)).active == 2
    assert "parted" not in disk.opened


@pytest.mark.parametrize("dead_letters", [True, False])
def test_an_expired_message_follows_the_properties_that_it_expired_under(
    dead_letters: bool,
) -> None:
    space = make()
    create(
        space,
        "orders",
        default_time_to_live=timedelta(seconds=5),
        dead_lettering_on_expiration=dead_letters,
    )
    space.find(ORDERS).send([message()], at(0))
    properties = QueueProperties(dead_lettering_on_expiration=not dead_letters)
    space.update(ORDERS, properties, None, at(6))

    assert space.inspect(ORDERS, at(6)).dead_lettered == int(dead_letters)


def test_the_first_use_of_a_queue_is_undone_with_the_step_that_failed() -> None:
    disk = Disk()
    space = make(store=disk)
    create(space, "orders")
    space.find(ORDERS).send([message(), message()], at(0))
    restarted(space, disk)
    space.journal.forget()
    assert space.inspect(ORDERS, at(1)).active == 2
    space.journal.rewind()
    assert space.report(at(1)).news == []
    space.journal.forget()
    taken = space.find(ORDERS).receive(State.ACTIVE, 9, ReceiveMode.PEEK_LOCK, at(2))

    assert len(taken) == 2
    assert disk.opened == ["orders", "orders"]


def test_unused_queues_begin_to_be_idle_at_the_start_and_their_storage_can_wait() -> None:
    disk = Disk()
    space = make(store=disk)
    create(space, "forever", auto_delete_on_idle=timedelta.max)
    create(space, "kept", auto_delete_on_idle=timedelta(hours=1), forward_to="orders")
    create(space, "orders", auto_delete_on_idle=timedelta(hours=1))
    create(space, "used", auto_delete_on_idle=timedelta(hours=1))
    create(space, "waiting", auto_delete_on_idle=timedelta(hours=1))
    space.find(EntityPath("waiting")).send([message(due=9 * HOUR)], at(0))
    restarted(space, disk)
    pass_time(space, 10.0)
    space.find(EntityPath("used")).send([message()], at(1800))
    told(space, EntityPath("used"), 1800)
    assert disk.opened == ["waiting", "used"]
    pass_time(space, HOUR + 1)
    assert names(space) == ["forever", "kept", "used", "waiting"]
    pass_time(space, 2 * HOUR)

    assert names(space) == ["forever", "kept", "waiting"]
