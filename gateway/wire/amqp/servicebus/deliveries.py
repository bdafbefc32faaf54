"""
Deliveries of a namespace like Service Bus, as the payload of a transfer: the message, with the
namespace's statements about it in sections that aren't the producer's.

    header                  durable, priority, ttl of the message; first-acquirer, delivery-count
    delivery-annotations    x-opt-lock-token, and the producer's own
    message-annotations     the message's own, and x-opt-sequence-number and so on
    the bare message        byte for byte as received, except for a dead letter's two properties

A namespace that tells when a message expires speaks for its ttl and absolute-expiry-time, too.

A lock token is a UUID, which is also the delivery tag.
"""

import struct
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from gateway.domain.errors import MessageError
from gateway.domain.message import (
    Delivery,
    Kind,
    Message,
    MessageState,
    Properties,
    Typed,
    Value,
    derive_message,
    symbol,
)
from gateway.wire.amqp.decoding import DECODERS
from gateway.wire.amqp.message import BEYOND_HEADER, bare_parts, decode_message
from gateway.wire.amqp.messages.fields import life_in_header, read_annotations
from gateway.wire.amqp.messages.plain import HEADER_START, UNREADABLE, end_of_short, read_plain
from gateway.wire.amqp.messages.sections import HEADER, delivery_annotations_of, split_sections
from gateway.wire.amqp.types import encode, encode_entries, encode_fields, to_milliseconds


def bytes_of(token: str) -> bytes:
    """
    A token's 16 bytes as AMQP's uuid has them: in delivery annotations, and in management.

    Raises:
        MessageError: the token isn't a UUID: it isn't from a namespace like Service Bus.
    """
    try:
        raw = bytes.fromhex(token.replace("-", ""))  # four times as fast as uuid.UUID
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise MessageError(f"lock token: a UUID expected, found {token!r:.60}")
    return raw


def tag_of(token: str) -> bytes:
    """
    The delivery tag for a token: its bytes in .NET's order.

    Raises:
        MessageError: the token isn't a UUID.
    """
    raw = bytes_of(token)
    return raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]


def token_of(tag: bytes) -> str:
    """
    The token for a delivery tag.

    Raises:
        MessageError: the tag has another size.
    """
    if len(tag) != 16:
        raise MessageError(f"delivery tag: the 16 bytes of a UUID expected, found {len(tag)}")
    text = (tag[3::-1] + tag[5:3:-1] + tag[7:5:-1] + tag[8:]).hex()  # half the time of a `UUID`
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_SEQUENCE: Final = "x-opt-sequence-number"
_ENQUEUED: Final = "x-opt-enqueued-time"
_LOCKED_UNTIL: Final = "x-opt-locked-until"
_ENQUEUED_SEQUENCE: Final = "x-opt-enqueue-sequence-number"
_STATE: Final = "x-opt-message-state"
_DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY: Final = "x-opt-partition-key"

# The annotation, a map, in which a stored message keeps its producer's delivery annotations.
# AMQP has them for one hop only (part 3, 3.2.2), and Service Bus passes them on.
PASSED: Final = "x-opt-pairgate-delivery-annotations"
# Annotations that only the namespace sets. A producer's own annotations with these names are not
# delivered.
OURS: Final = frozenset(
    (_SEQUENCE, _ENQUEUED, _LOCKED_UNTIL, _ENQUEUED_SEQUENCE, _STATE, _DEAD_LETTER_SOURCE)
)
_UNSAID: Final = OURS | {PASSED}  # among the message annotations of a delivery
_STATES: Final = (MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED)

