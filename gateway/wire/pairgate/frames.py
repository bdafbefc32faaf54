"""
Messages between Pairgates over HTTP: whole AMQP messages, so that no type is lost.

    Content-Type: application/vnd.pairgate.amqp
    body   = frame *frame               frame = length (4 bytes, big-endian) bytes
    a send      each frame is one encoded AMQP message
    deliveries  two frames each: a JSON object, then the encoded AMQP message
                {"sequenceNumber": 7, "lockToken": "...", "deliveryCount": 1,
                 "enqueued": "ISO 8601", "enqueuedSequenceNumber": 7,
                 "lockedUntil": "ISO 8601", "expires": "ISO 8601",
                 "state": "Deferred", "deadLetterSource": "..."}
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Delivery, Message, MessageState
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.http import strict_json

CONTENT_TYPE: Final = "application/vnd.pairgate.amqp"
MAX_MESSAGES: Final = 4500  # in one body; as many as Service Bus accepts in a batch
_MAX_METADATA: Final = 4096  # bytes: some ten fields, with a session's id and a lock token
_LENGTH: Final = struct.Struct(">I")


def build_messages(messages: Sequence[Message]) -> bytes:
    """
    Build a body of messages.

    Raises:
        InvalidRequest: AMQP can't express a message; the text has its index, from 0.
    """
    return _joined(_encoded(message, index) for index, message in enumerate(messages))


def parse_messages(body: bytes) -> Iterator[Message]:
    """
    Parse a body of messages; each message is parsed when it is asked for.

    Raises:
        InvalidRequest: the body is malformed; the text has the message's index, from 0.
    """
    for index, frame in enumerate(_frames(body, MAX_MESSAGES)):
        yield _message(frame, index)


def build_deliveries(deliveries: Sequence[Delivery]) -> bytes:
    """Build a body of deliveries. Raises as `build_messages`."""
    frames: list[bytes] = []
    for index, delivery in enumerate(deliveries):
        frames += [_metadata(delivery), _encoded(delivery.message, index)]
    return _joined(frames)


def parse_deliveries(body: bytes) -> tuple[Delivery, ...]:
    """
    Parse a body of deliveries.

    Raises:
        InvalidRequest: the body is malformed; the text has the delivery's index, from 0.
    """
    frames = _frames(body, 2 * MAX_MESSAGES)
    if len(frames) % 2:
        raise InvalidRequest("body: two frames for each delivery expected")
    pairs = zip(frames[::2], frames[1::2], strict=True)
    return tuple(
        _delivery(metadata, message, index) for index, (metadata, message) in enumerate(pairs)
    )


def _joined(frames: Iterable[bytes]) -> bytes:
    return b"".join(part for frame in frames for part in (_LENGTH.pack(len(frame)), frame))


def _frames(body: bytes, most: int) -> list[bytes]:
    frames: list[bytes] = []
    at = 0
    while at < len(body):
        start = at + _LENGTH.size
        if start > len(body) or len(frames) == most:
            raise InvalidRequest(f"body: up to {most} whole frames expected")
        at = start + _LENGTH.unpack_from(body, at)[0]
        if at > len(body):
            raise InvalidRequest(f"body: frame {len(frames)} is longer than the body")
        frames.append(body[start:at])
    return frames


def _encoded(message: Message, index: int) -> bytes:
    try:
        return encode_message(message)
    except MessageError as error:
        raise InvalidRequest(f"message {index}: {error}") from error


def _message(frame: bytes, index: int) -> Message:
    try:
        return decode_message(frame)
    except MessageError as error:
        raise InvalidRequest(f"message {index}: {error}") from error


def _metadata(delivery: Delivery) -> bytes:
    fields = {
        "sequenceNumber": delivery.sequence_number,
        "lockToken": delivery.lock_token,
        "deliveryCount": delivery.delivery_count,
        "enqueued": _date_text(delivery.enqueued),
        "enqueuedSequenceNumber": delivery.enqueued_sequence_number,
        "lockedUntil": _date_text(delivery.locked_until),
        "expires": _date_text(delivery.expires),
        "state": None if delivery.state is MessageState.ACTIVE else delivery.state.value,
        "deadLetterSource": delivery.dead_letter_source,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def _delivery(metadata: bytes, message: bytes, index: int) -> Delivery:
    what = f"delivery {index}"
    fields = strict_json.as_object(strict_json.load(metadata, what, max_bytes=_MAX_METADATA), what)
    return Delivery(
        message=_message(message, index),
        sequence_number=_field(fields, "sequenceNumber", int, what),
        lock_token=_optional(fields, "lockToken", str, what),
        delivery_count=_field(fields, "deliveryCount", int, what),
        enqueued=_date(fields, "enqueued", what),
        enqueued_sequence_number=_optional(fields, "enqueuedSequenceNumber", int, what),
        locked_until=_date(fields, "lockedUntil", what),
        expires=_date(fields, "expires", what),
        state=_state(fields, what),
        dead_letter_source=_optional(fields, "deadLetterSource", str, what),
    )


def _state(fields: dict[str, Any], what: str) -> MessageState:
    text = _optional(fields, "state", str, what)
    try:
        return MessageState.ACTIVE if text is None else MessageState(text)
    except ValueError as error:
        raise InvalidRequest(f"{what}: {error}") from error


def _optional(fields: dict[str, Any], name: str, kind: type, what: str) -> Any:
    return _field(fields, name, kind, what) if name in fields else None


def _field(fields: dict[str, Any], name: str, kind: type, what: str) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise InvalidRequest(f"{what}: {name}: {kind.__name__} expected, got {value!r:.60}")
    return value


def _date_text(date: datetime | None) -> str | None:
    return None if date is None else date.isoformat()


def _date(fields: dict[str, Any], name: str, what: str) -> datetime | None:
    text = _optional(fields, name, str, what)
    if text is None:
        return None
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f"{what}: {name}: {error}") from error
    if date.tzinfo is None:
        raise InvalidRequest(f"{what}: {name}: a date with its offset expected")
    return date
