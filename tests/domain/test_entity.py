"""
Names: valid names, and the parents of sub-queues; and the defaults of a queue that is only named.
"""

from datetime import timedelta

import pytest

from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import InvalidRequest

ORDERS = EntityPath("Orders")


# --- names


def test_the_case_of_a_name_is_kept_and_ignored() -> None:
    shouted = EntityPath.parse("ORDERS")

    assert (str(shouted), shouted) == ("ORDERS", ORDERS)
    assert len({shouted, ORDERS}) == 1


@pytest.mark.parametrize("name", ["a", "a/b", "A-z_0.9$", "shop.messages~placed", "...", "x" * 260])
def test_a_name_is_taken_as_it_is_typed(name: str) -> None:
    assert EntityPath.parse(name).name == name


@pytest.mark.parametrize("name", ["", "x" * 261])
def test_a_name_has_a_length(name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"1 to 260 characters expected, got {len(name)}$"):
        EntityPath.parse(name)


@pytest.mark.parametrize("name", ["/", "/a", "a/", "a//b", "a b", "a\n", "é", ".", "a/../b"])
def test_a_name_that_could_mean_another_place_is_none(name: str) -> None:
    with pytest.raises(InvalidRequest, match="segments of letters, digits"):
        EntityPath.parse(name)


# --- sub-queues and subscriptions


def test_an_entity_has_a_queue_of_dead_letters_and_one_of_what_it_could_not_forward() -> None:
    dead, transfer = ORDERS.dead_letter, ORDERS.transfer_dead_letter

    assert dead == EntityPath("orders/$deadletterqueue")
    assert transfer == EntityPath("orders/$transfer/$deadletterqueue")
    assert [path.is_dead_letter for path in (ORDERS, dead, transfer)] == [False, True, True]
    assert [path.is_transfer_dead_letter for path in (ORDERS, dead, transfer)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("path", [ORDERS, ORDERS.dead_letter, ORDERS.transfer_dead_letter])
def test_a_sub_queue_names_its_owner_as_it_was_typed(path: EntityPath) -> None:
    assert path.parent.name == "Orders"


@pytest.mark.parametrize(
    ("name", "topic", "subscription"),
    [
        ("News/Subscriptions/Berlin", "News", "Berlin"),
        ("news/subscriptions/berlin/$DeadLetterQueue", "news", "berlin"),
        ("daily/news/subscriptions/berlin", "daily/news", "berlin"),
    ],
)
def test_a_subscription_is_named_after_its_topic(name: str, topic: str, subscription: str) -> None:
    path = EntityPath.parse(name)

    assert path.is_subscription
    assert (path.topic.name, path.subscription) == (topic, subscription)


@pytest.mark.parametrize(
    "name", ["news", "subscriptions/berlin", "news/subscriptions/berlin/mitte"]
)
def test_an_entity_that_is_no_subscription_is_its_own_topic(name: str) -> None:
    path = EntityPath.parse(name)

    assert not path.is_subscription
    assert (path.topic, path.subscription) == (path, "")


# --- properties


def test_a_queue_that_is_only_named_has_the_defaults_of_service_bus() -> None:
    assert EntityInfo(path=ORDERS).properties == QueueProperties(
        lock_duration=timedelta(seconds=60),
        max_delivery_count=10,
        default_time_to_live=None,
        dead_lettering_on_expiration=False,
        max_size_in_megabytes=1024,
        requires_session=False,
        requires_duplicate_detection=False,
        duplicate_detection_window=timedelta(seconds=600),
        enable_batched_operations=True,
        auto_delete_on_idle=None,
        forward_to=None,
        forward_dead_lettered_messages_to=None,
        status=EntityStatus("Active"),
        max_message_size=None,
    )


def test_of_a_queue_that_is_only_named_nothing_is_counted() -> None:
    info = EntityInfo(path=ORDERS)

    assert (info.active, info.dead_lettered, info.scheduled, info.size) == (None,) * 4
    assert info.version == 0


def test_a_message_is_delivered_once_at_least() -> None:
    assert QueueProperties(max_delivery_count=1).max_delivery_count == 1
    with pytest.raises(ValueError, match="max_delivery_count"):
        QueueProperties(max_delivery_count=0)


@pytest.mark.parametrize("required", [True, False])
def test_the_description_of_a_queue_tells_whether_it_needs_sessions(required: bool) -> None:
    info = EntityInfo(path=ORDERS, properties=QueueProperties(requires_session=required))

    assert info.requires_session is required