_MAX_UINT: Final = 2**32 - 1  # of the type uint, as a header's delivery count is
_KEYS: Final = {name: encode(symbol(name)) for name in (*OURS, _SCHEDULED, _PARTITION_KEY)}
# An active message has none: Go's live test TestSender_SendAMQPMessageWithMultipleByteSlicesInData
# (azservicebus, sender_test.go) compares all annotations of a message that Service Bus delivers.
_STATE_ENTRY: Final[Mapping[MessageState, tuple[bytes, bytes]]] = {
    state: (_KEYS[_STATE], encode(Typed(Kind.INT, number)))
    for number, state in enumerate(_STATES)
    if state is not MessageState.ACTIVE
}
_ANNOTATIONS: Final = b"\x00\x53\x72"
_SHORT_ANNOTATIONS: Final = _ANNOTATIONS + b"\xc1"
_DELIVERY_ANNOTATIONS: Final = b"\x00\x53\x71"
# Integers that aren't encoded in one byte.
_LEAST_LONG: Final = 128
_BEYOND_LONG: Final = 2**63
# The usual annotations up to each of the three numbers of 8 bytes; the map's size and count come
# first.
_SHORT_HEADER: Final = 32  # bytes: a longer one isn't remembered
_LONG, _TIMESTAMP = b"\x81", b"\x83"
_TO_ENQUEUED: Final = _KEYS[_ENQUEUED] + _TIMESTAMP
_TO_LOCKED_UNTIL: Final = _KEYS[_LOCKED_UNTIL] + _TIMESTAMP
_IN_FRONT: Final = _KEYS[_SEQUENCE] + _LONG
_SIZE: Final = 1 + sum(map(len, (_IN_FRONT, _TO_ENQUEUED, _TO_LOCKED_UNTIL))) + 3 * 8
_TO_NUMBER: Final = _ANNOTATIONS + bytes((0xC1, _SIZE, 6)) + _IN_FRONT
_usual = struct.Struct(f">{len(_TO_NUMBER)}sq{len(_TO_ENQUEUED)}sq{len(_TO_LOCKED_UNTIL)}sq")
# The encoding up to the 16 bytes of the token: section, map, its size and count, the key, and the
# type code of a UUID.
_LOCK_TOKEN_NAME: Final = symbol("x-opt-lock-token")
_LOCK_TOKEN_NAMES: Final = (_LOCK_TOKEN_NAME, "x-opt-lock-token")  # as clients write it
_LOCK_TOKEN_KEY: Final = encode(_LOCK_TOKEN_NAME)
_LOCK_TOKEN: Final = (
    b"\x00\x53\x71\xc1" + bytes((1 + len(_LOCK_TOKEN_KEY) + 17, 2)) + _LOCK_TOKEN_KEY + b"\x98"
)


def encode_delivery(delivery: Delivery, *, peeked: bool = False) -> bytes:
    """
    The payload of a transfer.

    AMQP counts the deliveries before this one (part 3, 3.2.1); if a message is only `peeked`, those
    are all of its deliveries.

    Raises:
        MessageError: the lock token isn't a UUID, or AMQP can't express the message.
    """
    message, count = _stamped(delivery), delivery.delivery_count - (0 if peeked else 1)
    # Only the sender's own flag is passed on: "false" is true of each message (part 3, 3.2.1).
    is_first = count == 0 and deliveries_before(message)[1]
    header = _header(message.durable, message.priority, message.time_to_live, count, is_first)
    annotations = _message_annotations(delivery)
    passed = message.annotations.get(PASSED)
    if isinstance(passed, dict) and passed:
        lock = _with_passed_entries(delivery.lock_token, passed)
    elif delivery.lock_token is None:
        return b"".join((header, annotations, *bare_parts(message)))
    else:
        lock = _LOCK_TOKEN + bytes_of(delivery.lock_token)
    return b"".join((header, lock, annotations, *bare_parts(message)))


def _stamped(delivery: Delivery) -> Message:
    """
    The message with the expiry that the namespace tells, and the time to live that led to it. The
    producer's own expiry is only a guess: Service Bus ignores it on input, and its own is
    authoritative on output (its AMQP 1.0 protocol guide, "properties"). creation-time is unused
    there; without one, a life that is too long for the header is counted from the enqueueing.
    """
    message, expires, enqueued = delivery.message, delivery.expires, delivery.enqueued
    if expires is None or enqueued is None:
        return message
    life, made = expires - enqueued, message.creation_time
    return derive_message(
        message,
        time_to_live=life,
        absolute_expiry=expires,
        creation_time=enqueued if made is None and life >= BEYOND_HEADER else made,
    )


