"""Payloads that producers send: one message, or a batch in Service Bus's own format."""

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.domain.errors import MessageError
from gateway.domain.message import Message
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.messages.sections import DATA, delivery_annotations_of, read_section
from gateway.wire.amqp.servicebus.deliveries import with_passed

SINGLE: Final = 0  # AMQP's own message format (part 2, 2.8.11)
BATCH: Final = 0x80013700  # each data section holds a whole encoded message
# In the properties of an attach's answer: bytes of a batch, as a ulong. A batch has no other limit.
MAX_SIZE: Final = "com.microsoft:max-message-batch-size"


def decode_payload(payload: bytes, message_format: int) -> tuple[Message, ...]:
    """
    The messages of one delivery, in order.

    Only the format identifies a batch: a body may look like an encoded message without being one.

    Raises:
        MessageError: the payload doesn't have the format, the batch is empty, or the format is
            unknown.
    """
    if message_format == SINGLE:
        return (decode_content(payload),)
    if message_format != BATCH:
        raise MessageError(f"message format {message_format:#x}: 0 or {BATCH:#x} expected")
    return tuple(map(decode_content, contents_of(payload)))


def contents_of(payload: bytes) -> Iterator[bytes]:
    """
    The encoded messages of a batch, in order; each section is read when it is asked for.

    The sections of a batch other than data repeat the first message, and aren't used.

    Raises:
        MessageError: the payload isn't a batch, or the batch is empty.
    """
    at, is_empty = 0, True
    while at < len(payload):
        code, value, at = read_section(payload, at)
        if code == DATA:
            is_empty = False
            yield value
    if is_empty:
        raise MessageError("a batch without messages")


def decode_content(payload: bytes) -> Message:
    """
    The message, with the client's delivery annotations, which Service Bus passes on.

    Raises:
        MessageError: it isn't one.
    """
    message = decode_message(payload)
    passed = delivery_annotations_of(payload)
    return with_passed(message, passed) if passed else message


def encode_batch(messages: Sequence[Message]) -> bytes:
    """
    The payload of a batch, to be sent in format `BATCH`.

    Raises:
        MessageError: AMQP can't express one of the messages.
    """
    return batch_of([encode_message(message) for message in messages])


def batch_of(payloads: Sequence[bytes]) -> bytes:
    """As `encode_batch`, from messages that are already encoded."""
    return b"".join(map(_data, payloads))


def _data(content: bytes) -> bytes:
    if len(content) < 256:
        return bytes((0x00, 0x53, DATA, 0xA0, len(content))) + content
    return bytes((0x00, 0x53, DATA, 0xB0)) + len(content).to_bytes(4) + content
