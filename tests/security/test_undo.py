"""A bug in the middle of a step fails that step alone, wherever it comes: all else is as before."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InternalError
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.domain.storage_queue import PopReceipt
from gateway.domain.topics.filters import CorrelationFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming, State
from gateway.store.engine.topics import Topics
from gateway.store.local.step import Step
from tests.security.undone import (
    Bug,
    InMemory,
    OnDisk,
    OnDiskTogether,
    PlantedBug,
    Work,
    content_of,
    differences,
    pack,
)

pytestmark = pytest.mark.slow

NOW: Final = Now(10**15, 100.0)
LATER: Final = Now(10**15 + 90 * 10**6, 190.0)  # locks have run out, messages come and go
MINUTE: Final = timedelta(minutes=1)
LOCK, DELETE = ReceiveMode.PEEK_LOCK, ReceiveMode.RECEIVE_AND_DELETE
ORDERS, HELD, DUPS, TOPIC, SUB = map(
    EntityPath, ("orders", "held", "dups", "news", "news/Subscriptions/all")
)
FORWARDS, GRAVES = EntityPath("forwards"), EntityPath("graves")


def incoming(**fields: Any) -> Incoming:
    message = Message(body=b"x", **fields)
    content, size = pack(message)
    return Incoming(
        content=content,
        size=size,
        time_to_live=message.time_to_live,
        scheduled=message.scheduled,
        session=message.session_id,
        message_id=fields.get("message_id"),
    )


SOON: Final = to_date(NOW.wall) + MINUTE
PLAIN: Final = incoming()


def prepare(space: Namespace, now: Now) -> None:
    """Something of everything, some of it locked."""
    topics = Topics(space)
    forwards = {"forward_dead_lettered_messages_to": "graves"}
    space.create(GRAVES, QueueProperties(), now)
    space.create(ORDERS, QueueProperties(max_delivery_count=3, **forwards), now)
    space.create(FORWARDS, QueueProperties(forward_to="orders"), now)
    space.create(HELD, QueueProperties(requires_session=True), now)
    space.create(DUPS, QueueProperties(requires_duplicate_detection=True), now)
    topics.create(TOPIC, TopicProperties(), now)
    topics.subscribe(TOPIC, "all", SubscriptionProperties(), None, now)
    red = Rule(name="red", filter=SqlFilter(expression="color = 'red'"))
    topics.subscribe(TOPIC, "red", SubscriptionProperties(), red, now)
    topics.subscribe(TOPIC, "painted", SubscriptionProperties(), None, now)
    for name, action in (("paint", "SET color = 'blue'"), ("fail", "SET sys.To = 1.5")):
        rule = Rule(name=name, action=SqlAction(expression=action))
        topics.add_rule(TOPIC, "painted", rule, now)
    orders, held = space.find(ORDERS), space.find(HELD)
    orders.send([PLAIN] * 8, now)
    orders.send([incoming(time_to_live=MINUTE), incoming(scheduled=SOON)], now)
    for _ in range(3):
        orders.receive(State.ACTIVE, 1, LOCK, now)  # tokens 1 to 3
    for settlement in (Defer(), DeadLetter(reason="bad"), Abandon()):
        (taken,) = orders.receive(State.ACTIVE, 1, LOCK, now)
        orders.settle(taken.token, settlement, now)
    orders.visibility.dequeue(1, 30 * 10**6, now)
    held.send([incoming(session_id=name) for name in ("one", "one", "two", "three")], now)
    held.sessions.accept("one", now)  # token 7
    held.sessions.receive("token 7", 1, LOCK, now)  # token 8
    held.sessions.set_state("token 7", b"state", now)
    space.find(DUPS).send([incoming(message_id="a")], now)
    space.find(TOPIC).send([incoming(properties={"color": "red"})], now)
    idle = QueueProperties(auto_delete_on_idle=timedelta(minutes=5))
    space.create(EntityPath("idle"), idle, now)


def on(path: EntityPath, work: Any) -> Work:
    return lambda space, now: work(space.find(path), now)


def settles(token: str, settlement: Settlement) -> Work:
    return on(ORDERS, lambda queue, now: queue.settle(token, settlement, now))


def in_topics(work: Any) -> Work:
    return lambda space, now: work(Topics(space), now)


def in_session(work: Any) -> Work:
    return on(HELD, lambda queue, now: work(queue.sessions, now))


ANNOTATED: Final = {"note": "x"}
DATED: Final = CorrelationFilter(properties={"since": datetime(2020, 1, 1), "n": 5})
WORK: Final[dict[str, Work]] = {
    "send": on(ORDERS, lambda queue, now: queue.send([PLAIN, incoming(scheduled=SOON)], now)),
    "send to a new queue": lambda space, now: space.find_or_create(EntityPath("new"), now).send(
        [PLAIN], now
    ),
    "send to sessions": on(
        HELD, lambda queue, now: queue.send([incoming(session_id="one")] * 2, now)
    ),
    "send what may be a duplicate": on(
        DUPS,
        lambda queue, now: queue.send([incoming(message_id="a"), incoming(message_id="b")], now),
    ),
    "send to a topic": on(
        TOPIC, lambda queue, now: queue.send([incoming(properties={"color": "red"})], now)
    ),
    "send to what forwards": on(FORWARDS, lambda queue, now: queue.send([PLAIN] * 2, now)),
    "delete messages": on(
        ORDERS, lambda queue, now: queue.delete(State.ACTIVE, 3, None, None, now)
    ),
    "delete messages of a session": on(
        HELD, lambda queue, now: queue.delete(State.ACTIVE, 3, None, "one", now)
    ),
    "cancel": on(ORDERS, lambda queue, now: queue.cancel([10], now)),
    "take": on(ORDERS, lambda queue, now: queue.receive(State.ACTIVE, 3, LOCK, now)),
    "take dead letters": on(GRAVES, lambda queue, now: queue.receive(State.ACTIVE, 3, LOCK, now)),
    "take and delete": on(ORDERS, lambda queue, now: queue.receive(State.ACTIVE, 3, DELETE, now)),
    "take deferred": on(ORDERS, lambda queue, now: queue.receive_deferred([4], LOCK, now)),
    "complete": settles("token 1", Complete()),
    "abandon": settles("token 1", Abandon(properties=ANNOTATED)),
    "dead-letter": settles("token 1", DeadLetter(reason="bad", properties=ANNOTATED)),
    "defer": settles("token 1", Defer(properties=ANNOTATED)),
    "renew": on(ORDERS, lambda queue, now: queue.renew("token 1", now)),
    "release": on(ORDERS, lambda queue, now: queue.release(["token 1", "token 2"], now)),
    "release unseen": on(
        ORDERS, lambda queue, now: queue.release(["token 1"], now, delivered=False)
    ),
    "quarantine": on(ORDERS, lambda queue, now: queue.quarantine("token 1", now)),
    "peek": on(ORDERS, lambda queue, _now: queue.peek(list(State), 0, 10)),
    "hide": on(ORDERS, lambda queue, now: queue.visibility.dequeue(2, 10**6, now)),
    "hide for no time": on(ORDERS, lambda queue, now: queue.visibility.dequeue(2, 0, now)),
    "peek messages": on(ORDERS, lambda queue, now: queue.visibility.peek(-1, 10, now)),
    "clear": on(ORDERS, lambda queue, _now: queue.visibility.clear(-1, 10)),
    "change": lambda space, now: space.find(ORDERS).visibility.change(
        hidden(space), 10**6, b"another body", now
    ),
    "show": lambda space, now: space.find(ORDERS).visibility.change(hidden(space), 0, None, now),
    "remove": lambda space, now: space.find(ORDERS).visibility.remove(hidden(space), now),
    "accept the next session": in_session(lambda rules, now: rules.accept(None, now)),
    "accept a session": in_session(lambda rules, now: rules.accept("three", now)),
    "take of a session": in_session(lambda rules, now: rules.receive("token 7", 2, LOCK, now)),
    "settle in a session": in_session(
        lambda rules, now: rules.settle("token 7", "token 8", Complete(), now)
    ),
    "abandon in a session": in_session(
        lambda rules, now: rules.settle("token 7", "token 8", Abandon(), now)
    ),
    "renew a session": in_session(lambda rules, now: rules.renew("token 7", now)),
    "release a session": in_session(lambda rules, now: rules.release("token 7", now)),
    "set a state": in_session(lambda rules, now: rules.set_state("token 7", b"other", now)),
    "clear a state": in_session(lambda rules, now: rules.set_state("token 7", None, now)),
    "create a queue": lambda space, now: space.create(EntityPath("other"), QueueProperties(), now),
    "update a queue": lambda space, now: space.update(
        ORDERS, QueueProperties(lock_duration=MINUTE, forward_to="graves"), None, now
    ),
    "delete a queue": lambda space, _now: space.delete(ORDERS),
    "create a topic": in_topics(
        lambda topics, now: topics.create(EntityPath("other"), TopicProperties(), now)
    ),
    "update a topic": in_topics(
        lambda topics, now: topics.update(TOPIC, TopicProperties(user_metadata="x"), None, now)
    ),
    "delete a topic": in_topics(lambda topics, _now: topics.delete(TOPIC)),
    "subscribe": in_topics(
        lambda topics, now: topics.subscribe(
            TOPIC, "some", SubscriptionProperties(), Rule(name="dated", filter=DATED), now
        )
    ),
    "update a subscription": in_topics(
        lambda topics, now: topics.update_subscription(
            TOPIC, "all", SubscriptionProperties(forward_to="orders"), None, now
        )
    ),
    "unsubscribe": in_topics(lambda topics, now: topics.unsubscribe(TOPIC, "red", now)),
    "add a rule": in_topics(
        lambda topics, now: topics.add_rule(TOPIC, "red", Rule(name="dated", filter=DATED), now)
    ),
    "update a rule": in_topics(
        lambda topics, now: topics.update_rule(TOPIC, "red", Rule(name="red", filter=DATED), now)
    ),
    "drop a rule": in_topics(lambda topics, _now: topics.drop_rule(TOPIC, "red", "red")),
    "inspect": lambda space, now: space.inspect(ORDERS, now),
}
OVERDUE: Final[dict[str, Work]] = {
    "sweep and take": WORK["take"],
    "sweep sessions": WORK["accept the next session"],
    "due_work": lambda space, now: space.run_due_work(now, lambda _key: False),
}
CASES: Final = [
    *((name, work, NOW) for name, work in WORK.items()),
    *((name, work, LATER) for name, work in OVERDUE.items()),
    ("delete what is idle", OVERDUE["due_work"], attrs.evolve(LATER, monotonic=900.0)),
]


def hidden(space: Namespace) -> PopReceipt:
    """Of the message that was hidden."""
    rows = space.find(ORDERS)._content.storage.rows.after(State.SCHEDULED, -1, 10)
    row = next(row for row in rows if row.stamp)
    return PopReceipt(row.sequence, row.stamp, row.deliveries)


@pytest.mark.parametrize("kind", [InMemory, OnDisk])
@pytest.mark.parametrize(("name", "work", "now"), CASES, ids=[name for name, *_ in CASES])
def test_a_bug_at_any_call_of_a_step_changes_nothing(
    name: str, work: Work, now: Now, kind: type[Any], folder: Path
) -> None:
    place = kind(folder)
    step, _ = place.run(prepare, NOW, Bug())
    step.result()
    place.run(OVERDUE["due_work"], NOW, Bug())
    before, stored = content_of(place.namespace), place.stored()
    number = 0
    while True:
        number += 1
        bug = Bug(number)
        step, faults = place.run(work, now, bug)
        if not bug.hit:
            break
        assert [type(fault) for _, fault in faults] == [PlantedBug], bug.place
        assert isinstance(step.error, InternalError)
        assert not differences(before, content_of(place.namespace)), bug.place
        assert not differences(stored, place.stored()), bug.place

    step.result()
    assert not faults
    assert number > 3
    stored = place.stored()
    place.close()
    again = kind(folder)
    assert not differences(stored, again.stored())
    again.close()


@pytest.mark.parametrize("kind", [OnDisk, OnDiskTogether])
def test_of_the_steps_of_one_batch_only_the_one_with_the_bug_fails(
    kind: type[Any], folder: Path
) -> None:
    place = kind(folder)
    place.run(prepare, NOW, Bug())

    def fail(space: Namespace, now: Now) -> None:
        WORK["complete"](space, now)
        space.create(EntityPath("half"), QueueProperties(), now)
        raise PlantedBug

    works = [WORK["send"], fail, settles("token 2", Complete()), WORK["take"], WORK["complete"]]
    steps = [Step(ORDERS, NOW, work) for work in works]
    place.committer.bug = Bug()
    report = place.committer.run(steps)
    place.run(OVERDUE["due_work"], NOW, Bug())

    assert [type(step.error) for step in steps] == [type(None), InternalError, *[type(None)] * 3]
    assert [path for path, _ in report.faults] == [ORDERS]
    assert report.next_due_work == NOW.monotonic + 1.0
    assert place.namespace.known(EntityPath("half")) is None
    assert len(steps[0].result()) == 2
    assert len(steps[3].result()) == 3
    place.close()


@pytest.mark.parametrize(("name", "work", "now"), CASES, ids=[name for name, *_ in CASES])
def test_a_bug_that_does_not_come_again_is_survived(
    name: str, work: Work, now: Now, folder: Path
) -> None:
    number = 0
    results = []
    for number in (0, 1, 5, 10, 20, 50):
        each = folder / str(number)
        each.mkdir()
        place = OnDiskTogether(each)
        place.run(prepare, NOW, Bug())
        step, faults = place.run(work, now, Bug(number))
        step.result()
        assert not faults
        results.append([queue.info().active for queue in place.namespace._queues.values()])
        place.close()

    assert all(result == results[0] for result in results)


@pytest.mark.parametrize(("name", "work", "now"), CASES, ids=[name for name, *_ in CASES])
def test_a_bug_that_is_kept_keeps_no_statement_of_the_store_open(
    name: str, work: Work, now: Now, folder: Path
) -> None:
    place = OnDisk(folder)
    step, _ = place.run(prepare, NOW, Bug())
    step.result()
    kept: list[object] = []
    while True:
        bug = Bug(len(kept) + 1)
        kept.append(place.run(work, now, bug))
        if not bug.hit:
            break

    place.close()  # it moves the log into the store, which an open statement would prevent
    assert len(kept) > 3, name
