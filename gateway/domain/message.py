"""
Messages with every AMQP section, deliveries, and settlements.

`wire/amqp/message.py` encodes a message; `wire/amqp/deliveries.py` joins the transfer frames in
which it arrives.
"""

import enum
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import attrs

from gateway.domain.values import deriving, value


class Kind(enum.Enum):
    """
    The AMQP types without a Python type of their own (AMQP 1.0, part 1, section 1.6).

    None, bool, int (as long), float (as double), str, bytes, UUID, datetime (as timestamp),
    list and dict (as map) need no kind.
    """

    UBYTE = "ubyte"
    USHORT = "ushort"
    UINT = "uint"
    ULONG = "ulong"
    BYTE = "byte"
    SHORT = "short"
    INT = "int"
    FLOAT = "float"
    DECIMAL32 = "decimal32"  # value: the 4 bytes as they came
    DECIMAL64 = "decimal64"
    DECIMAL128 = "decimal128"
    CHAR = "char"
    SYMBOL = "symbol"
    TIMESTAMP = "timestamp"  # value: milliseconds since 1970, out of datetime's range
    ARRAY = "array"  # value: a tuple of values, all of one type


@value
class Typed:
    """A value with the AMQP type that it came with."""

    kind: Kind
    value: Any


@attrs.frozen
class Described:
    """A described value: AMQP's way to define custom types."""

    descriptor: Any
    value: Any


def symbol(text: str) -> Typed:
    return Typed(Kind.SYMBOL, text)


# A value of a section. `Kind` says which Python types stand for which AMQP types.
Value = Any
Properties = Mapping[str, Value]
NO_PROPERTIES: Final[Properties] = MappingProxyType({})


@attrs.frozen
class DataBody:
    """A body of several data sections. One data section is plain `bytes`."""

    parts: tuple[bytes, ...]


@attrs.frozen
class SequenceBody:
    """A body of amqp-sequence sections."""

    sequences: tuple[tuple[Value, ...], ...]


@attrs.frozen
class ValueBody:
    """A body of one amqp-value section."""

    value: Value


Body = bytes | DataBody | SequenceBody | ValueBody


@value
class EncodedSection:
    """
    A section as received: its bytes, and the value that was read from them.

    A codec writes the same bytes again as long as the value is unchanged, so that an unchanged
    section leaves byte for byte as it arrived, even if its meaning isn't known.
    """

    code: int
    raw: bytes
    value: Any


@value(kw_only=True)
class Message:
    """
    A message, which never changes: `attrs.evolve` derives another.

    The fields are those of AMQP 1.0, part 3, section 3.2, under the names of Service Bus
    where it has one: `session_id` is the group id, `scheduled` the annotation
    x-opt-scheduled-enqueue-time, `partition_key` the annotation x-opt-partition-key,
    `time_to_live` the header's ttl. None means absent.
    """

    message_id: Value = None  # str, UUID, bytes, or Typed ULONG
    body: Body = b""
    properties: Properties = attrs.field(factory=dict)  # the application's

    correlation_id: Value = None
    session_id: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    user_id: bytes | None = None
    absolute_expiry: Value = None
    creation_time: Value = None
    group_sequence: int | None = None

    time_to_live: timedelta | None = None
    durable: bool | None = None
    priority: int | None = None

    scheduled: datetime | None = None
    partition_key: str | None = None
    annotations: Properties = attrs.field(factory=dict)  # the other message annotations
    footer: Properties = attrs.field(factory=dict)
    # The content header of AMQP 0-9-1 with which RabbitMQ is to publish the body, instead of one
    # made of the other fields. Set by the endpoint of RabbitMQ's clients; no other codec has it.
    content_header: bytes | None = None
    # The payload of the method `basic.publish` that sends it, where the entity is an exchange.
    publish_method: bytes | None = None

    encoded: tuple[EncodedSection, ...] = attrs.field(default=(), eq=False, repr=False)
    # The encoded message, so that measuring and sending it encode it only once.
    written: tuple[bytes, ...] | None = attrs.field(default=None, init=False, eq=False, repr=False)


derive_message: Final = deriving(Message)
"""As `attrs.evolve` for messages."""


class MessageState(enum.Enum):
    """Says if a message can be received, and how."""

    ACTIVE = "Active"
    DEFERRED = "Deferred"  # by its sequence number
    SCHEDULED = "Scheduled"  # later


@value(kw_only=True)
class Delivery:
    """
    A message as a namespace delivers it. None: the namespace doesn't report the value.

    `delivery_count` includes this delivery, so it starts at 1. `lock_token` is None without a lock
    (receive and delete, peek). `received` is the date of the delivery, by the same clock as
    `enqueued`. `dead_letter_source` names the queue whose dead letter was forwarded here.
    """

    message: Message
    sequence_number: int
    lock_token: str | None = None
    delivery_count: int = 1
    enqueued: datetime | None = None
    enqueued_sequence_number: int | None = None
    locked_until: datetime | None = None
    expires: datetime | None = None
    received: datetime | None = attrs.field(default=None, eq=False)
    state: MessageState = MessageState.ACTIVE
    dead_letter_source: str | None = None

    @property
    def handle(self) -> "Delivery":
        """The delivery without its message, which isn't needed to settle it."""
        return derive_delivery(self, message=_NO_MESSAGE)


derive_delivery: Final = deriving(Delivery)
"""As `attrs.evolve` for deliveries."""
_NO_MESSAGE: Final = Message()


class ReceiveMode(enum.Enum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


@attrs.frozen
class Complete:
    """Remove the message, because it was processed."""


@attrs.frozen(kw_only=True)
class Abandon:
    """
    Release the message: it is delivered again at once, with a higher delivery count.

    With `delivered=False` the delivery isn't counted, if the namespace supports that. `properties`
    are set among the message's own, durably.
    """

    delivered: bool = True
    properties: Properties = NO_PROPERTIES


@attrs.frozen(kw_only=True)
class DeadLetter:
    """
    Move the message to the dead-letter sub-queue, with reason and description as in Service Bus.

    `properties` are set among the message's own.
    """

    reason: str
    description: str = ""
    properties: Properties = NO_PROPERTIES


@attrs.frozen(kw_only=True)
class Defer:
    """
    Defer the message: from now on it is received by its sequence number only.

    `properties` are set among the message's own.
    """

    properties: Properties = NO_PROPERTIES


Settlement = Complete | Abandon | DeadLetter | Defer

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"
MAX_REASON_LENGTH: Final = 4096  # characters, of reason and of description


def reason_in(message: Message) -> DeadLetter:
    """The reason and description among the properties of a dead letter; empty: it has none."""
    found = (message.properties.get(name) for name in (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION))
    reason, description = (text if isinstance(text, str) else "" for text in found)
    return DeadLetter(reason=reason, description=description)


class AcceptedBy(enum.Enum):
    """The namespace or store that accepted a send."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    SPOOL = "spool"

    # As in `billing.Operation`: looked up for each send.
    __hash__ = object.__hash__
