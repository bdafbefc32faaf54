"""Names of entities, and what is known of them."""

import enum
import re
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import validators

from gateway.domain.errors import InvalidRequest

MAX_PATH_LENGTH: Final = 260
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._$-]+", re.ASCII)
_DEAD_LETTER: Final = re.compile(r"^(?P<parent>.+)/\$deadletterqueue$", re.IGNORECASE)


@attrs.frozen(order=False)
class EntityPath:
    """
    The path of a queue, topic or sub-queue: case is kept and ignored, as Service Bus does.

    Two paths that differ in case only are equal. `name` is what a user typed; `key` is what
    stores and look-ups use.
    """

    name: str = attrs.field(eq=False)
    key: str = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "key", self.name.lower())

    @classmethod
    def parse(cls, text: str) -> "EntityPath":
        """
        Check a name that came from outside.

        Raises:
            InvalidRequest: the text names what is wrong and the limit.
        """
        if not text or len(text) > MAX_PATH_LENGTH:
            raise InvalidRequest(
                f"entity name: 1 to {MAX_PATH_LENGTH} characters expected, got {len(text)}"
            )
        for segment in text.split("/"):
            if not _SEGMENT.fullmatch(segment) or segment in {".", ".."}:
                raise InvalidRequest(
                    f"entity name {text!r}: segments of letters, digits, '.', '-', '_' expected,"
                    " separated by single '/'"
                )
        return cls(text)

    @property
    def dead_letter(self) -> "EntityPath":
        """The path of this entity's dead-letter sub-queue."""
        return EntityPath(f"{self.name}/$DeadLetterQueue")

    @property
    def is_dead_letter(self) -> bool:
        return _DEAD_LETTER.match(self.name) is not None

    @property
    def parent(self) -> "EntityPath":
        """The entity that owns this sub-queue; an entity that is none is its own parent."""
        match = _DEAD_LETTER.match(self.name)
        return EntityPath(match["parent"]) if match else self

    def __str__(self) -> str:
        return self.name


class EntityStatus(enum.Enum):
    """Service Bus's words for what an entity lets pass."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


@attrs.frozen(kw_only=True)
class QueueProperties:
    """What a queue was created with. None means: no limit of its own, or off."""

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


@attrs.frozen(kw_only=True)
class EntityInfo:
    """
    What a namespace tells of one queue. None: this namespace can't tell.

    The counts may lag behind; `requires_session` and `max_message_size` decide whether
    a send can be taken at all.
    """

    path: EntityPath
    properties: QueueProperties = attrs.field(factory=QueueProperties)
    max_message_size: int | None = None  # bytes, encoded
    active: int | None = None
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
