"""
Topics, subscriptions and rules: their reported properties, their limits, and their stored form.
"""

from collections.abc import Callable
from datetime import timedelta

import attrs
import pytest

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    QuotaExceeded,
    StorageFull,
)
from gateway.domain.message import Abandon, DeadLetter, Message, ReceiveMode
from gateway.domain.topics.filters import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
)
from gateway.domain.topics.property_values import MOST_STEPS, MOST_STEPS_OF_ALL, MessageReader
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.engine import topics as limits
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming, State
from gateway.store.engine.topics import Topics
from tests.store.engine.namespace import (
    HOUR,
    NEWS,
    Disk,
    at,
    make,
    message,
    names,
    pass_time,
    restarted,
)

S = EntityPath("news/subscriptions/s")
SQL = SqlFilter(expression="1=1")


def topics(**options: object) -> Topics:
    """Topics with the topic `news`, which has the subscription `s`."""
    made = Topics(make(**options))
    made.create(NEWS, TopicProperties(), at(0))
    made.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))
    return made


def space_of(made: Topics) -> Namespace:
    return made._namespace


def send(made: Topics, *messages: Incoming) -> None:
    space_of(made).find(NEWS).send(messages or [message()], at(1))


def used(made: Topics, path: EntityPath = NEWS) -> object:
    return space_of(made).find(path).info().accessed


# --- topics


@pytest.mark.parametrize("path", ["news/$DeadLetterQueue", "news/subscriptions/s"])
def test_a_topic_has_no_name_of_a_sub_queue_or_subscription(path: str) -> None:
    with pytest.raises(InvalidRequest, match="a topic expected, not the path"):
        Topics(make()).create(EntityPath(path), TopicProperties(), at(0))


def test_a_new_topic_is_empty() -> None:
    info = topics().inspect(NEWS)

    assert (info.subscriptions, info.scheduled, info.transfer_dead_lettered) == (1, 0, 0)
    assert (info.size, info.version, info.created) == (0, 0, to_date(0))


def test_scheduled_messages_and_the_ones_of_subscriptions_are_counted() -> None:
    made = topics()
    send(made, message(), message(due=100))
    info = made.inspect(NEWS)

    assert (info.scheduled, info.size) == (1, 20)


def test_an_update_of_a_topic_is_a_new_version() -> None:
    made = topics()
    info = made.update(NEWS, TopicProperties(user_metadata="x"), 0, at(1))

    assert (info.properties.user_metadata, info.version) == ("x", 1)


# --- subscriptions


@pytest.mark.parametrize("name", ["", "s" * 51, "a b", "a/b", "ä"])
def test_a_subscription_has_a_name_of_50_letters_at_most(name: str) -> None:
    made = topics()
    made.subscribe(NEWS, "s" * 50, SubscriptionProperties(), None, at(0))

    with pytest.raises(InvalidRequest, match="1 to 50 letters"):
        made.subscribe(NEWS, name, SubscriptionProperties(), None, at(0))


def test_a_new_subscription_is_empty_and_takes_every_message() -> None:
    made = topics()
    info = made.subscribe(NEWS, "T", SubscriptionProperties(), None, at(5))
    [rule] = made.page_of_rules(NEWS, "t", 0, 9)

    assert (info.name, info.topic) == ("T", NEWS)
    assert (info.active, info.dead_lettered, info.transfer_dead_lettered) == (0, 0, 0)
    assert (rule.name, rule.created) == ("$Default", to_date(5_000_000))


def test_an_inspection_counts_a_subscriptions_messages() -> None:
    made = topics()
    send(made, message(), message(), message())
    queue = space_of(made).find(S)
    [taken] = queue.receive(State.ACTIVE, 1, ReceiveMode.PEEK_LOCK, at(1))
    queue.settle(taken.token, DeadLetter(reason="bad"), at(1))
    info = made.inspect_subscription(NEWS, "s", at(1))

    assert (info.active, info.dead_lettered) == (2, 1)


def test_a_message_that_a_subscription_could_not_forward_is_told() -> None:
    made = topics()
    made.subscribe(NEWS, "t", SubscriptionProperties(forward_to="gone"), None, at(0))
    send(made)

    assert made.inspect_subscription(NEWS, "t", at(1)).transfer_dead_lettered == 1


