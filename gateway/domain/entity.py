"""Names, properties and facts of entities."""

import enum
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import validators

from gateway.domain.errors import InvalidRequest

MAX_PATH_LENGTH: Final = 260
# `~`: MassTransit's separator. Service Bus accepts it, though its naming rules don't list it
# (Azure/azure-service-bus-emulator-installer#134, hashicorp/terraform-provider-azurerm#1640).
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._~$-]+", re.ASCII)
_DEAD_LETTER: Final = "/$DeadLetterQueue"
_TRANSFER: Final = "/$Transfer/$DeadLetterQueue"
_DEAD_LETTER_KEY: Final = _DEAD_LETTER.lower()
_TRANSFER_KEY: Final = _TRANSFER.lower()
SHARD_MARK: Final = "/x-pairgate-shard/"  # before the number of a shard
_SHARD_PATH: Final = re.compile(r"(?P<whole>.+)/x-pairgate-shard/(?P<number>[1-9][0-9]{0,2})")
_KILOBYTE: Final = 1024  # the unit in which management tells a size
# Values that come with each queue, beside the service's own defaults: .NET's and Java's clients ask
# for a window of one minute (CreateQueueOptions), the sample file of the official emulator for one
# of 20 seconds, also without duplicate detection.
_SENT_BY_DEFAULT: Final[Mapping[str, tuple[object, ...]]] = {
    "duplicate_detection_window": (timedelta(minutes=1), timedelta(seconds=20))
}
_SUBSCRIPTION: Final = re.compile(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)", re.IGNORECASE)


@attrs.frozen(order=False)
class EntityPath:
    """
    The path of a queue, topic, subscription or sub-queue. As in Service Bus, its case is kept but
    ignored in comparisons.

    `name` is the path as a user wrote it, `key` the path in lower case, for lookups. `parent_key`
    is the key of the entity that owns this sub-queue.
    """

    name: str = attrs.field(eq=False)
    key: str = attrs.field(init=False, repr=False)
    parent_key: str = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        key = self.name.lower()
        if key == self.name:
            key = self.name  # one string in memory instead of two
        suffix = _TRANSFER_KEY if key.endswith(_TRANSFER_KEY) else _DEAD_LETTER_KEY
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "parent_key", key.removesuffix(suffix) or key)

    @classmethod
    def parse(cls, text: str) -> "EntityPath":
        """
        Check a name that a client or a user gave.

        Raises:
            InvalidRequest: the text names the problem and the limit.
        """
        if not text or len(text) > MAX_PATH_LENGTH:
            raise InvalidRequest(
                f"entity name: 1 to {MAX_PATH_LENGTH} characters expected, got {len(text)}"
            )
        for segment in text.split("/"):
            if not _SEGMENT.fullmatch(segment) or segment in {".", ".."}:
                raise InvalidRequest(
                    f"entity name {text!r}: segments of letters, digits, '.', '-', '_', '~'"
                    " expected, separated by single '/'"
                )
        return cls(text)

    @property
    def dead_letter(self) -> "EntityPath":
        """The path of this entity's dead-letter sub-queue."""
        return EntityPath(f"{self.name}{_DEAD_LETTER}")

    @property
    def transfer_dead_letter(self) -> "EntityPath":
        """The path of the sub-queue for messages that this entity couldn't forward."""
        return EntityPath(f"{self.name}{_TRANSFER}")

    @property
    def is_dead_letter(self) -> bool:
        """True if this is a sub-queue, of dead letters or of messages that weren't forwarded."""
        return self.parent_key != self.key

    @property
    def is_transfer_dead_letter(self) -> bool:
        return len(self.key) - len(self.parent_key) == len(_TRANSFER)

    @property
    def parent(self) -> "EntityPath":
        """The entity that owns this sub-queue; the entity itself if it isn't a sub-queue."""
        return EntityPath(self.name[: len(self.parent_key)]) if self.is_dead_letter else self

    @property
    def is_subscription(self) -> bool:
        return "/subscriptions/" in self.key and bool(_SUBSCRIPTION.fullmatch(self.parent.name))

    @property
    def topic(self) -> "EntityPath":
        """The topic of this subscription; the entity itself if it isn't a subscription."""
        match = _SUBSCRIPTION.fullmatch(self.parent.name)
        return EntityPath(match["topic"]) if match else self

    @property
    def subscription(self) -> str:
        """The name of this subscription within its topic; empty if it isn't a subscription."""
        match = _SUBSCRIPTION.fullmatch(self.parent.name)
        return match["name"] if match else ""

    def shard(self, number: int) -> "EntityPath":
        """
        The path of one of the queues that together are this queue, or of that one's sub-queue. The
        first, number 0, has this path itself.
        """
        if not number:
            return self
        own = self.name[: len(self.parent_key)]
        return EntityPath(f"{own}{SHARD_MARK}{number}{self.name[len(own) :]}")

    @property
    def whole(self) -> "EntityPath":
        """The queue, or sub-queue, of which this is a shard; the entity itself if it isn't one."""
        if SHARD_MARK not in self.key:
            return self
        match = _SHARD_PATH.fullmatch(self.parent_key)
        if match is None:
            return self
        end = len(match["whole"])
        return EntityPath(f"{self.name[:end]}{self.name[len(self.parent_key) :]}")

    @property
    def shard_number(self) -> int:
        """The number of this shard of `whole`; 0 for an entity that isn't a further shard."""
        match = _SHARD_PATH.fullmatch(self.parent_key) if SHARD_MARK in self.key else None
        return int(match["number"]) if match else 0

    def __str__(self) -> str:
        return self.name


