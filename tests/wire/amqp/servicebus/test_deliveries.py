"""Deliveries as payloads of transfers, both ways."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Delivery,
    Kind,
    Message,
    MessageState,
    Typed,
    symbol,
)
from gateway.wire.amqp.message import bare_parts, decode_message, encode_message
from gateway.wire.amqp.messages.sections import split_sections
from gateway.wire.amqp.servicebus.batches import decode_payload
from gateway.wire.amqp.servicebus.deliveries import (
    OURS,
    PASSED,
    decode_delivery,
    encode_delivery,
)
from gateway.wire.amqp.types import decode_at, encode
from tests.strategies import messages, moments

TOKEN = "00112233-4455-6677-8899-aabbccddeeff"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NUMBERS = st.integers(0, 2**63 - 1)

HEADER, ANNOTATIONS = 0x70, 0x72


def sections(payload: bytes) -> dict[int, Any]:
    return {code: value for code, _, _, value in split_sections(payload)}


def annotations(payload: bytes) -> dict[str, Any]:
    return {key.value: value for key, value in sections(payload)[ANNOTATIONS].items()}


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    # The message of a delivery has come in as bytes.
    message = decode_message(encode_message(draw(messages())))
    own = {name: value for name, value in message.annotations.items() if name not in OURS}
    return Delivery(
        # The expiry of a delivery is the namespace's.
        message=attrs.evolve(message, annotations=own, absolute_expiry=None),
        sequence_number=draw(NUMBERS),
        lock_token=str(draw(st.uuids())) if draw(st.booleans()) else None,
        delivery_count=draw(st.integers(1, 2**32 - 1)),
        enqueued=draw(st.none() | moments()),
        enqueued_sequence_number=draw(st.none() | NUMBERS),
        locked_until=draw(st.none() | moments()),
        state=draw(st.sampled_from(MessageState)),
        dead_letter_source=draw(st.none() | st.text(max_size=20)),
    )


@given(deliveries())
def test_a_delivery_comes_back(delivery: Delivery) -> None:
    payload = encode_delivery(delivery)

    assert decode_delivery(payload, lock_token=delivery.lock_token) == delivery


def outcome_of(payload: bytes) -> tuple[Delivery, bytes] | None:
    """The delivery and its payload when it is passed on; None: it can't be read."""
    try:
        delivery = decode_delivery(payload, lock_token=TOKEN)
    except MessageError:
        return None
    return delivery, encode_delivery(delivery)


