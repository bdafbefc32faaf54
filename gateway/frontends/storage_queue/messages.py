"""Converts messages between namespaces and the Queue service: ids, receipts, dates, texts."""

import base64
import hmac
import re
import struct
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from gateway.domain.clocks.times import moved
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Delivery,
    Message,
)
from gateway.domain.storage_queue import PopReceipt, TakenMessage
from gateway.wire.pairgate import sealed_tokens
from gateway.wire.servicebus.rest_message import body_bytes
from gateway.wire.storage_queue import operations as storage

# A message without a GUID of its own gets this id with its sequence number, which can be read back.
_NUMBERED: Final = UUID("70616972-6761-8465-8000-000000000000")
_NUMBER: Final = (1 << 56) - 1
_GUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)
_RECEIPT: Final = struct.Struct(">qqI")
_HOLDER: Final = struct.Struct(">I")  # after the receipt, if a gateway of a cluster holds it
_MARK: Final = 16  # bytes of the signature in a receipt
_LONGEST: Final = 4 * (sealed_tokens.LONGEST + _MARK + 2) // 3  # characters of a receipt
_MOST: Final = 2**32 - 1
UNNUMBERED: Final = PopReceipt(0, 0)  # of a put whose sequence number wasn't returned

Marks = Callable[[bytes], Sequence[bytes]]
"""Returns signatures of a text, one by each key of the accounts; the first signs new receipts."""


def numbered_id(sequence: int) -> str:
    """The id of the message with that sequence number."""
    text = f"{_NUMBERED.int | (sequence & _NUMBER):032x}"  # faster than a `UUID`
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def number_of(message_id: str) -> int | None:
    """The sequence number in such an id; None for any other id."""
    if not _GUID.fullmatch(message_id.lower()):
        return None
    value = UUID(message_id).int
    return value & _NUMBER if value & ~_NUMBER == _NUMBERED.int else None


def is_id(text: str) -> bool:
    """True if the text could be a message id."""
    return _GUID.fullmatch(text.lower()) is not None


def id_of(delivery: Delivery) -> str:
    own = delivery.message.message_id
    text = str(own).lower() if isinstance(own, str | UUID) else ""
    return text if _GUID.fullmatch(text) else numbered_id(delivery.sequence_number)


def write_receipt(message_id: str, receipt: PopReceipt | None, marks: Marks) -> str:
    """The receipt as text for clients, signed together with the message's id."""
    receipt = receipt or UNNUMBERED
    if receipt.token:
        return _marked(receipt.token.encode(), message_id, marks)
    packed = _RECEIPT.pack(receipt.sequence, receipt.stamp, min(receipt.deliveries, _MOST))
    if receipt.holder:
        packed += _HOLDER.pack(receipt.holder)
    return _marked(packed, message_id, marks)


def read_receipt(text: str, message_id: str, marks: Marks) -> PopReceipt | None:
    """
    The receipt in the text; None if it is another message's, or not signed by a key of the
    accounts.
    """
    if len(text) > _LONGEST:
        return None
    try:
        whole = base64.b64decode(text, validate=True)
        packed, mark = whole[:-_MARK], whole[-_MARK:]
        receipt = _unpacked(packed)
    except (ValueError, struct.error):
        return None
    fits = [hmac.compare_digest(own[:_MARK], mark) for own in marks(_signed(packed, message_id))]
    return receipt if any(fits) else None


def _marked(packed: bytes, message_id: str, marks: Marks) -> str:
    mark = marks(_signed(packed, message_id))[0][:_MARK]
    return base64.b64encode(packed + mark).decode()


def _unpacked(packed: bytes) -> PopReceipt:
    if len(packed) >= sealed_tokens.SHORTEST:
        return PopReceipt(0, 0, token=packed.decode("ascii"))
    number, stamp, deliveries = _RECEIPT.unpack(packed[: _RECEIPT.size])
    rest = packed[_RECEIPT.size :]
    (holder,) = _HOLDER.unpack(rest) if rest else (0,)
    return PopReceipt(number, stamp, deliveries, holder)


def put_answer(taken: TakenMessage, now: datetime, marks: Marks) -> storage.QueueMessage:
    """The answer to Put Message."""
    delivery, own = taken.delivery, id_of(taken.delivery)
    return storage.QueueMessage(
        message_id=own,
        inserted=_inserted(delivery, now),
        expires=_expires(delivery),
        pop_receipt=write_receipt(own, taken.receipt, marks),
        visible=delivery.locked_until or now,
    )


def get_answer(taken: TakenMessage, now: datetime, marks: Marks) -> storage.QueueMessage:
    delivery, own = taken.delivery, id_of(taken.delivery)
    return storage.QueueMessage(
        message_id=own,
        inserted=_inserted(delivery, now),
        expires=_expires(delivery),
        pop_receipt=write_receipt(own, taken.receipt, marks),
        visible=delivery.locked_until or now,
        dequeues=delivery.delivery_count,
        body=body_bytes(delivery.message, strict=False),
        reason=_property(delivery, DEAD_LETTER_REASON),
        description=_property(delivery, DEAD_LETTER_DESCRIPTION),
    )


def peek_answer(delivery: Delivery, now: datetime) -> storage.QueueMessage:
    return storage.QueueMessage(
        message_id=id_of(delivery),
        inserted=_inserted(delivery, now),
        expires=_expires(delivery),
        dequeues=delivery.delivery_count,
        body=body_bytes(delivery.message, strict=False),
        reason=_property(delivery, DEAD_LETTER_REASON),
        description=_property(delivery, DEAD_LETTER_DESCRIPTION),
    )


def life_of(put: storage.PutMessage, *, from_visible: bool) -> timedelta | None:
    """
    The message's time to live, from now or from when it becomes visible. None: for ever.

    A message that would expire just as it becomes visible lives one second longer.
    """
    if put.time_to_live == storage.NEVER:
        return None
    seconds = put.time_to_live - (put.visibility if from_visible else 0)
    return timedelta(seconds=max(seconds, 1))


def _property(delivery: Delivery, name: str) -> str | None:
    text = delivery.message.properties.get(name)
    return text if isinstance(text, str) else None


def _inserted(delivery: Delivery, now: datetime) -> datetime:
    """
    The date at which the message was put. A scheduled message is enqueued later, so its creator may
    state the date.
    """
    enqueued, made = delivery.enqueued or now, delivery.message.creation_time
    return made if isinstance(made, datetime) and made < enqueued else enqueued


def _expires(delivery: Delivery) -> datetime | None:
    if delivery.expires is not None:
        return delivery.expires
    message: Message = delivery.message
    if message.time_to_live is None or delivery.enqueued is None:
        return None
    if DEAD_LETTER_REASON in message.properties:  # a dead-lettered or moved message doesn't expire
        return None
    return moved(delivery.enqueued, message.time_to_live)


def _signed(receipt: bytes, message_id: str) -> bytes:
    return b"pop receipt\n%b%b" % (receipt, message_id.lower().encode(errors="surrogatepass"))