def test_a_message_that_has_expired_by_then_is_not_counted() -> None:
    made = topics()
    send(made, Incoming(content=Message(), size=10, time_to_live=to_date(5_000_000) - to_date(0)))

    assert made.inspect_subscription(NEWS, "s", at(5)).active == 1
    assert made.inspect_subscription(NEWS, "s", at(6)).active == 0


def test_each_subscription_and_each_change_of_its_rules_is_a_use() -> None:
    made = topics()
    made.subscribe(NEWS, "t", SubscriptionProperties(), None, at(1))
    dates = [used(made)]
    made.unsubscribe(NEWS, "t", at(2))
    dates.append(used(made))
    made.add_rule(NEWS, "s", Rule(name="r"), at(3))

    assert dates == [to_date(1_000_000), to_date(2_000_000)]
    assert used(made, S) == to_date(3_000_000)


def test_subscriptions_and_rules_are_listed_by_name_in_pages() -> None:
    made = topics()
    for name in ("b", "A", "c"):
        made.subscribe(NEWS, name, SubscriptionProperties(), None, at(0))
        made.add_rule(NEWS, "s", Rule(name=name), at(0))

    def subscriptions(skip: int, top: int) -> list[str]:
        return [one.name for one in made.page_of_subscriptions(NEWS, skip, top, at(0))]

    def rules(skip: int, top: int) -> list[str]:
        return [one.name for one in made.page_of_rules(NEWS, "s", skip, top)]

    assert subscriptions(0, 9) == ["A", "b", "c", "s"]
    assert rules(0, 9) == ["$Default", "A", "b", "c"]
    for page in (subscriptions, rules):
        everything = page(0, 9)
        assert page(0, 1) == everything[:1]
        assert page(1, 2) == everything[1:3]
        assert page(-1, 1) == everything[:1]
        assert page(0, 0) == page(0, -1) == []


def test_the_limits_of_a_topic() -> None:
    assert (limits.MAX_SUBSCRIPTIONS, limits.MAX_RULES, limits.MAX_SQL_RULES) == (
        2000,
        100_000,
        2000,
    )
    assert limits.MAX_SQL_LENGTH == 256 * 1024


@pytest.fixture
def few() -> Topics:
    """Topics with a limit of three subscriptions, rules and SQL rules."""
    return attrs.evolve(topics(), max_subscriptions=3, max_rules=3, max_sql_rules=3)


def test_a_topic_has_a_bounded_number_of_subscriptions(few: Topics) -> None:
    for name in ("t", "u"):
        few.subscribe(NEWS, name, SubscriptionProperties(), None, at(0))

    with pytest.raises(QuotaExceeded, match="has 3 subscriptions"):
        few.subscribe(NEWS, "v", SubscriptionProperties(), None, at(0))


def test_a_topic_has_a_bounded_number_of_rules_which_may_be_changed(few: Topics) -> None:
    for name in ("a", "b"):  # beside the first one's own
        few.add_rule(NEWS, "s", Rule(name=name), at(0))

    with pytest.raises(QuotaExceeded, match="has 3 rules"):
        few.add_rule(NEWS, "s", Rule(name="c"), at(0))
    few.update_rule(NEWS, "s", Rule(name="a", filter=FalseFilter()), at(0))
    few.drop_rule(NEWS, "s", "a")
    few.add_rule(NEWS, "s", Rule(name="c"), at(0))


def test_a_topic_has_a_bounded_number_of_sql_filters_which_may_be_changed(few: Topics) -> None:
    few.drop_rule(NEWS, "s", "$Default")
    for name in ("a", "b", "c"):
        few.add_rule(NEWS, "s", Rule(name=name, filter=SQL), at(0))
    few.update_rule(NEWS, "s", Rule(name="a", filter=SQL), at(0))
    few.update_rule(NEWS, "s", Rule(name="b", filter=FalseFilter()), at(0))
    few.update_rule(NEWS, "s", Rule(name="b", filter=SQL), at(0))

    assert space_of(few).routing(NEWS).sql_rules == 3


