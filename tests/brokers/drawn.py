"""Strategies of the machine: properties, messages, moments."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import attrs
from hypothesis import strategies as st

from gateway.domain.entity import EntityStatus, QueueProperties
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message
from gateway.domain.topics.filters import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from tests.brokers.naive import ACTIVE, DEAD, TRANSFER

SECOND = 10**6
QUEUES = ("a", "b", "c")
TOPIC = "t"
SUBSCRIPTIONS = ("t/subscriptions/s", "t/subscriptions/u")
EVERYTHING = (*QUEUES, TOPIC, *SUBSCRIPTIONS)
BODIES = {b"": b"", b"long": b"y" * 1000, b"big": b"x" * 400_000}  # drawn by name


def after(*seconds: float) -> Any:
    return st.sampled_from([timedelta(seconds=each) for each in seconds])


def mostly(value: Any, *others: Any) -> Any:
    return st.sampled_from([value, value, value, value, *others])


COLOURS = st.sampled_from(["red", "blue"])
FILTERS = st.sampled_from(
    [
        TrueFilter(),
        FalseFilter(),
        CorrelationFilter(label="red"),
        SqlFilter(expression="sys.Label = 'blue'"),
    ]
)


def seconds(*numbers: float) -> tuple[timedelta, ...]:
    return tuple(timedelta(seconds=number) for number in numbers)


def differing(plain: Any, **others: Sequence[Any]) -> Any:
    """Properties of which some are other ones than usual."""
    ways = [(name, value) for name, values in others.items() for value in values]
    chosen = st.lists(st.sampled_from(ways), max_size=4)
    return chosen.map(lambda some: attrs.evolve(plain, **dict(some)))


RECEIVED: dict[str, Sequence[Any]] = {  # the queues that are received from
    "lock_duration": seconds(5.5, 30.5),
    "max_delivery_count": (1, 2, 3),
    "dead_lettering_on_expiration": (True,),
    "requires_session": (True, True, True),
}
SENT: dict[str, Sequence[Any]] = {  # the entities that are sent to
    "max_size_in_megabytes": (1, 1, 1),
    "requires_duplicate_detection": (True, True, True),
    "duplicate_detection_window": seconds(4.1, 40.1),
}
COMMON: dict[str, Sequence[Any]] = {
    "default_time_to_live": seconds(3.013, 20.013),
    "auto_delete_on_idle": seconds(300.7),
}
PROPERTIES = {
    QueueProperties: differing(
        QueueProperties(),
        **COMMON,
        **SENT,
        **RECEIVED,
        forward_to=("a", "b", "t", "nowhere"),
        forward_dead_lettered_messages_to=("b", "c", "t"),
        status=(EntityStatus.DISABLED, EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED),
        max_message_size=(1000,),
    ),
    TopicProperties: differing(
        TopicProperties(), **COMMON, **SENT, status=(EntityStatus.SEND_DISABLED,)
    ),
    SubscriptionProperties: differing(
        SubscriptionProperties(),
        **COMMON,
        **RECEIVED,
        forward_to=("a", "b"),
        forward_dead_lettered_messages_to=("b", "c"),
        status=(EntityStatus.RECEIVE_DISABLED,),
    ),
}
MESSAGES = st.builds(
    Message,
    message_id=st.sampled_from([None, "1", "1", "2"]),
    session_id=st.none() | st.sampled_from(["x", "y"]),
    subject=COLOURS,
    time_to_live=st.none() | after(2.013, 10.013, 60.013),
    body=st.sampled_from([b"", b"", b"", b"long", b"big", b"big"]),
)
BATCHES = st.lists(MESSAGES, min_size=1, max_size=3)
DELAYS = st.none() | after(1.25, 8.25, 50.25)
SETTLEMENTS = st.sampled_from(
    [Complete(), Abandon(), Abandon(delivered=False), DeadLetter(reason="bad"), Defer()]
)
# Of the last deliveries of a session, the last one first.
ENDINGS = st.lists(st.sampled_from([Complete(), Abandon(), Abandon(delivered=False)]), max_size=3)
SUB_QUEUES = mostly(ACTIVE, DEAD, TRANSFER)
INDEX = st.integers(0, 5)
