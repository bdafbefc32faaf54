"""The operations of the Queue service and their answers, as values."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import attrs

# Limits and defaults of the service (learn.microsoft.com, "Queue service REST API").
MAX_MESSAGE: Final = 64 * 1024  # bytes of a message's text
MAX_BODY: Final = 131_584  # bytes of a request: twice a message, and the document around it
MAX_METADATA: Final = 8 * 1024  # characters, names and values
MAX_VISIBILITY: Final = 7 * 24 * 3600  # seconds
MAX_MESSAGES: Final = 32
MAX_QUEUES: Final = 5000
MAX_POLICIES: Final = 5
MAX_CORS_RULES: Final = 5
MAX_CORS_BYTES: Final = 2048  # of all rules
DEFAULT_VISIBILITY: Final = 30  # seconds
DEFAULT_TIME_TO_LIVE: Final = 7 * 24 * 3600  # seconds
NEVER: Final = -1  # the time to live of a message that doesn't expire


@attrs.frozen(kw_only=True)
class StoredPolicy:
    """
    An entry of a queue's access control list, which a SAS may name.

    Times are as they were written: the check of a SAS compares them.
    """

    id: str
    start: str | None = None
    expiry: str | None = None
    permission: str | None = None


@attrs.frozen(kw_only=True)
class RetentionPolicy:
    enabled: bool = False
    days: int | None = None


@attrs.frozen(kw_only=True)
class LoggingProperties:
    version: str = "1.0"
    delete: bool = False
    read: bool = False
    write: bool = False
    retention: RetentionPolicy = attrs.field(factory=RetentionPolicy)


@attrs.frozen(kw_only=True)
class Metrics:
    version: str = "1.0"
    enabled: bool = False
    include_apis: bool | None = None
    retention: RetentionPolicy = attrs.field(factory=RetentionPolicy)


@attrs.frozen(kw_only=True)
class CorsRule:
    """Lists are as in the document: separated by commas."""

    origins: str
    methods: str
    headers: str = ""
    exposed: str = ""
    max_age: int = 0  # seconds


@attrs.frozen(kw_only=True)
class ServiceProperties:
    """The properties of an account. None in a request: the property stays; an answer has all."""

    logging: LoggingProperties | None = None
    hour_metrics: Metrics | None = None
    minute_metrics: Metrics | None = None
    cors: tuple[CorsRule, ...] | None = None

    def over(self, old: "ServiceProperties") -> "ServiceProperties":
        """Return these properties, with the old ones in place of None."""
        names = (field.name for field in attrs.fields(ServiceProperties))
        return ServiceProperties(
            **{
                n: mine if (mine := getattr(self, n)) is not None else getattr(old, n)
                for n in names
            }
        )


DEFAULT_PROPERTIES: Final = ServiceProperties(
    logging=LoggingProperties(), hour_metrics=Metrics(), minute_metrics=Metrics(), cors=()
)


# --- requests


@attrs.frozen(kw_only=True)
class ListQueues:
    prefix: str = ""
    marker: str = ""
    limit: int | None = None
    with_metadata: bool = False


@attrs.frozen(kw_only=True)
class CreateQueue:
    queue: str
    metadata: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class DeleteQueue:
    queue: str


@attrs.frozen(kw_only=True)
class GetMetadata:
    queue: str


@attrs.frozen(kw_only=True)
class SetMetadata:
    queue: str
    metadata: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class GetAcl:
    queue: str


@attrs.frozen(kw_only=True)
class SetAcl:
    queue: str
    policies: tuple[StoredPolicy, ...] = ()


@attrs.frozen(kw_only=True)
class PutMessage:
    """
    `time_to_live` is in seconds, or `NEVER`. `is_raw`: the request has no XML around the body.
    """

    queue: str
    body: bytes
    visibility: int = 0
    time_to_live: int = DEFAULT_TIME_TO_LIVE
    is_raw: bool = False


@attrs.frozen(kw_only=True)
class GetMessages:
    """`visibility` None: the queue's setting, or else `DEFAULT_VISIBILITY`."""

    queue: str
    limit: int = 1
    visibility: int | None = None