def with_passed(message: Message, annotations: dict[Value, Value]) -> Message:
    """The message with these delivery annotations stored in it, except for a lock token."""
    kept = {key: value for key, value in annotations.items() if key not in _LOCK_TOKEN_NAMES}
    if not kept:
        return message
    return derive_message(message, annotations={**message.annotations, PASSED: kept})


def _with_passed_entries(lock_token: str | None, passed: dict[Value, Value]) -> bytes:
    pieces = [] if lock_token is None else [_LOCK_TOKEN_KEY, b"\x98" + bytes_of(lock_token)]
    for key, value in passed.items():
        if key not in _LOCK_TOKEN_NAMES:
            pieces += (encode(key), encode(value))
    return _DELIVERY_ANNOTATIONS + encode_entries(pieces)


def decode_delivery(
    payload: bytes, *, lock_token: str | None = None, peeked: bool = False
) -> Delivery:
    """
    The delivery in that payload. The transfer's tag, or the token in a reply, is the lock token.

    Raises:
        MessageError: the payload isn't a message, or lacks the sequence number.
    """
    message, said = _read_usual(payload) or _read_any(payload)
    sequence = _annotation(said, _SEQUENCE, int)
    if sequence is None:
        raise MessageError(f"message-annotations: {_SEQUENCE} is missing")
    state = _annotation(said, _STATE, int) or 0
    expires = message.absolute_expiry  # the namespace's: see `_stamped`
    if expires is not None:
        message = derive_message(message, absolute_expiry=None)
    return Delivery(
        message=message,
        sequence_number=sequence,
        lock_token=lock_token,
        delivery_count=deliveries_before(message)[0] + (0 if peeked else 1),
        enqueued=_annotation(said, _ENQUEUED, datetime),
        enqueued_sequence_number=_annotation(said, _ENQUEUED_SEQUENCE, int),
        expires=expires if isinstance(expires, datetime) else None,
        locked_until=_annotation(said, _LOCKED_UNTIL, datetime),
        state=_STATES[state] if 0 <= state < len(_STATES) else MessageState.ACTIVE,
        dead_letter_source=_annotation(said, _DEAD_LETTER_SOURCE, str),
    )


def _read_usual(payload: bytes) -> tuple[Message, Properties] | None:
    """
    The message without the namespace's annotations, and these; None: the payload has another form
    than most, as `_read_any` reads it, or is malformed.
    """
    try:
        header_end = at = end_of_short(payload, HEADER_START, 0)
        if payload.startswith(_LOCK_TOKEN, at):
            at += len(_LOCK_TOKEN) + 16
        if not payload.startswith(_SHORT_ANNOTATIONS, at):
            return None
        encoded, end = DECODERS[_SHORT_ANNOTATIONS[-1]](payload, at + len(_SHORT_ANNOTATIONS), 0)
        said = read_annotations(encoded)
    except UNREADABLE:
        return None
    # A header comes first, or it isn't where it belongs.
    if payload.startswith(HEADER_START, end) or not OURS.issuperset(said):
        return None
    message = read_plain(payload[:header_end] + payload[end:])
    return None if message is None else (message, said)


def _read_any(payload: bytes) -> tuple[Message, Properties]:
    """As `_read_usual`, of any payload. Raises as `decode_message`."""
    message = decode_message(payload)
    said = message.annotations
    others = {key: value for key, value in said.items() if key not in OURS}
    message = derive_message(message, annotations=others)
    # Most payloads have no delivery annotation but the lock token.
    passed = {} if _LOCK_TOKEN in payload else delivery_annotations_of(payload)
    return (with_passed(message, passed) if passed else message), said


