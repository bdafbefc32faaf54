"""The defaults of a topic and a subscription, and the properties that they share with a queue."""

from datetime import timedelta

import attrs
import pytest

from gateway.domain.entity import EntityPath, EntityStatus
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
    as_queue,
)

NEWS = EntityPath("News")
ACTED_ON_BY_NOBODY = {"user_metadata", "enable_batched_operations"}


def test_a_topic_that_is_only_named_has_the_defaults_of_service_bus() -> None:
    assert TopicInfo(path=NEWS).properties == TopicProperties(
        default_time_to_live=None,
        max_size_in_megabytes=1024,
        requires_duplicate_detection=False,
        duplicate_detection_window=timedelta(seconds=600),
        enable_batched_operations=True,
        support_ordering=True,
        auto_delete_on_idle=None,
        status=EntityStatus("Active"),
        max_message_size=None,
    )


def test_a_subscription_that_is_only_named_has_the_defaults_of_service_bus() -> None:
    assert SubscriptionInfo(topic=NEWS, name="Berlin").properties == SubscriptionProperties(
        lock_duration=timedelta(seconds=60),
        requires_session=False,
        default_time_to_live=None,
        dead_lettering_on_expiration=False,
        dead_lettering_on_filter_error=True,
        max_delivery_count=10,
        enable_batched_operations=True,
        status=EntityStatus("Active"),
        forward_to=None,
        forward_dead_lettered_messages_to=None,
        auto_delete_on_idle=None,
    )


def test_a_figure_that_a_namespace_does_not_tell_is_counted_as_none() -> None:
    topic, subscription = TopicInfo(path=NEWS), SubscriptionInfo(topic=NEWS, name="Berlin")

    assert (topic.size, topic.subscriptions, topic.scheduled) == (0, 0, 0)
    assert (subscription.active, subscription.dead_lettered) == (0, 0)
    for info in (topic, subscription):
        assert (info.transfer_dead_lettered, info.version) == (0, 0)


def test_a_subscription_delivers_once_at_least() -> None:
    assert SubscriptionProperties(max_delivery_count=1).max_delivery_count == 1
    with pytest.raises(ValueError, match="max_delivery_count"):
        SubscriptionProperties(max_delivery_count=0)


def test_a_subscription_is_received_from_below_its_topic() -> None:
    path = SubscriptionInfo(topic=NEWS, name="Berlin").path

    assert path.name == "News/Subscriptions/Berlin"
    assert (path.topic, path.subscription) == (NEWS, "Berlin")


@pytest.mark.parametrize(
    "properties",
    [
        TopicProperties(
            default_time_to_live=timedelta(seconds=1),
            max_size_in_megabytes=2,
            requires_duplicate_detection=True,
            duplicate_detection_window=timedelta(seconds=3),
            auto_delete_on_idle=timedelta(seconds=4),
            status=EntityStatus.SEND_DISABLED,
            max_message_size=5,
        ),
        SubscriptionProperties(
            lock_duration=timedelta(seconds=1),
            requires_session=True,
            default_time_to_live=timedelta(seconds=2),
            dead_lettering_on_expiration=True,
            max_delivery_count=3,
            status=EntityStatus.RECEIVE_DISABLED,
            forward_to="bills",
            forward_dead_lettered_messages_to="dead",
            auto_delete_on_idle=timedelta(seconds=4),
        ),
    ],
    ids=["topic", "subscription"],
)
def test_properties_that_an_entity_has_in_common_with_a_queue_hold_for_its_messages(
    properties: TopicProperties | SubscriptionProperties,
) -> None:
    said = attrs.asdict(properties, recurse=False)
    held = attrs.asdict(as_queue(properties), recurse=False)
    common = said.keys() & held.keys() - ACTED_ON_BY_NOBODY

    assert {name: held[name] for name in common} == {name: said[name] for name in common}
