"""Messages between the namespaces and the Queue service: ids, receipts, dates, texts."""

import base64
import hashlib
import json
import re
import struct
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Body,
    DataBody,
    Delivery,
    Message,
    ValueBody,
)
from gateway.domain.visibility import Shown, Ticket
from gateway.wire import storage_queue_operations as storage

# A message that has no GUID of its own is told by its number, which can be read back.
_NUMBERED: Final = UUID("70616972-6761-8465-8000-000000000000")
_NUMBER: Final = (1 << 56) - 1
_GUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)
_RECEIPT: Final = struct.Struct(">qqI8s")
_MOST: Final = 2**32 - 1
UNNUMBERED: Final = Ticket(0, 0)  # of who has put the message, where nobody told its number


def numbered_id(sequence: int) -> str:
    """The id of the message with that number."""
    text = f"{_NUMBERED.int | (sequence & _NUMBER):032x}"  # quicker than a `UUID`
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def number_of(message_id: str) -> int | None:
    """The number in such an id; None where it's another one."""
    if not _GUID.fullmatch(message_id.lower()):
        return None
    value = UUID(message_id).int
    return value & _NUMBER if value & ~_NUMBER == _NUMBERED.int else None


def is_id(text: str) -> bool:
    """Whether a message could have that id."""
    return _GUID.fullmatch(text.lower()) is not None


def id_of(delivery: Delivery) -> str:
    own = delivery.message.message_id
    text = str(own).lower() if isinstance(own, str | UUID) else ""
    return text if _GUID.fullmatch(text) else numbered_id(delivery.sequence_number)


def write_receipt(message_id: str, ticket: Ticket | None) -> str:
    """A pop receipt: the ticket, and of which message it is."""
    ticket = ticket or UNNUMBERED
    packed = _RECEIPT.pack(
        ticket.sequence, ticket.stamp, min(ticket.deliveries, _MOST), _mark(message_id)
    )
    return base64.b64encode(packed).decode()


def read_receipt(text: str, message_id: str) -> Ticket | None:
    """The ticket in a receipt of that message; None: there is none, or it's of another one."""
    try:
        number, stamp, deliveries, mark = _RECEIPT.unpack(base64.b64decode(text, validate=True))
    except (ValueError, struct.error):
        return None
    return Ticket(number, stamp, deliveries) if mark == _mark(message_id) else None


def put_answer(shown: Shown, now: datetime) -> storage.QueueMessage:
    """What who puts a message is told."""
    delivery, own = shown.delivery, id_of(shown.delivery)
    return storage.QueueMessage(
        message_id=own,
        inserted=_inserted(delivery, now),
        expires=_expires(delivery),
        pop_receipt=write_receipt(own, shown.ticket),
        visible=delivery.locked_until or now,
    )


def get_answer(shown: Shown, now: datetime) -> storage.QueueMessage:
    delivery, own = shown.delivery, id_of(shown.delivery)
    return storage.QueueMessage(
        message_id=own,
        inserted=_inserted(delivery, now),
        expires=_expires(delivery),
        pop_receipt=write_receipt(own, shown.ticket),
        visible=delivery.locked_until or now,
        dequeues=delivery.delivery_count,
        body=body_of(delivery.message.body),
        reason=_said(delivery, DEAD_LETTER_REASON),
        description=_said(delivery, DEAD_LETTER_DESCRIPTION),
    )


def peek_answer(delivery: Delivery, now: datetime) -> storage.QueueMessage:
    return storage.QueueMessage(
        message_id=id_of(delivery),
        inserted=_inserted(delivery, now),
        expires=_expires(delivery),
        dequeues=delivery.delivery_count,
        body=body_of(delivery.message.body),
        reason=_said(delivery, DEAD_LETTER_REASON),
        description=_said(delivery, DEAD_LETTER_DESCRIPTION),
    )


def life_of(put: storage.PutMessage, *, from_visible: bool) -> timedelta | None:
    """
    For how long the message lives: from now on, or from when it's visible. None: for ever.

    One that expires in the moment when it is visible lives a second then.
    """
    if put.time_to_live == storage.NEVER:
        return None
    seconds = put.time_to_live - (put.visibility if from_visible else 0)
    return timedelta(seconds=max(seconds, 1))


def body_of(body: Body) -> bytes:
    """The body as one text, also where it has AMQP's other forms."""
    match body:
        case bytes():
            return body
        case DataBody(parts=parts):
            return b"".join(parts)
        case ValueBody(value=bytes() as value):
            return value
        case ValueBody(value=str() as value):
            return value.encode()
        case ValueBody(value=value):
            return json.dumps(value, default=str).encode()
    return json.dumps(body.sequences, default=str).encode()


def _said(delivery: Delivery, name: str) -> str | None:
    text = delivery.message.properties.get(name)
    return text if isinstance(text, str) else None


def _inserted(delivery: Delivery, now: datetime) -> datetime:
    """A message that was scheduled is enqueued late; whoever made it may say when that was."""
    enqueued, made = delivery.enqueued or now, delivery.message.creation_time
    return made if isinstance(made, datetime) and made < enqueued else enqueued


def _expires(delivery: Delivery) -> datetime | None:
    if delivery.expires is not None:
        return delivery.expires
    message: Message = delivery.message
    if message.time_to_live is None or delivery.enqueued is None:
        return None
    if DEAD_LETTER_REASON in message.properties:  # what was moved for a reason stays
        return None
    try:
        return delivery.enqueued + message.time_to_live
    except OverflowError:
        return None


def _mark(message_id: str) -> bytes:
    return hashlib.sha256(message_id.lower().encode()).digest()[:8]