def test_a_filter_that_becomes_sql_counts_as_one() -> None:
    made = attrs.evolve(topics(), max_sql_rules=1)
    made.add_rule(NEWS, "s", Rule(name="a", filter=SQL), at(0))

    with pytest.raises(QuotaExceeded, match="1 rules with SQL"):
        made.update_rule(NEWS, "s", Rule(name="$Default", filter=SQL), at(0))


def test_a_rule_with_an_action_counts_as_one_with_sql() -> None:
    made = attrs.evolve(topics(), max_sql_rules=1)
    made.add_rule(NEWS, "s", acting("a"), at(0))

    with pytest.raises(QuotaExceeded, match="1 rules with SQL"):
        made.add_rule(NEWS, "s", acting("b"), at(0))


def test_the_sql_of_a_topic_has_a_bounded_length() -> None:
    made = attrs.evolve(topics(), max_sql_length=30)
    long, short = sql("x = 1 OR x = 2"), sql("x = 1")  # 14 and 5 characters
    made.add_rule(NEWS, "s", Rule(name="a", filter=long), at(0))
    made.add_rule(NEWS, "s", acting("b"), at(0))  # 9

    with pytest.raises(QuotaExceeded, match="has 37 characters, and at most 30"):
        made.add_rule(NEWS, "s", Rule(name="c", filter=long), at(0))
    with pytest.raises(QuotaExceeded, match="has 37 characters"):
        made.update_rule(NEWS, "s", Rule(name="$Default", filter=long), at(0))
    made.update_rule(NEWS, "s", Rule(name="a", filter=short), at(0))
    made.add_rule(NEWS, "s", Rule(name="c", filter=long), at(0))
    made.drop_rule(NEWS, "s", "c")

    assert space_of(made).routing(NEWS).sql_length == 14


def test_rules_beyond_the_limit_of_an_earlier_version_may_become_shorter() -> None:
    made = topics()
    made.add_rule(NEWS, "s", Rule(name="a", filter=sql("x = 1 OR x = 2")), at(0))
    made.add_rule(NEWS, "s", Rule(name="b", filter=sql("x = 1 OR x = 2")), at(0))
    made = attrs.evolve(made, max_sql_length=5)

    made.update_rule(NEWS, "s", Rule(name="a", filter=sql("x = 1")), at(0))

    assert space_of(made).routing(NEWS).sql_length == 19


def sql(expression: str) -> SqlFilter:
    return SqlFilter(expression=expression)


def acting(name: str) -> Rule:
    return Rule(name=name, action=SqlAction(expression="SET x = 1"))


def test_the_copies_that_actions_change_are_bounded_for_each_send() -> None:
    large = Packing(lambda message: (message, 2**25), lambda content: content)
    made = topics(packing=large, max_message_size=2**26)
    made.update_rule(NEWS, "s", acting("$Default"), at(0))
    made.add_rule(NEWS, "s", acting("b"), at(0))
    send(made)
    with pytest.raises(MessageTooLarge, match="copies that actions of rules change"):
        send(made, message(), message())
    made.add_rule(NEWS, "s", acting("c"), at(0))
    with pytest.raises(MessageTooLarge, match="copies that actions of rules change"):
        send(made)

    assert made.inspect_subscription(NEWS, "s", at(1)).active == 2


def test_a_changed_copy_counts_with_its_new_size_against_the_quota() -> None:
    made = topics(packing=Packing(lambda message: (message, 900), lambda content: content))
    made.update(NEWS, TopicProperties(max_size_in_megabytes=1), None, at(0))
    made.update_rule(NEWS, "s", acting("$Default"), at(0))
    send(made, *[message()] * 1165)
    with pytest.raises(QuotaExceeded):
        send(made)

    assert made.inspect(NEWS).size == 1165 * 900


def test_properties_that_receivers_add_in_all_subscriptions_have_the_quota_of_the_topic() -> None:
    made = topics(packing=Packing(lambda each: (each, 1000), lambda content: content))
    made.update(NEWS, TopicProperties(max_size_in_megabytes=1), None, at(0))
    message = Incoming(content=Message(), size=900)
    send(made, *[message] * 1165)
    subscription = space_of(made).find(S)
    taken = subscription.receive(State.ACTIVE, 1165, ReceiveMode.PEEK_LOCK, at(1))
    space_of(made).find(NEWS).shared_usage.bytes += 2**20 - 200  # of other subscriptions
    more = Abandon(properties={"new": 1})
    subscription.settle(taken[0].token, more, at(1))
    subscription.settle(taken[1].token, more, at(1))
    with pytest.raises(QuotaExceeded, match="of 1048576 bytes: receivers may add no more"):
        subscription.settle(taken[2].token, more, at(1))
    made.update(NEWS, TopicProperties(max_size_in_megabytes=2), None, at(1))

    subscription.settle(taken[2].token, more, at(1))


