"""
Entities of the embedded broker count as idle, and are deleted, by Service Bus's rules.

The rules stand in its documentation of message expiration, section "Idleness".
"""

from datetime import timedelta
from typing import Any

import pytest

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message, ReceiveMode
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.engine.records import State
from tests.brokers.stepped import SteppedBroker, done

QUEUE, OTHER, NEWS = EntityPath("queue"), EntityPath("other"), EntityPath("news")
READER = EntityPath("news/subscriptions/reader")
IDLE = timedelta(minutes=5)
MINUTE = 60 * 10**6


@pytest.fixture
def broker() -> SteppedBroker:
    """A broker with entities that are deleted after five idle minutes; four are over."""
    broker = SteppedBroker()
    done(broker.create_queue(OTHER, QueueProperties(forward_to="queue")))
    done(broker.create_queue(QUEUE, QueueProperties(auto_delete_on_idle=IDLE)))
    done(broker.create_topic(NEWS, TopicProperties(auto_delete_on_idle=IDLE)))
    subscription = SubscriptionProperties(auto_delete_on_idle=IDLE)
    done(broker.create_subscription(NEWS, "reader", subscription))
    pass_minutes(broker, 4)
    return broker


def pass_minutes(broker: SteppedBroker, minutes: int) -> None:
    broker.wait(broker.watch.wall + minutes * MINUTE)


def left(broker: SteppedBroker) -> list[str]:
    """Let two minutes pass; return the names of the entities that are still there."""
    pass_minutes(broker, 2)
    space = broker.namespace
    return [path.name for path in (QUEUE, NEWS, READER) if space.known(path) is not None]


def take(broker: SteppedBroker, path: EntityPath) -> Any:
    mode = ReceiveMode.PEEK_LOCK
    return done(broker.on_queue(path, lambda queue, now: queue.receive(State.ACTIVE, 1, mode, now)))


def test_an_unused_entity_goes(broker):
    assert left(broker) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda broker: done(broker.send(QUEUE, [Message()])),
        lambda broker: done(broker.send(OTHER, [Message()])),
        lambda broker: take(broker, QUEUE),
        lambda broker: done(broker.peek(QUEUE)),
        lambda broker: done(broker.update_queue(QUEUE, QueueProperties(auto_delete_on_idle=IDLE))),
    ],
    ids=["send", "forward", "receive", "peek", "update"],
)
def test_a_queue_that_is_used_stays(broker, use):
    use(broker)

    assert left(broker) == ["queue"]


def test_a_queue_that_forwards_is_never_idle(broker):
    forwards = QueueProperties(auto_delete_on_idle=IDLE, forward_to="elsewhere")
    done(broker.update_queue(QUEUE, forwards))
    pass_minutes(broker, 60)

    assert left(broker) == ["queue"]


def test_a_queue_is_in_use_until_its_last_schedule_is_cancelled(broker):
    due = to_date(broker.watch.wall) + timedelta(days=1)
    [number] = done(broker.schedule(QUEUE, [Message(scheduled=due)]))
    pass_minutes(broker, 64)
    done(broker.cancel_scheduled(QUEUE, [number]))
    pass_minutes(broker, 4)

    assert broker.namespace.known(QUEUE) is not None
    assert left(broker) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda broker: take(broker, READER),
        lambda broker: done(broker.peek(READER)),
        lambda broker: done(broker.create_rule(NEWS, "reader", Rule(name="r"))),
    ],
    ids=["receive", "peek", "rule"],
)
def test_a_topic_is_used_with_its_subscription(broker, use):
    use(broker)

    assert left(broker) == ["news", "news/subscriptions/reader"]


def test_a_message_that_comes_is_no_use_of_a_subscription(broker):
    done(broker.send(NEWS, [Message()]))

    assert left(broker) == ["news"]
