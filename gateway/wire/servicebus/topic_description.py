"""TopicDescription, both directions; see `description`."""

from typing import Final
from xml.etree.ElementTree import Element

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.topics.topology import TopicInfo, TopicProperties
from gateway.wire.servicebus.authorization_rules import RULES
from gateway.wire.servicebus.description import (
    AVAILABLE,
    DATES,
    LONGEST_WINDOW,
    MAX_MESSAGE_SIZE,
    STATUS,
    ConstantElement,
    CountDetails,
    Table,
    count_field,
    flag_field,
    number_field,
    optional_count_field,
    span_field,
    text_field,
)

TABLE: Final = Table(
    element="TopicDescription",
    items=(
        span_field("DefaultMessageTimeToLive", "default_time_to_live"),
        number_field("MaxSizeInMegabytes", "max_size_in_megabytes"),
        flag_field("RequiresDuplicateDetection", "requires_duplicate_detection"),
        span_field(
            "DuplicateDetectionHistoryTimeWindow", "duplicate_detection_window", LONGEST_WINDOW
        ),
        flag_field("EnableBatchedOperations", "enable_batched_operations"),
        count_field("SizeInBytes", "size"),
        flag_field("FilteringMessagesBeforePublishing", "filter_before_publishing"),
        ConstantElement("IsAnonymousAccessible", "false"),
        RULES,
        STATUS,
        *DATES,
        flag_field("SupportOrdering", "support_ordering"),
        CountDetails(
            {
                "ScheduledMessageCount": "scheduled",
                "TransferDeadLetterMessageCount": "transfer_dead_lettered",
            }
        ),
        count_field("SubscriptionCount", "subscriptions"),
        span_field("AutoDeleteOnIdle", "auto_delete_on_idle"),
        flag_field("EnablePartitioning", "enable_partitioning"),
        AVAILABLE,
        ConstantElement("EnableSubscriptionPartitioning", "false"),
        flag_field("EnableExpress", "enable_express"),
        text_field("UserMetadata", "user_metadata"),
        MAX_MESSAGE_SIZE,
        optional_count_field("SqlFilterCount", "sql_filters"),
        optional_count_field("CorrelationFilterCount", "correlation_filters"),
    ),
)


def build_properties(properties: TopicProperties) -> str:
    """
    Build the element for a request.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    return TABLE.build_properties(properties)


def build_info(info: TopicInfo) -> str:
    """
    Build the element for an answer.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    size = info.properties.max_message_size or info.max_message_size
    return TABLE.build_info(info, attrs.evolve(info.properties, max_message_size=size))


def parse_properties(description: Element) -> TopicProperties:
    """
    Parse the properties that are present; missing or empty ones take their defaults.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    return TopicProperties(**TABLE.parse_properties(description))


def parse_info(path: EntityPath, description: Element) -> TopicInfo:
    """
    Parse a namespace's description of a topic. Its size limit may be the namespace's own, so it
    isn't taken as the topic's.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    properties = parse_properties(description)
    return TopicInfo(
        path=path,
        properties=attrs.evolve(properties, max_message_size=None),
        max_message_size=properties.max_message_size,
        **TABLE.parse_facts(description),
    )
