"""Properties that a namespace can't keep are refused by name, unless nobody has asked for them."""

from datetime import timedelta
from typing import Any

import pytest

from gateway.domain.entity import (
    EntityInfo,
    EntityPath,
    QueueProperties,
    first_changed,
    first_lost,
    shown,
)

LOCK = timedelta(minutes=5)
TOLD = EntityInfo(
    path=EntityPath("orders"),
    properties=QueueProperties(lock_duration=LOCK),
    max_message_size=100_000,
)
KEEPS = {"max_delivery_count"}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"max_delivery_count": 3},
        {"lock_duration": LOCK},
        {"max_message_size": 97 * 1024},
        {"duplicate_detection_window": timedelta(minutes=1)},
    ],
    ids=["sent by default", "kept", "told", "told in whole kilobytes", ".NET's"],
)
def test_no_property_is_lost_that_is_kept_or_usual_or_told(asked: dict[str, Any]) -> None:
    assert first_lost(QueueProperties(**asked), KEEPS, TOLD) is None


@pytest.mark.parametrize(
    "asked",
    [
        {"lock_duration": timedelta(seconds=45)},
        {"max_message_size": 96 * 1024},
        {"duplicate_detection_window": timedelta(minutes=2)},
        {"user_metadata": "text"},
        {"enable_batched_operations": False},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_property_that_would_be_lost_is_named(asked: dict[str, Any]) -> None:
    assert first_lost(QueueProperties(**asked), KEEPS, TOLD) == next(iter(asked))


def test_a_change_is_what_differs_from_the_properties_that_management_tells() -> None:
    told = shown(TOLD)

    assert told.max_message_size == 97 * 1024
    assert first_changed(told, TOLD) is None
    assert first_changed(TOLD.properties, TOLD) is None  # without a size of its own
    assert first_changed(QueueProperties(), TOLD) == "lock_duration"