def test_expired_messages_of_a_subscription_that_nobody_receives_from_take_no_room() -> None:
    made = topics()
    life = timedelta(seconds=60)
    full = TopicProperties(max_size_in_megabytes=1, default_time_to_live=life)
    made.update(NEWS, full, None, at(0))
    big = attrs.evolve(message(), size=900)
    send(made, *[big] * 1165)
    with pytest.raises(QuotaExceeded, match="news holds 1048500 of 1048576 bytes"):
        send(made, big)

    for _ in range(19):
        space_of(made).find(NEWS).send([big] * 60, at(62))

    assert made.inspect(NEWS).size == 19 * 60 * 900


def test_a_copy_that_becomes_too_large_is_a_dead_letter() -> None:
    made = topics(packing=Packing(lambda message: (message, 1001), lambda content: content))
    made.update_rule(NEWS, "s", acting("$Default"), at(0))
    send(made)
    [dead] = space_of(made).find(S).peek([State.DEAD], 0, 9)

    assert (dead.reason, dead.size) == ("RuleActionFailed", 10)
    assert made.inspect_subscription(NEWS, "s", at(1)).active == 0


def test_an_action_that_an_earlier_version_stored_unread_fails_for_its_subscription_alone() -> None:
    def compiled(action: SqlAction) -> None:
        raise InvalidRequest("position 1: SET or REMOVE expected")

    made = topics(compile_action=compiled)
    made.subscribe(NEWS, "t", SubscriptionProperties(), None, at(0))
    space_of(made).routing(NEWS).put_rule(
        space_of(made).routing(NEWS).subscriptions["s"], acting("$Default")
    )
    send(made)
    [dead] = space_of(made).find(S).peek([State.DEAD], 0, 9)

    assert "SET or REMOVE expected" in (dead.description or "")
    assert made.inspect_subscription(NEWS, "t", at(1)).active == 1


# --- rules


def test_a_rule_is_made_once_and_changed_where_it_is() -> None:
    made = topics()
    made.add_rule(NEWS, "s", Rule(name="r"), at(3))
    changed = made.update_rule(NEWS, "s", Rule(name="R", filter=FalseFilter()), at(9))

    assert (changed.created, changed.filter) == (to_date(3_000_000), FalseFilter())
    with pytest.raises(EntityExists):
        made.add_rule(NEWS, "s", Rule(name="R"), at(9))
    with pytest.raises(EntityNotFound):
        made.update_rule(NEWS, "s", Rule(name="other"), at(9))
    with pytest.raises(EntityNotFound):
        made.drop_rule(NEWS, "s", "other")


def counted(made: Topics) -> tuple[int, int]:
    routing = space_of(made).routing(NEWS)
    return routing.rules, routing.sql_rules


def test_each_rule_counts_once_until_it_is_dropped() -> None:
    made = topics()
    made.add_rule(NEWS, "s", Rule(name="r", filter=SQL), at(0))
    counts = [counted(made)]
    made.update_rule(NEWS, "s", Rule(name="r", filter=SQL), at(0))
    counts.append(counted(made))
    made.update_rule(NEWS, "s", Rule(name="r"), at(0))
    counts.append(counted(made))
    made.unsubscribe(NEWS, "s", at(0))
    counts.append(counted(made))

    assert counts == [(2, 1), (2, 1), (2, 0), (0, 0)]


def test_all_filters_of_a_topic_read_a_message_by_one_reader() -> None:
    made, readers = topics(), list[MessageReader]()
    compiled = space_of(made).routing(NEWS).subscriptions["s"].compiled
    for name in "ab":
        made.add_rule(NEWS, "s", Rule(name=name, filter=SQL), at(0))
        compiled[name] = (lambda each: bool(readers.append(each)), None)
    send(made, Incoming(content=Message(), size=10))

    first, second = readers
    assert first is second


