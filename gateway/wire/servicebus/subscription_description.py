"""SubscriptionDescription, both directions; see `description`."""

from typing import Final
from xml.etree.ElementTree import Element

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.topics.filters import DEFAULT_RULE, Rule
from gateway.domain.topics.topology import SubscriptionInfo, SubscriptionProperties
from gateway.wire.http.hardened_xml import text_of
from gateway.wire.servicebus import rule_description
from gateway.wire.servicebus.description import (
    AVAILABLE,
    DATES,
    LONGEST_LOCK,
    NAMESPACE,
    STATUS,
    ConstantElement,
    CountDetails,
    MessageTotal,
    Slot,
    Table,
    flag_field,
    number_field,
    span_field,
    targets_at,
    text_field,
    with_local_targets,
)

_FIRST_RULE: Final = "DefaultRuleDescription"
_COUNTS: Final = {
    "ActiveMessageCount": "active",
    "DeadLetterMessageCount": "dead_lettered",
    "TransferDeadLetterMessageCount": "transfer_dead_lettered",
}
TABLE: Final = Table(
    element="SubscriptionDescription",
    items=(
        span_field("LockDuration", "lock_duration", LONGEST_LOCK),
        flag_field("RequiresSession", "requires_session"),
        span_field("DefaultMessageTimeToLive", "default_time_to_live"),
        flag_field("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration"),
        flag_field("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_error"),
        Slot(_FIRST_RULE),
        MessageTotal(tuple(_COUNTS.values())),
        number_field("MaxDeliveryCount", "max_delivery_count"),
        flag_field("EnableBatchedOperations", "enable_batched_operations"),
        STATUS,
        text_field("ForwardTo", "forward_to"),
        *DATES,
        CountDetails(_COUNTS),
        text_field("UserMetadata", "user_metadata"),
        text_field("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
        span_field("AutoDeleteOnIdle", "auto_delete_on_idle"),
        AVAILABLE,
        ConstantElement("IsClientAffine", "false"),
    ),
)


def build_properties(properties: SubscriptionProperties, first_rule: Rule | None) -> str:
    """
    Build the element for a request.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    if first_rule is None:
        return TABLE.build_properties(properties)
    rule = rule_description.build_part(_FIRST_RULE, first_rule)
    return TABLE.build_properties(properties, {_FIRST_RULE: rule})


def build_info(info: SubscriptionInfo, host: str) -> str:
    """
    Build the element for an answer of `host`.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    targets = targets_at(info.properties, host)
    return TABLE.build_info(info, attrs.evolve(info.properties, **targets))


def parse_properties(description: Element, host: str = "") -> SubscriptionProperties:
    """
    Parse the properties that are present; missing or empty ones take their defaults.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    return SubscriptionProperties(**with_local_targets(TABLE.parse_properties(description), host))


def parse_first_rule(description: Element) -> Rule | None:
    """
    Parse the rule of a new subscription that replaces the default rule.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    part = description.find(f"{{{NAMESPACE}}}{_FIRST_RULE}")
    if part is None or len(part) == 0:
        return None
    return rule_description.parse(part, text_of(part, "Name") or DEFAULT_RULE)


def parse_info(topic: EntityPath, name: str, description: Element) -> SubscriptionInfo:
    """
    Parse a namespace's description of a subscription.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    return SubscriptionInfo(
        topic=topic,
        name=name,
        properties=parse_properties(description),
        **TABLE.parse_facts(description),
    )
