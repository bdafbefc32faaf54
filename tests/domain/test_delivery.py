"""Deliveries and their handles, and the reason of a dead letter."""

from datetime import UTC, datetime

import attrs

from gateway.domain.message import DeadLetter, Delivery, Message, MessageState

DATE = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_handle_is_the_delivery_without_its_message():
    delivery = Delivery(
        message=Message(message_id="1", body=b"x"),
        sequence_number=2,
        lock_token="token",
        delivery_count=3,
        enqueued=DATE,
        enqueued_sequence_number=4,
        locked_until=DATE,
        received=DATE,
        expires=DATE,
        state=MessageState.DEFERRED,
        dead_letter_source="orders",
    )

    said = attrs.asdict(delivery, recurse=False)
    assert None not in said.values()
    assert delivery.handle == attrs.evolve(delivery, message=Message())


def test_a_delivery_is_the_first_unless_its_namespace_says_otherwise():
    assert Delivery(message=Message(), sequence_number=2).delivery_count == 1


def test_a_dead_letter_may_have_a_reason_alone():
    assert DeadLetter(reason="bad").description == ""