@pytest.mark.parametrize("rules", [4, 5])
def test_the_filters_of_a_topic_together_have_a_bounded_number_of_steps(rules: int) -> None:
    made = topics()
    compiled = space_of(made).routing(NEWS).subscriptions["s"].compiled
    for number in range(rules):
        made.add_rule(NEWS, "s", Rule(name=f"r{number}", filter=SQL), at(0))
        compiled[f"r{number}"] = (takes_all_steps, None)

    if rules == 5:
        with pytest.raises(InvalidRequest, match=f"more than {MOST_STEPS_OF_ALL} steps"):
            send(made)
    else:
        send(made)

    assert made.inspect_subscription(NEWS, "s", at(1)).active == (rules == 4)


def takes_all_steps(reader: MessageReader) -> bool:
    reader.begin()
    return reader.spend(MOST_STEPS)


def test_a_rule_is_compiled_when_it_comes_and_not_by_the_first_message() -> None:
    compilations: list[SqlAction] = []

    def compiled(action: SqlAction) -> Callable[[Message], Message]:
        compilations.append(action)
        return lambda each: each

    made = topics(compile_action=compiled)
    made.add_rule(NEWS, "s", acting("a"), at(0))
    made.update_rule(NEWS, "s", acting("$Default"), at(0))
    send(made)
    send(made)

    assert len(compilations) == 2


def test_a_message_that_several_rules_take_comes_once() -> None:
    made = topics()
    made.add_rule(NEWS, "s", Rule(name="all"), at(0))
    made.add_rule(NEWS, "s", Rule(name="red", filter=CorrelationFilter(label="red")), at(0))
    send(made, Incoming(content=Message(subject="red"), size=10))

    assert made.inspect_subscription(NEWS, "s", at(1)).active == 1


@pytest.mark.parametrize(
    ("condition", "field"),
    [
        *((name, name) for name in ("message_id", "correlation_id", "session_id", "to")),
        *((name, name) for name in ("reply_to", "reply_to_session_id", "content_type")),
        ("label", "subject"),
    ],
)
def test_a_message_meets_only_rules_that_ask_for_what_it_says(condition: str, field: str) -> None:
    made = topics()
    made.drop_rule(NEWS, "s", "$Default")
    made.add_rule(NEWS, "s", Rule(name="r", filter=CorrelationFilter(**{condition: "x"})), at(0))
    met: list[Message] = []
    compiled = space_of(made).routing(NEWS).subscriptions["s"].compiled
    compiled["r"] = (lambda each: not met.append(each.message), None)
    alike, other = Message(**{field: "x"}), Message(**{field: "y"})
    send(made, *(Incoming(content=each, size=10) for each in (alike, other, Message())))

    assert met == [alike]
    assert made.inspect_subscription(NEWS, "s", at(1)).active == 1


def test_a_rule_that_was_changed_is_followed_at_once() -> None:
    made = topics()
    made.update_rule(NEWS, "s", Rule(name="$Default", filter=CorrelationFilter(label="red")), at(0))
    blue = Incoming(content=Message(subject="blue"), size=10)
    send(made, blue)
    before = made.inspect_subscription(NEWS, "s", at(1)).active
    made.update_rule(
        NEWS, "s", Rule(name="$DEFAULT", filter=CorrelationFilter(label="blue")), at(0)
    )
    send(made, blue)

    assert (before, made.inspect_subscription(NEWS, "s", at(1)).active) == (0, 1)


def test_a_message_that_cannot_be_read_is_refused_where_a_rule_asks_for_its_content() -> None:
    def unreadable(content: object) -> Message:
        raise MessageError("damaged")

    made = topics(packing=Packing(lambda each: (each, 10), unreadable))
    send(made)
    made.add_rule(NEWS, "s", Rule(name="red", filter=CorrelationFilter(label="red")), at(0))

    with pytest.raises(InvalidRequest, match="damaged"):
        send(made)