class EntityStatus(enum.Enum):
    """The operations that an entity allows, in Service Bus's words."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    __hash__ = object.__hash__  # as in `billing.Operation`: looked up for each message


@attrs.frozen(kw_only=True)
class AuthorizationRule:
    """
    A shared access policy of one entity, as its creator described it.

    It is kept and shown, so that management clients get back what they set. It grants nothing: the
    rights of clients are those of the gateway's access policies.
    """

    key_name: str
    rights: tuple[str, ...] = ()  # Manage, Listen, Send
    claim_type: str = ""
    claim_value: str = ""
    primary_key: str = attrs.field(default="", repr=False)
    secondary_key: str = attrs.field(default="", repr=False)
    created: str = ""  # the client's text
    modified: str = ""


@attrs.frozen(kw_only=True)
class QueueProperties:
    """
    The properties that a queue was created with. None: off, or without a limit of its own.

    `enable_express`, `enable_partitioning` and `authorization_rules` are kept and shown, and have
    no effect in a namespace of the gateway: each of its messages is durable, and no entity is
    partitioned.
    """

    lock_duration: timedelta = timedelta(minutes=1)
    max_delivery_count: int = attrs.field(default=10, validator=validators.ge(1))
    default_time_to_live: timedelta | None = None
    dead_lettering_on_expiration: bool = False
    max_size_in_megabytes: int = 1024
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    duplicate_detection_window: timedelta = timedelta(minutes=10)
    enable_batched_operations: bool = True
    auto_delete_on_idle: timedelta | None = None
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    max_message_size: int | None = None  # bytes, encoded
    enable_express: bool = False
    enable_partitioning: bool = False
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@attrs.frozen(kw_only=True)
class EntityInfo:
    """
    The facts about a queue that its namespace reports. None: not reported.

    The counts may be out of date. `requires_session` and `max_message_size` decide whether a send
    can be accepted at all.
    """

    path: EntityPath
    properties: QueueProperties = attrs.field(factory=QueueProperties)
    max_message_size: int | None = None  # bytes, encoded
    active: int | None = None
    locked_here: int = 0  # locked by receivers of this process, where `active` lacks them
    other_consumers: int = 0  # of other processes, whose locked messages `active` lacks
    lag: float = 0.0  # the maximum age of the counts, in seconds
    dead_lettered: int | None = None
    scheduled: int | None = None
    deferred: int | None = None
    transfer_dead_lettered: int | None = None
    size: int | None = None  # bytes
    created: datetime | None = None
    updated: datetime | None = None
    accessed: datetime | None = None
    version: int = 0  # changes with each update: it is the ETag

    @property
    def requires_session(self) -> bool:
        return self.properties.requires_session


# A namespace refuses by name each property of a new queue that it can't keep, so that no client
# takes it for kept.


def first_lost(asked: QueueProperties, keeps: Collection[str], told: EntityInfo) -> str | None:
    """
    Return the name of the first property that wouldn't be kept; None: all of them are.

    `keeps` are the properties that a queue of the namespace has in any value. Another property may
    have the value that SDKs send by default, or that of `told`: what the namespace tells of such a
    queue is accepted unchanged.
    """
    default, there = QueueProperties(), shown(told)
    for name in attrs.fields_dict(QueueProperties):
        value = getattr(asked, name)
        usual = (getattr(default, name), getattr(there, name), *_SENT_BY_DEFAULT.get(name, ()))
        if name not in keeps and value not in usual:
            return name
    return None


def first_changed(asked: QueueProperties, told: EntityInfo) -> str | None:
    """Return the name of the first property that differs from the one told; None: all are equal."""
    there = shown(told)
    if asked.max_message_size is None:
        there = attrs.evolve(there, max_message_size=None)
    names = attrs.fields_dict(QueueProperties)
    return next((name for name in names if getattr(asked, name) != getattr(there, name)), None)


def shown(info: EntityInfo) -> QueueProperties:
    """The properties as management tells them: with the namespace's size, in whole kilobytes."""
    size = info.properties.max_message_size or info.max_message_size
    whole = None if size is None else size // _KILOBYTE * _KILOBYTE
    return attrs.evolve(info.properties, max_message_size=whole)