# Most messages of a queue have the same header. Keys of types other than these never get here.
@lru_cache(maxsize=1024)
def _header(
    durable: bool | None, priority: int | None, ttl: timedelta | None, count: int, is_first: bool
) -> bytes:
    milliseconds = None if ttl is None else life_in_header(ttl)
    return b"\x00\x53\x70" + encode_fields(
        [
            encode(durable),
            encode(None if priority is None else Typed(Kind.UBYTE, priority)),
            encode(None if milliseconds is None else Typed(Kind.UINT, milliseconds)),
            encode(is_first),
            encode(Typed(Kind.UINT, min(count, _MAX_UINT))),
        ]
    )


def _message_annotations(delivery: Delivery) -> bytes:
    usual = _usual_annotations(delivery)
    return _any_annotations(delivery) if usual is None else usual


def _usual_annotations(delivery: Delivery) -> bytes | None:
    """
    The annotations of a locked message that has only the namespace's usual ones, as most have: they
    always have the same size. None for any other message.
    """
    message, number = delivery.message, delivery.sequence_number
    if (
        delivery.locked_until is None
        or delivery.enqueued is None
        or delivery.enqueued_sequence_number is not None
        or not (_LEAST_LONG <= number < _BEYOND_LONG)
        or delivery.state is not MessageState.ACTIVE
        or delivery.dead_letter_source is not None
        or message.scheduled is not None
        or message.partition_key is not None
        or message.annotations
    ):
        return None
    return _usual.pack(
        *(_TO_NUMBER, number),
        *(_TO_ENQUEUED, to_milliseconds(delivery.enqueued)),
        *(_TO_LOCKED_UNTIL, to_milliseconds(delivery.locked_until)),
    )


def _any_annotations(delivery: Delivery) -> bytes:
    message = delivery.message
    pieces = [*_STATE_ENTRY.get(delivery.state, ())]
    pieces += (_KEYS[_SEQUENCE], encode(delivery.sequence_number))
    if delivery.enqueued is not None:
        pieces += (_KEYS[_ENQUEUED], encode(delivery.enqueued))
    if delivery.locked_until is not None:
        pieces += (_KEYS[_LOCKED_UNTIL], encode(delivery.locked_until))
    if delivery.enqueued_sequence_number is not None:
        pieces += (_KEYS[_ENQUEUED_SEQUENCE], encode(delivery.enqueued_sequence_number))
    if delivery.dead_letter_source is not None:
        pieces += (_KEYS[_DEAD_LETTER_SOURCE], encode(delivery.dead_letter_source))
    if message.scheduled is not None:
        pieces += (_KEYS[_SCHEDULED], encode(message.scheduled))
    if message.partition_key is not None:
        pieces += (_KEYS[_PARTITION_KEY], encode(message.partition_key))
    if message.annotations:
        pieces += _own_annotations(message)
    return _ANNOTATIONS + encode_entries(pieces)


def _own_annotations(message: Message) -> list[bytes]:
    """The producer's annotations, each as an encoded key and an encoded value."""
    return [
        encode(each)
        for name, value in message.annotations.items()
        if name not in _UNSAID
        for each in (symbol(name) if isinstance(name, str) else name, value)
    ]


def _annotation(annotations: Properties, name: str, kind: type) -> Any:
    """Return one of the namespace's annotations; None if it is missing, or has another type."""
    value: Value = annotations.get(name)
    if isinstance(value, Typed):
        value = value.value
    return value if isinstance(value, kind) else None


def deliveries_before(message: Message) -> tuple[int, bool]:
    """
    The broker's part of a received message's header (part 3, 3.2.1), which isn't part of the
    message: the number of failed deliveries before, and whether this is certainly the first one.
    """
    for section in message.encoded:
        if section.code == HEADER:
            is_short = len(section.raw) <= _SHORT_HEADER
            return (_deliveries_in_usual if is_short else _deliveries_in)(section.raw)
    return 0, False


def _deliveries_in(header: bytes) -> tuple[int, bool]:
    fields: list[Value] = [*split_sections(header)[0][3], None, None, None, None, None]
    first, count = fields[3], fields[4]
    return (count.value if isinstance(count, Typed) else 0), first is True


# Most messages of a producer have the same header.
_deliveries_in_usual: Final = lru_cache(maxsize=256)(_deliveries_in)