@attrs.frozen(kw_only=True)
class PeekMessages:
    queue: str
    limit: int = 1


@attrs.frozen(kw_only=True)
class UpdateMessage:
    """Without a body the message keeps its own."""

    queue: str
    message_id: str
    pop_receipt: str
    visibility: int
    body: bytes | None = None


@attrs.frozen(kw_only=True)
class DeleteMessage:
    queue: str
    message_id: str
    pop_receipt: str


@attrs.frozen(kw_only=True)
class ClearMessages:
    queue: str


@attrs.frozen
class GetServiceProperties:
    """Asks for the properties of the account."""


@attrs.frozen(kw_only=True)
class SetServiceProperties:
    properties: ServiceProperties


@attrs.frozen
class GetStats:
    """Asks the secondary for the progress of its replication."""


@attrs.frozen(kw_only=True)
class GetUserDelegationKey:
    """`start` None: now."""

    start: datetime | None = None
    expiry: datetime


@attrs.frozen(kw_only=True)
class Preflight:
    """A browser's question before it sends a script's request."""

    origin: str
    method: str
    headers: tuple[str, ...] = ()


OfQueue = (
    CreateQueue
    | DeleteQueue
    | GetMetadata
    | SetMetadata
    | GetAcl
    | SetAcl
    | PutMessage
    | GetMessages
    | PeekMessages
    | UpdateMessage
    | DeleteMessage
    | ClearMessages
)
OfAccount = (
    ListQueues
    | GetServiceProperties
    | SetServiceProperties
    | GetStats
    | GetUserDelegationKey
    | Preflight
)
Operation = OfQueue | OfAccount

READS: Final = (
    ListQueues,
    GetMetadata,
    GetAcl,
    PeekMessages,
    GetServiceProperties,
    GetStats,
    GetUserDelegationKey,
)


# --- answers


@attrs.frozen(kw_only=True)
class QueueItem:
    name: str
    metadata: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class QueueList:
    items: tuple[QueueItem, ...] = ()
    next_marker: str = ""


@attrs.frozen
class Created:
    """A queue was created."""


@attrs.frozen
class Existed:
    """A queue existed already, with the same metadata."""


@attrs.frozen
class Done:
    """The operation is done, and has no further answer."""


@attrs.frozen(kw_only=True)
class QueueMetadata:
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    count: int | None = 0  # of messages, about; None: not known


@attrs.frozen
class Acl:
    policies: tuple[StoredPolicy, ...] = ()


@attrs.frozen(kw_only=True)
class QueueMessage:
    """
    A message in an answer. None: the operation doesn't report the field. `expires` None: never.
    `reason` and `description` say why a message was moved here; the service itself moves none.
    """

    message_id: str
    inserted: datetime
    expires: datetime | None = None
    pop_receipt: str | None = None
    visible: datetime | None = None
    dequeues: int | None = None
    body: bytes | None = None
    reason: str | None = None
    description: str | None = None


@attrs.frozen
class Messages:
    items: tuple[QueueMessage, ...] = ()


@attrs.frozen(kw_only=True)
class Updated:
    pop_receipt: str
    visible: datetime


@attrs.frozen(kw_only=True)
class Stats:
    status: str = "live"
    last_sync: datetime


@attrs.frozen(kw_only=True)
class UserDelegationKey:
    """A key to sign shared access signatures by. Dates are as they are signed."""

    object_id: str  # of the identity that got it
    tenant_id: str
    start: str
    expiry: str
    service: str
    version: str
    value: str = attrs.field(default="", repr=False)  # in Base64


@attrs.frozen(kw_only=True)
class Allowed:
    """A browser may send the request: the rule that allows it."""

    origin: str
    rule: CorsRule


Answer = (
    QueueList
    | Created
    | Existed
    | Done
    | QueueMetadata
    | Acl
    | Messages
    | Updated
    | ServiceProperties
    | Stats
    | UserDelegationKey
    | Allowed
)
