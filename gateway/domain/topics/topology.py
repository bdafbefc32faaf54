"""Topics and their subscriptions: properties and facts."""

from datetime import datetime, timedelta

import attrs
from attrs import validators

from gateway.domain.entity import AuthorizationRule, EntityPath, EntityStatus, QueueProperties


@attrs.frozen(kw_only=True)
class TopicProperties:
    """
    The properties that a topic was created with. None: off, or without a limit of its own.

    `enable_express`, `enable_partitioning`, `filter_before_publishing` and `authorization_rules`
    have no effect, as those of `QueueProperties`.
    """

    default_time_to_live: timedelta | None = None
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_window: timedelta = timedelta(minutes=10)
    enable_batched_operations: bool = True
    support_ordering: bool = True
    auto_delete_on_idle: timedelta | None = None
    user_metadata: str | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    max_message_size: int | None = None  # bytes, encoded
    enable_express: bool = False
    enable_partitioning: bool = False
    filter_before_publishing: bool = False
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@attrs.frozen(kw_only=True)
class SubscriptionProperties:
    """The properties that a subscription was created with. None: off, or no limit of its own."""

    lock_duration: timedelta = timedelta(minutes=1)
    requires_session: bool = False
    default_time_to_live: timedelta | None = None
    dead_lettering_on_expiration: bool = False
    dead_lettering_on_filter_error: bool = True
    max_delivery_count: int = attrs.field(default=10, validator=validators.ge(1))
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle: timedelta | None = None


@attrs.frozen(kw_only=True)
class TopicInfo:
    """
    The facts about a topic that its namespace reports. `version`, the ETag, changes with updates.

    `transfer_dead_lettered` counts messages that were forwarded to the topic, but could not be
    copied to its subscriptions.
    """

    path: EntityPath
    properties: TopicProperties = attrs.field(factory=TopicProperties)
    max_message_size: int | None = None  # bytes, encoded; None: not reported
    size: int = 0  # bytes
    subscriptions: int = 0
    scheduled: int = 0
    transfer_dead_lettered: int = 0
    sql_filters: int | None = None  # of all subscriptions; None: not reported
    correlation_filters: int | None = None
    created: datetime | None = None
    updated: datetime | None = None
    accessed: datetime | None = None
    version: int = 0


@attrs.frozen(kw_only=True)
class SubscriptionInfo:
    """
    The facts about a subscription that its namespace reports. `version` changes with updates. A
    count that is None isn't known.
    """

    topic: EntityPath
    name: str
    properties: SubscriptionProperties = attrs.field(factory=SubscriptionProperties)
    active: int | None = 0
    dead_lettered: int | None = 0
    transfer_dead_lettered: int | None = 0
    created: datetime | None = None
    updated: datetime | None = None
    accessed: datetime | None = None
    version: int = 0

    @property
    def path(self) -> EntityPath:
        """The path to receive from."""
        return EntityPath(f"{self.topic.name}/Subscriptions/{self.name}")


Properties = QueueProperties | TopicProperties | SubscriptionProperties


def kind_of(properties: Properties) -> str:
    """Service Bus's word for an entity with these properties."""
    return type(properties).__name__.removesuffix("Properties")


def as_queue(properties: Properties) -> QueueProperties:
    """The properties that a topic or a subscription shares with queues, as a queue's."""
    match properties:
        case QueueProperties():
            return properties
        case TopicProperties():
            return QueueProperties(
                default_time_to_live=properties.default_time_to_live,
                max_size_in_megabytes=properties.max_size_in_megabytes,
                requires_duplicate_detection=properties.requires_duplicate_detection,
                duplicate_detection_window=properties.duplicate_detection_window,
                auto_delete_on_idle=properties.auto_delete_on_idle,
                status=properties.status,
                max_message_size=properties.max_message_size,
                enable_partitioning=properties.enable_partitioning,
            )
        case SubscriptionProperties():
            return QueueProperties(
                lock_duration=properties.lock_duration,
                max_delivery_count=properties.max_delivery_count,
                default_time_to_live=properties.default_time_to_live,
                dead_lettering_on_expiration=properties.dead_lettering_on_expiration,
                requires_session=properties.requires_session,
                auto_delete_on_idle=properties.auto_delete_on_idle,
                forward_to=properties.forward_to,
                forward_dead_lettered_messages_to=properties.forward_dead_lettered_messages_to,
                status=properties.status,
            )