def test_rules_outlive_a_restart() -> None:
    made = topics(store=Disk())
    red = Rule(name="red", filter=CorrelationFilter(label="red"))
    blue = Rule(name="blue", filter=CorrelationFilter(label="blue"))
    made.add_rule(NEWS, "s", red, at(0))
    made.add_rule(NEWS, "s", blue, at(0))
    made.drop_rule(NEWS, "s", "$Default")
    made.drop_rule(NEWS, "s", "BLUE")
    space_of(made).reload()
    send(made, *(Incoming(content=Message(subject=each), size=10) for each in ("red", "blue")))

    assert [rule.name for rule in made.page_of_rules(NEWS, "s", 0, 9)] == ["red"]
    assert made.inspect_subscription(NEWS, "s", at(1)).active == 1


def test_the_rule_that_a_subscription_begins_with_outlives_a_restart_too() -> None:
    made = topics(store=Disk())
    space_of(made).reload()
    send(made)

    assert made.inspect_subscription(NEWS, "s", at(1)).active == 1


def test_a_full_disk_takes_no_rule() -> None:
    disk = Disk()
    made = topics(store=disk)
    disk.is_full = True

    with pytest.raises(StorageFull):
        made.add_rule(NEWS, "s", Rule(name="r"), at(0))
    assert len(made.page_of_rules(NEWS, "s", 0, 9)) == 1


def test_a_queue_is_no_topic() -> None:
    made = topics()
    space_of(made).create(EntityPath("orders"), QueueProperties(), at(0))

    with pytest.raises(EntityNotFound):
        made.inspect(EntityPath("orders"))
    with pytest.raises(EntityNotFound):
        space_of(made).inspect(NEWS, at(0))


# --- topics that weren't used since the start

T = EntityPath("news/subscriptions/t")


def unused(disk: Disk, idle: timedelta | None = None, **options: object) -> Topics:
    """Unused topics: `news` with its subscriptions `s` and `T`; `T` takes no message."""
    made = Topics(make(store=disk, **options))
    properties = TopicProperties(max_message_size=77, auto_delete_on_idle=idle)
    made.create(NEWS, properties, at(0))
    made.subscribe(NEWS, "s", SubscriptionProperties(), None, at(0))
    made.subscribe(NEWS, "T", SubscriptionProperties(max_delivery_count=3), _NOTHING, at(0))
    restarted(space_of(made), disk)
    return made


_NOTHING = Rule(name="nothing", filter=FalseFilter())


def told_of(made: Topics) -> list[object]:
    """The topics and subscriptions, apart from when they were used."""
    found = [*made.page("", 0, 9), *made.page_of_subscriptions(NEWS, 0, 9, at(1))]
    return [attrs.evolve(each, accessed=None) for each in found]


def test_an_unused_topic_is_listed_and_told_of_without_its_storage() -> None:
    disk = Disk()
    made = unused(disk)
    listed = told_of(made)
    assert disk.opened == []
    space_of(made).find(NEWS)

    assert listed == told_of(made)
    assert disk.opened == ["news", "news/subscriptions/s", "news/subscriptions/t"]
    assert [each.name for each in made.page_of_subscriptions(NEWS, 0, 9, at(1))] == ["s", "T"]


def test_messages_in_the_subscriptions_of_an_unused_topic_are_told() -> None:
    disk = Disk()
    made = unused(disk)
    send(made, message(), message(due=100))
    before = told_of(made)
    restarted(space_of(made), disk)
    topic = made.inspect(NEWS)
    assert disk.opened == []

    assert (topic.scheduled, topic.size, topic.subscriptions) == (1, 20, 2)
    assert told_of(made) == before


def test_an_unused_topic_reports_its_filters() -> None:
    disk = Disk()
    made = unused(disk)
    topic = made.inspect(NEWS)
    assert disk.opened == []
    space_of(made).find(NEWS)
    used = made.inspect(NEWS)

    assert topic.sql_filters == used.sql_filters == 2
    assert topic.correlation_filters == used.correlation_filters == 0


def test_the_first_message_of_a_topic_finds_its_subscriptions_and_their_rules() -> None:
    made = unused(Disk())
    send(made)

    assert made.inspect_subscription(NEWS, "s", at(1)).active == 1
    assert made.inspect_subscription(NEWS, "t", at(1)).active == 0
    assert [rule.name for rule in made.page_of_rules(NEWS, "t", 0, 9)] == ["nothing"]
    assert made.inspect(NEWS).size == 10


