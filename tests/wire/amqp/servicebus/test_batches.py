"""Producers send one message, or Service Bus's batches of messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import Message, symbol
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.servicebus.batches import BATCH, SINGLE, decode_payload, encode_batch
from gateway.wire.amqp.servicebus.deliveries import PASSED
from tests.strategies import messages

HELLO = b"\0\x53\x75\xa0\x05hello"


@given(messages())
def test_a_message_comes_back(message: Message) -> None:
    assert decode_payload(encode_message(message), SINGLE) == (message,)


@given(st.lists(messages(), min_size=1, max_size=3))
def test_a_batch_comes_back(batch: list[Message]) -> None:
    assert decode_payload(encode_batch(batch), BATCH) == tuple(batch)


def test_a_part_of_a_batch_outside_of_its_messages_is_not_read() -> None:
    properties = b"\0\x53\x73\xc0\x05\x01\xa1\x02m1"
    annotations = b"\0\x53\x72\xc1\x19\x02\xa3\x13x-opt-partition-key\xa1\x01p"

    (message,) = decode_payload(annotations + properties + b"\0\x53\x75\xa0\x0a" + HELLO, BATCH)

    assert message == Message(body=b"hello")


def test_a_body_that_looks_like_a_message_is_a_body() -> None:
    (message,) = decode_payload(b"\0\x53\x75\xa0\x0a" + HELLO, SINGLE)

    assert message.body == HELLO


def test_delivery_annotations_may_stand_last() -> None:
    """As azure-servicebus for Python writes them."""
    annotations = b"\0\x53\x71\xc1\x06\x02\xa3\x01k\x55\x01"

    (message,) = decode_payload(HELLO + annotations, SINGLE)

    assert message.body == b"hello"


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("last", [False, True])
def test_delivery_annotations_are_passed_on_with_a_body_of_any_size(size: int, last: bool) -> None:
    annotations = b"\0\x53\x71\xc1\x06\x02\xa3\x01k\x55\x01"
    body = encode_message(Message(body=bytes(size)))

    (message,) = decode_payload(body + annotations if last else annotations + body, SINGLE)

    assert (message.annotations[PASSED], message.body) == ({symbol("k"): 1}, bytes(size))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(MessageError, match="without messages"):
        decode_payload(b"", BATCH)


def test_a_batch_of_something_else_is_refused() -> None:
    with pytest.raises(MessageError, match="starts no section"):
        decode_payload(b"\0\x53\x75\xa0\x02hi", BATCH)


def test_a_format_that_is_not_known_is_refused() -> None:
    with pytest.raises(MessageError, match="message format 0x1: 0 or 0x80013700 expected"):
        decode_payload(HELLO, 1)
