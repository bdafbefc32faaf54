"""The embedded broker's queues check properties, messages and reasons up to each limit."""

from datetime import timedelta
from typing import Any

import pytest

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest
from gateway.store.engine.queue_checks import (
    accept,
    check_properties,
    check_update,
)
from gateway.store.engine.records import MessageNumbers, State
from tests.store.engine.queue import at, message

ORDERS = EntityPath("orders")
LONGEST = "ä" * 4096


def check(**properties: Any) -> None:
    check_properties(QueueProperties(**properties))


@pytest.mark.parametrize(
    "properties",
    [
        {"requires_session": True},
        {"auto_delete_on_idle": timedelta(minutes=5)},
        {"max_size_in_megabytes": 1},
        {"max_message_size": 1},
        {"lock_duration": timedelta(microseconds=1)},
        {"lock_duration": timedelta(minutes=5)},
        {"duplicate_detection_window": timedelta(days=7)},
        {"default_time_to_live": timedelta.max},
    ],
    ids=lambda properties: next(iter(properties)),
)
def test_a_property_may_be_at_its_limit(properties: dict[str, Any]) -> None:
    check(**properties)


def test_a_limit_is_named_where_there_is_one() -> None:
    with pytest.raises(InvalidRequest, match=r"^LockDuration: more than zero, at most 0:05:00 exp"):
        check(lock_duration=timedelta(0))
    with pytest.raises(
        InvalidRequest, match=r"^DefaultMessageTimeToLive: more than zero expected, got"
    ):
        check(default_time_to_live=timedelta(0))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requires_session", "The value for the RequiresSession property of an existing Queue"),
        ("requires_duplicate_detection", "The value for the RequiresDuplicateDetection property"),
        ("enable_partitioning", "Partitioning cannot be changed for Queue: orders"),
    ],
)
def test_the_properties_that_an_entity_was_made_with_stay(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{text}.*"):
        check_update(ORDERS, "Queue", QueueProperties(), QueueProperties(**{name: True}))


def test_an_update_makes_as_much_sense_as_a_new_entity() -> None:
    check_update(ORDERS, "Queue", QueueProperties(), QueueProperties(max_delivery_count=3))
    with pytest.raises(InvalidRequest, match="LockDuration"):
        check_update(
            ORDERS, "Queue", QueueProperties(), QueueProperties(lock_duration=timedelta(0))
        )


@pytest.mark.parametrize(
    ("due", "state"), [(4, State.ACTIVE), (5, State.ACTIVE), (6, State.SCHEDULED)]
)
def test_a_message_scheduled_for_now_or_before_is_there_at_once(due: int, state: State) -> None:
    row = accept(message("a", due=due), MessageNumbers(1, 1), QueueProperties(), at(5))

    assert row.state is state
    assert row.due == (None if state is State.ACTIVE else 6_000_000)
