"""QueueDescription, both directions; see `description`."""

from typing import Final
from xml.etree.ElementTree import Element

import attrs

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.wire.servicebus.authorization_rules import RULES
from gateway.wire.servicebus.description import (
    AVAILABLE,
    DATES,
    LONGEST_LOCK,
    LONGEST_WINDOW,
    MAX_MESSAGE_SIZE,
    STATUS,
    ConstantElement,
    CountDetails,
    MessageTotal,
    PropertyElement,
    Table,
    count_field,
    flag_field,
    number_field,
    parsed,
    span_field,
    targets_at,
    text_field,
    with_local_targets,
)
from gateway.wire.servicebus.management_values import optional_text, short_text

_COUNTS: Final = {
    "ActiveMessageCount": "active",
    "DeadLetterMessageCount": "dead_lettered",
    "ScheduledMessageCount": "scheduled",
    "TransferDeadLetterMessageCount": "transfer_dead_lettered",
}
TABLE: Final = Table(
    element="QueueDescription",
    items=(
        span_field("LockDuration", "lock_duration", LONGEST_LOCK),
        number_field("MaxSizeInMegabytes", "max_size_in_megabytes"),
        flag_field("RequiresDuplicateDetection", "requires_duplicate_detection"),
        flag_field("RequiresSession", "requires_session"),
        span_field("DefaultMessageTimeToLive", "default_time_to_live"),
        flag_field("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration"),
        span_field(
            "DuplicateDetectionHistoryTimeWindow", "duplicate_detection_window", LONGEST_WINDOW
        ),
        number_field("MaxDeliveryCount", "max_delivery_count"),
        flag_field("EnableBatchedOperations", "enable_batched_operations"),
        count_field("SizeInBytes", "size"),
        MessageTotal((*_COUNTS.values(), "deferred")),
        ConstantElement("IsAnonymousAccessible", "false"),
        RULES,
        STATUS,
        *DATES,
        ConstantElement("SupportOrdering", "true"),
        CountDetails(_COUNTS),
        span_field("AutoDeleteOnIdle", "auto_delete_on_idle"),
        flag_field("EnablePartitioning", "enable_partitioning"),
        AVAILABLE,
        flag_field("EnableExpress", "enable_express"),
        text_field("ForwardTo", "forward_to"),
        # Service Bus's limit applies to requests; answers may be longer.
        PropertyElement(
            "UserMetadata", "user_metadata", optional_text, lambda text: text, optional=True
        ),
        text_field("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
        MAX_MESSAGE_SIZE,
    ),
)


def build_properties(properties: QueueProperties) -> str:
    """
    Build the element for a request.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    return TABLE.build_properties(properties)


def build_info(info: EntityInfo, host: str) -> str:
    """
    Build the element for an answer of `host`.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    size = info.properties.max_message_size or info.max_message_size
    targets = targets_at(info.properties, host)
    return TABLE.build_info(info, attrs.evolve(info.properties, max_message_size=size, **targets))


def parse_properties(description: Element, host: str = "") -> QueueProperties:
    """
    Parse the properties that are present; missing or empty ones take their defaults.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    properties = _parsed(description, host)
    parsed("UserMetadata", short_text, properties.user_metadata or "")
    return properties


def _parsed(description: Element, host: str = "") -> QueueProperties:
    return QueueProperties(**with_local_targets(TABLE.parse_properties(description), host))


def parse_info(path: EntityPath, description: Element) -> EntityInfo:
    """
    Parse a namespace's description of a queue. Its size limit may be the namespace's own, so it
    isn't taken as the queue's.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    properties = _parsed(description)
    return EntityInfo(
        path=path,
        properties=attrs.evolve(properties, max_message_size=None),
        max_message_size=properties.max_message_size,
        **TABLE.parse_facts(description),
    )