def test_the_first_receiver_makes_the_topic_too() -> None:
    disk = Disk()
    made = unused(disk)
    send(made)
    restarted(space_of(made), disk)
    taken = space_of(made).find(S).receive(State.ACTIVE, 9, ReceiveMode.PEEK_LOCK, at(2))
    send(made)

    assert len(taken) == 1
    assert made.inspect_subscription(NEWS, "s", at(2)).active == 2


def test_an_unused_topic_has_its_name_and_its_place() -> None:
    made = unused(Disk(), max_queues=3)

    with pytest.raises(EntityExists):
        made.create(NEWS, TopicProperties(), at(1))
    with pytest.raises(QuotaExceeded):
        made.create(EntityPath("more"), TopicProperties(), at(1))
    with pytest.raises(EntityExists):
        made.subscribe(NEWS, "S", SubscriptionProperties(), None, at(1))


def test_an_unused_topic_is_no_queue_but_its_subscriptions_are_told_of_as_queues() -> None:
    made = unused(Disk())
    space = space_of(made)

    with pytest.raises(EntityNotFound, match="is a topic, not a queue"):
        space.inspect(NEWS, at(1))
    with pytest.raises(EntityNotFound, match="there is no queue"):
        space.delete(NEWS)
    with pytest.raises(EntityNotFound, match="no subscription"):
        made.inspect_subscription(NEWS, "u", at(1))
    assert names(space) == []
    assert space.inspect(T, at(1)).properties.max_delivery_count == 3


def test_the_partitioning_of_a_topic_stays() -> None:
    made = unused(Disk())

    with pytest.raises(InvalidRequest, match="Partitioning cannot be changed for Topic"):
        made.update(NEWS, TopicProperties(enable_partitioning=True), None, at(1))


def test_a_circle_through_an_unused_topic_is_one_too() -> None:
    disk = Disk()
    made = Topics(make(store=disk))
    space = space_of(made)
    made.create(NEWS, TopicProperties(), at(0))
    space.create(EntityPath("a"), QueueProperties(), at(0))
    made.subscribe(NEWS, "s", SubscriptionProperties(forward_to="a"), None, at(0))
    restarted(space, disk)

    with pytest.raises(InvalidRequest, match="would come back"):
        space.update(EntityPath("a"), QueueProperties(forward_to="news"), None, at(1))
    assert "news" not in disk.opened


def test_an_unused_topic_goes_with_its_subscriptions() -> None:
    disk = Disk()
    made = unused(disk)
    made.delete(NEWS)
    assert disk.kept == {}
    made = unused(disk)
    made.unsubscribe(NEWS, "s", at(1))

    assert list(disk.kept) == ["news", "news/subscriptions/t"]
    assert made.inspect(NEWS).subscriptions == 1


def test_the_first_use_of_a_topic_is_undone_with_the_step_that_failed() -> None:
    disk = Disk()
    made = unused(disk)
    space = space_of(made)
    space.journal.forget()
    made.add_rule(NEWS, "t", Rule(name="all"), at(1))
    space.journal.rewind()
    disk.remove_rule(T, "all")
    disk.opened.clear()

    assert told_of(made)
    assert disk.opened == []
    send(made)
    assert made.inspect_subscription(NEWS, "t", at(1)).active == 0
    assert made.inspect(NEWS).size == 10


def test_an_unused_topic_copies_what_becomes_due() -> None:
    disk = Disk()
    made = unused(disk)
    send(made, message(due=50))
    restarted(space_of(made), disk)
    pass_time(space_of(made), 49)
    assert made.inspect_subscription(NEWS, "s", at(49)).active == 0
    pass_time(space_of(made), 51)

    assert made.inspect_subscription(NEWS, "s", at(51)).active == 1


def test_an_unused_topic_begins_to_be_idle_at_the_start() -> None:
    disk = Disk()
    made = unused(disk, idle=timedelta(hours=1))
    pass_time(space_of(made), 10)
    assert disk.opened == []
    space_of(made).find(S).send([message()], at(HOUR - 1))
    pass_time(space_of(made), HOUR + 1)
    assert made.inspect(NEWS).subscriptions == 2
    restarted(space_of(made), disk)
    pass_time(space_of(made), 3 * HOUR)

    assert made.page("", 0, 9) == []
