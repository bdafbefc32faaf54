"""Messages with every AMQP section, deliveries, and the ways to settle one."""

import enum
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import attrs

from gateway.domain.values import value


class Kind(enum.Enum):
    """
    The AMQP types that no Python type stands for (AMQP 1.0, part 1, section 1.6).

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
    TIMESTAMP = "timestamp"  # value: milliseconds since 1970, outside of what datetime holds
    ARRAY = "array"  # value: a tuple of values, all of one type


@value
class Typed:
    """A value with the AMQP type that it came with."""

    kind: Kind
    value: Any


@attrs.frozen
class Described:
    """A described value: AMQP's way to name a type of one's own."""

    descriptor: Any
    value: Any


def symbol(text: str) -> Typed:
    return Typed(Kind.SYMBOL, text)


# What may stand in a section: see `Kind` for how Python types and AMQP types meet.
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
    One section as it came: its bytes, and what was read from them.

    A codec writes these bytes again as long as the message still says the same, so that
    what nobody changed leaves byte for byte as it came, also where we don't know the meaning.
    """

    code: int
    raw: bytes
    value: Any


@value(kw_only=True)
class Message:
    """
    One message. Never changed: `attrs.evolve` derives another.

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

    encoded: tuple[EncodedSection, ...] = attrs.field(default=(), eq=False, repr=False)
    # What a codec has made of this message: who measures it before it is sent pays once.
    written: tuple[bytes, ...] | None = attrs.field(default=None, init=False, eq=False, repr=False)


class MessageState(enum.Enum):
    """Whether a message can be received, and how."""

    ACTIVE = "Active"
    DEFERRED = "Deferred"  # by its sequence number
    SCHEDULED = "Scheduled"  # later


@value(kw_only=True)
class Delivery:
    """
    A message as a namespace hands it out.

    `delivery_count` counts the deliveries up to and with this one, so it starts at 1.
    `lock_token` is None where nothing is locked (receive and delete, peek). What a namespace
    can't tell is None. `dead_letter_source` names the queue whose dead letter was forwarded here.
    """

    message: Message
    sequence_number: int
    lock_token: str | None = None
    delivery_count: int = 1
    enqueued: datetime | None = None
    enqueued_sequence_number: int | None = None
    locked_until: datetime | None = None
    expires: datetime | None = None
    state: MessageState = MessageState.ACTIVE
    dead_letter_source: str | None = None

    @property
    def handle(self) -> "Delivery":
        """The delivery without its message, which nobody needs to settle it."""
        return Delivery(  # one for each message: `attrs.evolve` takes three times as long
            message=_NO_MESSAGE,
            sequence_number=self.sequence_number,
            lock_token=self.lock_token,
            delivery_count=self.delivery_count,
            enqueued=self.enqueued,
            enqueued_sequence_number=self.enqueued_sequence_number,
            locked_until=self.locked_until,
            expires=self.expires,
            state=self.state,
            dead_letter_source=self.dead_letter_source,
        )


_NO_MESSAGE: Final = Message()


class ReceiveMode(enum.Enum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


@attrs.frozen
class Complete:
    """The message is done: it goes away."""


@attrs.frozen(kw_only=True)
class Abandon:
    """
    Give the message back: it is delivered again at once, and counts as delivered.

    With `delivered=False` nobody has looked at it, which doesn't count where the namespace can
    tell the difference. `properties` are set among the message's own, durably.
    """

    delivered: bool = True
    properties: Properties = NO_PROPERTIES


@attrs.frozen(kw_only=True)
class DeadLetter:
    """
    Move the message to the dead-letter sub-queue, with why (as Service Bus names it).

    `properties` are set among the message's own.
    """

    reason: str
    description: str = ""
    properties: Properties = NO_PROPERTIES


@attrs.frozen(kw_only=True)
class Defer:
    """
    Put the message aside: from now on only its sequence number gets it.

    `properties` are set among the message's own.
    """

    properties: Properties = NO_PROPERTIES


Settlement = Complete | Abandon | DeadLetter | Defer

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"
MAX_REASON_LENGTH: Final = 4096  # characters, of reason and of description


class Leg(enum.Enum):
    """Where an accepted send ended up."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    SPOOL = "spool"
