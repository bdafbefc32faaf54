"""Payloads that producers send: one message, or a batch in Service Bus's own format."""

from collections.abc import Sequence
from typing import Final

from gateway.domain.errors import MessageError, MessageTooLarge
from gateway.domain.message import Message
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.messages.sections import DATA, delivery_annotations_of, split_sections
from gateway.wire.amqp.servicebus.deliveries import with_passed

SINGLE: Final = 0
BATCH: Final = 0x80013700  # each data section holds a whole encoded message
MAX_MESSAGES: Final = 4500  # in one batch, as in Service Bus: a megabyte has room for 100,000


def decode_payload(payload: bytes, message_format: int) -> tuple[Message, ...]:
    """
    The messages of one delivery, in order.

    Only the format identifies a batch: a body may look like an encoded message without being one.
    The sections of a batch other than data repeat the first message, and aren't read.

    Raises:
        MessageError: the payload doesn't have the format, the batch is empty, or the format is
            unknown.
        MessageTooLarge: the batch has too many messages.
    """
    if message_format == SINGLE:
        return (_decoded(payload),)
    if message_format != BATCH:
        raise MessageError(f"message format {message_format:#x}: 0 or {BATCH:#x} expected")
    contents = [value for code, _, _, value in split_sections(payload) if code == DATA]
    if not contents:
        raise MessageError("a batch without messages")
    if len(contents) > MAX_MESSAGES:
        raise MessageTooLarge(
            f"batch: at most {MAX_MESSAGES} messages expected, got {len(contents)}"
        )
    return tuple(map(_decoded, contents))


def _decoded(payload: bytes) -> Message:
    """The message, with the client's delivery annotations, which Service Bus passes on."""
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