@given(deliveries(), st.data())
def test_a_delivery_that_is_read_fast_is_read_as_by_sections(
    delivery: Delivery, data: st.DataObject
) -> None:
    payload = bytearray(encode_delivery(delivery))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(3, min(len(payload), 300) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    rest = bytes(payload[3 : data.draw(st.none() | st.integers(3, len(payload)))])

    # The descriptor of the header in eight bytes: no fast way knows it.
    slow = outcome_of(b"\x00\x80" + (0x70).to_bytes(8) + rest)

    assert outcome_of(b"\x00\x53\x70" + rest) == slow


def test_a_header_behind_the_annotations_is_refused_in_the_fast_way_too() -> None:
    payload = encode_delivery(Delivery(message=Message(body=b"x"), sequence_number=1))
    [(_, start, end, _), *_, (_, body, _, _)] = split_sections(payload)
    late = payload[end:body] + payload[start:end] + payload[body:]

    with pytest.raises(MessageError, match="header after message-annotations"):
        decode_delivery(late)


@given(deliveries())
def test_a_peeked_message_comes_back(delivery: Delivery) -> None:
    payload = encode_delivery(delivery, peeked=True)

    assert decode_delivery(payload, lock_token=delivery.lock_token, peeked=True) == delivery


@given(deliveries())
def test_the_bare_message_leaves_as_it_came(delivery: Delivery) -> None:
    payload = encode_delivery(delivery)

    assert payload.endswith(b"".join(bare_parts(delivery.message)))


def test_byte_by_byte() -> None:
    delivery = Delivery(
        message=decode_message(b"\0\x53\x70\xc0\x02\x01\x41" + b"\0\x53\x75\xa0\x02hi"),
        sequence_number=7,
        lock_token=TOKEN,
    )

    assert encode_delivery(delivery) == b"".join(
        (
            b"\0\x53\x70\xc0\x06\x05\x41\x40\x40\x42\x43",
            b"\0\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98",
            bytes.fromhex("00112233445566778899aabbccddeeff"),
            b"\0\x53\x72\xc1\x1a\x02\xa3\x15x-opt-sequence-number\x55\7",
            b"\0\x53\x75\xa0\x02hi",
        )
    )


def test_a_plain_message_has_the_annotations_that_service_bus_gives_it() -> None:
    """
    azservicebus, sender_test.go, TestSender_SendAMQPMessageWithMultipleByteSlicesInData: a live
    test that compares both maps as a whole. Neither a state nor a first number is among them.
    """
    delivery = Delivery(
        message=Message(annotations={"x-opt-message-annotation-test": "test-value"}),
        sequence_number=1,
        lock_token=TOKEN,
        enqueued=NOON,
        locked_until=NOON + timedelta(seconds=60),
    )

    assert annotations(encode_delivery(delivery)).keys() == {
        "x-opt-message-annotation-test",
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-locked-until",
    }


@given(NUMBERS, moments(), moments())
def test_the_usual_annotations_are_encoded_as_any_others(
    number: int, enqueued: datetime, until: datetime
) -> None:
    delivery = Delivery(
        message=Message(),
        sequence_number=number,
        enqueued=enqueued,
        locked_until=until,
    )
    expected = {
        symbol("x-opt-sequence-number"): number,
        symbol("x-opt-enqueued-time"): enqueued,
        symbol("x-opt-locked-until"): until,
    }

    payload = encode_delivery(delivery)

    [(start, end)] = [each[1:3] for each in split_sections(payload) if each[0] == ANNOTATIONS]
    assert payload[start:end] == b"\0\x53\x72" + encode(expected)


def test_properties_of_the_namespace_alone_are_written_and_read() -> None:
    delivery = Delivery(
        message=Message(annotations={"x-opt-mine": 1}, partition_key="p", scheduled=NOON),
        sequence_number=2**40,
        lock_token=TOKEN,
        enqueued=NOON,
        enqueued_sequence_number=3,
        locked_until=NOON + timedelta(seconds=60),
        state=MessageState.DEFERRED,
        dead_letter_source="q1",
    )

    assert annotations(encode_delivery(delivery)) == {
        "x-opt-sequence-number": 2**40,
        "x-opt-enqueued-time": NOON,
        "x-opt-enqueue-sequence-number": 3,
        "x-opt-locked-until": NOON + timedelta(seconds=60),
        "x-opt-message-state": Typed(Kind.INT, 1),
        "x-opt-deadletter-source": "q1",
        "x-opt-partition-key": "p",
        "x-opt-scheduled-enqueue-time": NOON,
        "x-opt-mine": 1,
    }


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_producer_does_not_speak_for_the_namespace(name: str) -> None:
    lie = Message(annotations={name: "a lie"})

    payload = encode_delivery(Delivery(message=lie, sequence_number=1))

    assert annotations(payload) == {"x-opt-sequence-number": 1}


def test_an_annotation_named_by_a_number_stays() -> None:
    key = Typed(Kind.ULONG, 5)
    delivery = Delivery(message=Message(annotations={key: "v"}), sequence_number=1)

    assert sections(encode_delivery(delivery))[ANNOTATIONS][key] == "v"


# azservicebus, TestSender_SendAMQPMessageWithMultipleByteSlicesInData: "These flags are just passed
# through". go-amqp omits a false flag, and expects none. A second delivery is never the first.
@pytest.mark.parametrize("sent", [True, False, None])
@pytest.mark.parametrize(
    ("count", "peeked", "said"), [(1, False, 0), (3, False, 2), (0, True, 0), (3, True, 3)]
)
def test_the_header_counts_the_deliveries_before(
    count: int, peeked: bool, said: int, sent: bool | None
) -> None:
    header = b"\0\x53\x70" + encode([None, None, None, sent])
    message = decode_message(header + encode_message(Message()))
    delivery = Delivery(message=message, sequence_number=1, delivery_count=count)

    told = sections(encode_delivery(delivery, peeked=peeked))[HEADER]

    assert told[3:] == [sent is True and said == 0, Typed(Kind.UINT, said)]


def test_the_time_to_live_is_cut_off_where_the_header_ends() -> None:
    message = Message(time_to_live=timedelta(days=100))

    header = sections(encode_delivery(Delivery(message=message, sequence_number=1)))[HEADER]

    assert header[2] == Typed(Kind.UINT, 2**32 - 1)


# "absolute-expiry-time: Ignored on input (header TTL is observed), authoritative on output.
# creation-time: Not used by Service Bus" (AMQP 1.0 in Azure Service Bus and Event Hubs protocol
# guide, "properties"); "expires-at-utc takes on the value enqueued-time-utc + time-to-live"
# (Message expiration).
def test_the_namespaces_expiry_replaces_the_producers_guess() -> None:
    guess = Message(
        time_to_live=timedelta(seconds=100),
        creation_time=NOON - timedelta(hours=2),
        absolute_expiry=NOON - timedelta(hours=1),
    )
    delivery = Delivery(
        message=decode_message(encode_message(guess)),
        sequence_number=1,
        enqueued=NOON,
        expires=NOON + timedelta(seconds=60),
    )

    said = sections(encode_delivery(delivery))

    assert said[HEADER][2] == Typed(Kind.UINT, 60_000)
    assert said[0x73][8:10] == [NOON + timedelta(seconds=60), NOON - timedelta(hours=2)]


# ServiceBusReceivedMessage.TimeToLive of .NET is the difference of both dates, if both are there.
def test_a_long_life_is_counted_from_the_enqueueing() -> None:
    delivery = Delivery(
        message=Message(), sequence_number=1, enqueued=NOON, expires=NOON + timedelta(days=100)
    )

    said = sections(encode_delivery(delivery))

    assert said[HEADER][2] == Typed(Kind.UINT, 2**32 - 1)
    assert said[0x73][8:10] == [NOON + timedelta(days=100), NOON]


def test_a_namespace_that_tells_no_expiry_leaves_the_producers() -> None:
    message = Message(time_to_live=timedelta(seconds=9), absolute_expiry=NOON)

    said = sections(encode_delivery(Delivery(message=message, sequence_number=1, enqueued=NOON)))

    assert (said[HEADER][2], said[0x73][8]) == (Typed(Kind.UINT, 9000), NOON)


def test_a_dead_letter_says_why_among_its_properties() -> None:
    stored = decode_message(encode_message(Message(properties={"n": 1}, subject="s", body=b"b")))
    why = {DEAD_LETTER_REASON: "r", DEAD_LETTER_DESCRIPTION: "d"}
    dead = attrs.evolve(stored, properties={**stored.properties, **why})

    said = sections(encode_delivery(Delivery(message=dead, sequence_number=1)))

    assert said[0x74] == {"n": 1, **why}
    assert said[0x75] == b"b"


def test_the_lock_token_stands_among_the_delivery_annotations() -> None:
    payload = encode_delivery(Delivery(message=Message(), sequence_number=1, lock_token=TOKEN))

    at = payload.index(b"\0\x53\x71") + 3
    assert decode_at(payload, at)[0] == {symbol("x-opt-lock-token"): UUID(TOKEN)}


@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_producers_delivery_annotations_are_passed_on(token: str | None) -> None:
    own = {symbol("a"): 1, "b": [symbol("c")]}
    (message,) = decode_payload(encode_message(Message(body=b"x")) + b"\0\x53\x71" + encode(own), 0)
    stored = decode_message(encode_message(message))
    payload = encode_delivery(Delivery(message=stored, sequence_number=1, lock_token=token))
    at = payload.index(b"\0\x53\x71") + 3
    lock = {} if token is None else {symbol("x-opt-lock-token"): UUID(token)}

    assert decode_at(payload, at)[0] == {**lock, **own}
    assert PASSED not in annotations(payload)
    assert decode_delivery(payload, lock_token=token).message == stored
    assert decode_message(payload).body == b"x"


def test_a_producer_never_says_a_lock_token() -> None:
    forged = {symbol("x-opt-lock-token"): UUID(int=1), "x-opt-lock-token": UUID(int=2)}
    data = encode_message(Message(annotations={PASSED: forged})) + b"\0\x53\x71" + encode(forged)
    (message,) = decode_payload(data, 0)
    payload = encode_delivery(Delivery(message=message, sequence_number=1, lock_token=TOKEN))

    at = payload.index(b"\0\x53\x71") + 3
    assert decode_at(payload, at)[0] == {symbol("x-opt-lock-token"): UUID(TOKEN)}


@pytest.mark.parametrize("passed", [5, [1], {}, "x"], ids=repr)
def test_an_annotation_of_that_name_that_is_no_map_is_not_said(passed: object) -> None:
    message = Message(annotations={PASSED: passed})
    payload = encode_delivery(Delivery(message=message, sequence_number=1))

    assert b"\0\x53\x71" not in payload
    assert PASSED not in annotations(payload)


def test_a_token_that_is_no_uuid_is_refused() -> None:
    delivery = Delivery(message=Message(), sequence_number=1, lock_token="mine")

    with pytest.raises(MessageError, match="lock token: a UUID expected, found 'mine'"):
        encode_delivery(delivery)


def test_a_delivery_without_a_sequence_number_is_none() -> None:
    with pytest.raises(MessageError, match="x-opt-sequence-number is missing"):
        decode_delivery(encode_message(Message(body=b"hi")))


def test_a_state_that_is_not_known_is_active() -> None:
    said = {"x-opt-sequence-number": 1, "x-opt-message-state": Typed(Kind.INT, 9)}

    delivery = decode_delivery(encode_message(Message(annotations=said)))

    assert delivery.state is MessageState.ACTIVE
