"""Encoded messages: section by section, unchanged bytes, and bytes that are no message."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import (
    DataBody,
    Described,
    Kind,
    Message,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from gateway.wire.amqp.message import (
    bare_parts,
    decode_message,
    encode_message,
    encode_sorted,
    encoded_size,
)
from gateway.wire.amqp.types import decode, encode
from tests.strategies import amqp_values, messages

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SOME_UUID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def octets(text: str) -> bytes:
    return bytes.fromhex(text)


def section(code: int, value: Any) -> bytes:
    return encode(Described(Typed(Kind.ULONG, code), value))


BODY = octets("00 53 75 a0 02 68 69")
PROPERTIES = section(0x73, ["id"])
APPLICATION = section(0x74, {"a": 1})
ANNOTATIONS = section(0x72, {symbol("x-opt-sequence-number"): 7, symbol("x-opt-new"): [1.0]})
FOOTER = section(0x78, {symbol("crc"): b"\0"})
DELIVERY = section(0x71, {symbol("x-opt-lock-token"): SOME_UUID})
# With delivery-count and first-acquirer, which a message has no field for.
HEADER = section(
    0x70,
    [True, Typed(Kind.UBYTE, 5), Typed(Kind.UINT, 1000), True, Typed(Kind.UINT, 3)],
)
WHOLE = HEADER + ANNOTATIONS + PROPERTIES + APPLICATION + BODY + FOOTER


def test_a_plain_message_has_these_bytes() -> None:
    message = Message(message_id="id", content_type="text", properties={"k": 1}, body=b"hi")

    assert encode_message(message) == octets(
        "00 53 73 c0 10 07 a1 02 6964 40 40 40 40 40 a3 04 74657874"
        "00 53 74 c1 06 02 a1 01 6b 55 01"
        "00 53 75 a0 02 6869"
    )


def test_a_header_has_these_bytes() -> None:
    message = Message(durable=True, priority=4, time_to_live=timedelta(seconds=90))

    assert encode_message(message) == octets(
        "00 53 70 c0 09 03 41 50 04 70 00 01 5f 90 00 53 75 a0 00"
    )


def test_annotations_of_service_bus_have_these_bytes() -> None:
    message = Message(partition_key="p", scheduled=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))

    assert encode_message(message) == (
        octets("00 53 72 c1 40 04")
        + b"\xa3\x13x-opt-partition-key\xa1\x01p"
        + b"\xa3\x1cx-opt-scheduled-enqueue-time\x83"
        + (1000).to_bytes(8)
        + octets("00 53 75 a0 00")
    )


def test_an_empty_message_is_its_empty_body() -> None:
    assert encode_message(Message()) == octets("00 53 75 a0 00")


def test_every_section_is_read() -> None:
    message = decode_message(WHOLE)

    assert message == Message(
        message_id="id",
        body=b"hi",
        properties={"a": 1},
        annotations={"x-opt-sequence-number": 7, "x-opt-new": [1.0]},
        footer={"crc": b"\0"},
        durable=True,
        priority=5,
        time_to_live=timedelta(seconds=1),
    )


@given(messages())
def test_a_message_comes_back(message: Message) -> None:
    decoded = decode_message(encode_message(message))

    assert decoded == message
    assert repr(decoded) == repr(message)  # tells 1, 1.0 and True apart


@given(messages())
def test_a_read_message_is_written_byte_for_byte(message: Message) -> None:
    encoded = encode_message(message)

    message = decode_message(encoded)

    assert encode_message(message) == encoded
    assert encode_message(attrs.evolve(message)) == encoded  # section by section


@given(messages())
def test_the_bare_message_is_all_but_header_and_annotations(message: Message) -> None:
    encoded = encode_message(message)
    bare = b"".join(bare_parts(decode_message(encoded)))
    plain = attrs.evolve(
        message,
        durable=None,
        priority=None,
        time_to_live=None,
        scheduled=None,
        partition_key=None,
        annotations={},
    )

    assert encoded.endswith(bare)
    assert bare == b"".join(bare_parts(attrs.evolve(decode_message(encoded))))
    if message.time_to_live is None:  # a long one is said by the properties, too
        assert bare == encode_message(plain)


@given(messages())
def test_the_size_is_that_of_the_encoding(message: Message) -> None:
    assert encoded_size(message) == len(encode_message(message))


# Unusual, and legal; all of it has a shorter encoding.
ODD = [
    octets("00 80 0000000000000073 d0 00000008 00000001 a1 02 6964") + BODY,
    section(0x70, []) + section(0x72, {}) + section(0x73, []) + section(0x74, {}) + BODY,
    section(0x73, [None] * 13) + BODY,
    section(0x73, ["id", None, None, None, None, None, "text/plain"]) + BODY,  # no symbol
    section(0x72, {"x-opt-partition-key": 5, "x-opt-scheduled-enqueue-time": "soon"}) + BODY,
    section(0x72, {Typed(Kind.ULONG, 1): 1}) + BODY,
    PROPERTIES,  # no body
    APPLICATION + FOOTER,
    octets("00 53 75 b0 00000002 6869"),
    octets("00 80 0000000000000075 a0 02 6869"),
    b"\x00\xa3\x10amqp:data:binary\xa0\x02hi",
    BODY + BODY,
    octets("00 53 76 d0 00000004 00000000") * 2,
    octets("00 53 77 81 0000000000000001"),
    octets("00 53 74 c1 12 04 a1 01 62 82 7ff8000000000001 a1 01 61 56 01"),  # not a number
]


@pytest.mark.parametrize("encoded", [WHOLE, BODY, *ODD], ids=bytes.hex)
def test_a_part_that_nobody_changed_stays_byte_for_byte(encoded: bytes) -> None:
    message = decode_message(encoded)

    assert encode_message(message) == encoded
    assert encode_message(attrs.evolve(message)) == encoded  # section by section


# rhea/lib/message.js: the sections of maps, the footer among them, are written before the body.
@pytest.mark.parametrize(
    "encoded",
    [
        HEADER + ANNOTATIONS + PROPERTIES + APPLICATION + FOOTER + BODY,
        FOOTER + HEADER + ANNOTATIONS + PROPERTIES + APPLICATION + BODY,
        HEADER + ANNOTATIONS + FOOTER + PROPERTIES + APPLICATION + BODY,
    ],
    ids=["before the body", "first", "in the middle"],
)
def test_a_footer_may_be_anywhere_and_is_written_at_the_end(encoded: bytes) -> None:
    message = decode_message(encoded)

    assert message == decode_message(WHOLE)
    assert encode_message(message) == encode_message(attrs.evolve(message)) == WHOLE


def test_a_footer_may_be_between_parts_of_the_body() -> None:
    message = decode_message(BODY + FOOTER + BODY)

    assert message.footer == {"crc": b"\0"}
    assert encode_message(message) == BODY + BODY + FOOTER


def test_a_change_writes_its_section_only() -> None:
    odd_header = octets("00 80 0000000000000070 c0 02 01 41")
    odd_footer = octets("00 53 78 d1 00000009 00000002 a1 01 6b 55 01")
    message = decode_message(odd_header + PROPERTIES + APPLICATION + BODY + odd_footer)

    changed = attrs.evolve(message, properties={"a": 2})

    assert encode_message(changed) == (
        odd_header + PROPERTIES + section(0x74, {"a": 2}) + BODY + odd_footer
    )


@pytest.mark.parametrize("value", [True, 1.0, Typed(Kind.INT, 1)])
def test_another_type_is_a_change(value: Any) -> None:
    message = decode_message(section(0x74, {"a": 1}) + BODY)

    changed = attrs.evolve(message, properties={"a": value})

    assert encode_message(changed) == section(0x74, {"a": value}) + BODY


def test_a_zero_that_changes_its_sign_is_a_change() -> None:
    message = decode_message(section(0x74, {"a": 0.0}) + BODY)

    changed = attrs.evolve(message, properties={"a": -0.0})

    assert encode_message(changed) == section(0x74, {"a": -0.0}) + BODY


def test_an_equal_value_is_no_change() -> None:
    odd = octets("00 53 74 d1 00000010 00000002 a1 01 61 81 0000000000000001")
    message = decode_message(odd + octets("00 53 75 b0 00000002 6869"))

    same = attrs.evolve(message, properties={"a": 1}, body=b"".join([b"h", b"i"]))

    assert encode_message(same) == odd + octets("00 53 75 b0 00000002 6869")


def test_a_section_without_anything_left_goes_away() -> None:
    message = decode_message(WHOLE)

    bare = attrs.evolve(
        message,
        properties={},
        annotations={},
        footer={},
        message_id=None,
        durable=None,
        priority=None,
        time_to_live=None,
    )

    assert encode_message(bare) == BODY


def test_another_body_replaces_the_bytes_that_came() -> None:
    message = decode_message(octets("00 53 75 b0 00000002 6869"))

    changed = attrs.evolve(message, body=ValueBody(1))

    assert encode_message(changed) == octets("00 53 77 55 01")


@given(messages(), messages())
def test_a_part_that_was_read_has_no_say_in_what_is_written(old: Message, new: Message) -> None:
    read = decode_message(encode_message(old))

    mixed = attrs.evolve(new, encoded=read.encoded)

    assert decode_message(encode_message(mixed)) == new


@pytest.mark.parametrize(
    "encoded",
    [DELIVERY + BODY, BODY + DELIVERY, HEADER + DELIVERY + BODY, BODY + DELIVERY + BODY],
    ids=bytes.hex,
)
def test_delivery_annotations_end_here(encoded: bytes) -> None:
    assert encode_message(decode_message(encoded)) == encoded.replace(DELIVERY, b"")


def test_no_body_section_is_an_empty_body() -> None:
    message = decode_message(PROPERTIES)

    assert message.body == b""
    assert encode_message(attrs.evolve(message, body=b"x")) == PROPERTIES + section(0x75, b"x")


@pytest.mark.parametrize(
    ("encoded", "body"),
    [
        (section(0x75, b""), b""),
        (section(0x75, b"a") + section(0x75, b"b"), DataBody((b"a", b"b"))),
        (section(0x76, [1]) + section(0x76, []), SequenceBody(((1,), ()))),
        (section(0x77, None), ValueBody(None)),
        (section(0x77, b"a"), ValueBody(b"a")),
    ],
)
def test_each_kind_of_body_is_its_own(encoded: bytes, body: Any) -> None:
    assert decode_message(encoded).body == body
    assert encode_message(Message(body=body)) == encoded


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_a_body_of_any_size_comes_back(size: int) -> None:
    message = Message(body=b"x" * size)

    assert decode_message(encode_message(message)) == message


# Time to live


def test_without_a_time_to_live_the_header_has_none() -> None:
    encoded = encode_message(Message(durable=True))

    assert encoded == octets("00 53 70 c0 02 01 41 00 53 75 a0 00")


def test_the_time_to_live_is_cut_off_to_milliseconds() -> None:
    message = Message(time_to_live=timedelta(milliseconds=5, microseconds=999))

    assert decode_message(encode_message(message)).time_to_live == timedelta(milliseconds=5)


def test_the_longest_time_to_live_of_a_header_needs_no_expiry() -> None:
    message = Message(time_to_live=timedelta(milliseconds=2**32 - 1))

    assert encode_message(message) == octets("00 53 70 c0 08 03 40 40 70 ffffffff 00 53 75 a0 00")


def test_a_longer_time_to_live_is_the_time_from_creation_to_expiry() -> None:
    message = Message(time_to_live=timedelta(days=100), creation_time=NOON)

    encoded = encode_message(message)

    fields = [None] * 8 + [NOON + timedelta(days=100), NOON]
    header = [None, None, Typed(Kind.UINT, 2**32 - 1)]
    assert encoded == section(0x70, header) + section(0x73, fields) + section(0x75, b"")


@pytest.mark.parametrize(
    "ttl", [timedelta(milliseconds=2**32), timedelta(days=10_675_199), timedelta.max]
)
def test_any_time_to_live_comes_back_without_a_creation_time(ttl: timedelta) -> None:
    decoded = decode_message(encode_message(Message(time_to_live=ttl)))

    assert decoded.time_to_live == ttl // timedelta(milliseconds=1) * timedelta(milliseconds=1)
    assert decoded.creation_time is None
    assert decoded.absolute_expiry is None


def test_a_message_with_a_long_time_to_live_never_expires_before_it() -> None:
    encoded = encode_message(Message(time_to_live=timedelta(days=100)))

    expiry = decode(encoded[encoded.index(b"\x00\x53\x73") : -5]).value[8]
    assert expiry.year == 9999


def test_the_time_between_creation_and_expiry_counts_more_than_a_full_header() -> None:
    # The legacy .NET client writes the lower 32 bits of its milliseconds here.
    header = section(0x70, [None, None, Typed(Kind.UINT, 50_065_408)])
    properties = section(0x73, [None] * 8 + [NOON + timedelta(days=100), NOON])

    message = decode_message(header + properties + BODY)

    assert message.time_to_live == timedelta(days=100)
    assert encode_message(message) == header + properties + BODY


def test_a_message_that_was_made_long_ago_lives_as_its_header_says() -> None:
    message = Message(
        time_to_live=timedelta(seconds=60),
        creation_time=NOON - timedelta(days=100),
        absolute_expiry=NOON,
    )

    assert decode_message(encode_message(message)) == message


def test_a_long_time_to_live_that_is_taken_away_leaves_no_expiry() -> None:
    message = decode_message(
        encode_message(Message(time_to_live=timedelta(days=100), creation_time=NOON))
    )

    without = encode_message(attrs.evolve(message, time_to_live=None))

    assert decode_message(without) == Message(creation_time=NOON)


def test_an_expiry_of_the_producer_stays() -> None:
    message = Message(
        time_to_live=timedelta(hours=1),
        creation_time=NOON,
        absolute_expiry=NOON + timedelta(hours=1),
    )

    assert decode_message(encode_message(message)) == message


def test_an_expiry_without_a_time_to_live_is_none() -> None:
    message = Message(creation_time=NOON, absolute_expiry=NOON + timedelta(days=100))

    assert decode_message(encode_message(message)) == message


# Bytes that are no message


@pytest.mark.parametrize(
    "encoded",
    [
        BODY + b"\0",
        BODY + b"x",
        BODY + b"\0\x53",
        BODY[:-1],
        BODY + PROPERTIES,
        PROPERTIES + PROPERTIES + BODY,
        PROPERTIES + HEADER + BODY,
        BODY + section(0x77, 1),
        section(0x77, 1) + section(0x77, 1),
        section(0x77, 1) + BODY,
        section(0x76, [1]) + BODY,
        FOOTER + BODY + FOOTER,
        BODY + FOOTER + PROPERTIES,
        DELIVERY + DELIVERY + BODY,
        section(0x79, 1),
        encode(Described(symbol("amqp:open:list"), [])),
        encode(Described("amqp:data:binary", b"")),
        encode(1),
        section(0x70, {}),
        section(0x70, [1]),
        section(0x70, [None, 1]),
        section(0x70, [None, None, 1]),
        section(0x70, [None] * 6),
        section(0x72, []),
        section(0x72, {1: 1}),
        section(0x72, {symbol("a"): 1, "a": 1}),
        section(0x73, {}),
        section(0x73, [None] * 14),
        section(0x73, [1]),
        section(0x73, [None, "user"]),
        section(0x73, [None, None, 1]),
        section(0x73, [None] * 8 + [1]),
        section(0x73, [None] * 11 + [1]),
        section(0x74, {symbol("a"): 1}),
        section(0x75, "text"),
        section(0x76, {}),
    ],
    ids=bytes.hex,
)
def test_an_invalid_message_is_refused(encoded: bytes) -> None:
    with pytest.raises(MessageError):
        decode_message(encoded)


def test_an_error_names_the_section_and_the_byte() -> None:
    with pytest.raises(MessageError, match="application-properties, byte 18: not utf-8"):
        decode_message(PROPERTIES + octets("00 53 74 c1 05 02 a1 01 ff 40"))


def test_an_error_names_the_field() -> None:
    with pytest.raises(MessageError, match="properties: user-id is no binary"):
        decode_message(section(0x73, ["id", "user"]))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message(message_id=1), "properties: message-id"),
        (Message(user_id="x"), "properties: user-id"),  # type: ignore[arg-type]
        (Message(to=b"x"), "properties: to"),  # type: ignore[arg-type]
        (Message(content_type="ü"), "properties: content-type"),
        (Message(creation_time=5), "properties: creation-time"),
        (Message(creation_time=5, time_to_live=timedelta(days=100)), "properties: creation-time"),
        (Message(group_sequence=-1), "properties: group-sequence"),
        (Message(properties={1: 1}), "application-properties"),  # type: ignore[dict-item]
        (Message(properties={"a": object()}), "application-properties"),
        (Message(annotations={"ü": 1}), "message-annotations"),
        (Message(scheduled=datetime(2026, 1, 1)), "message-annotations"),
        (Message(footer={1: 1}), "footer"),  # type: ignore[dict-item]
        (Message(priority=256), "header"),
        (Message(time_to_live=timedelta(seconds=-1)), "header"),
        (Message(body=DataBody(())), "body"),
        (Message(body=SequenceBody(())), "body"),
        (Message(body=ValueBody(2**64)), "body"),
    ],
)
def test_a_value_that_a_message_cannot_say_is_refused(message: Message, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        encode_message(message)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        message = decode_message(data)
    except MessageError:
        return

    assert decode_message(encode_message(message)) == message


@given(messages(), st.data())
def test_spoiled_bytes_are_a_message_or_an_error(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    spoiled = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])

    try:
        read = decode_message(spoiled)
    except MessageError:
        return

    # Nothing that was read is beyond writing, not even from its values alone.
    assert encode_message(attrs.evolve(read, encoded=())) is not None


# The bytes that a MAC is made of


def reversed_maps(value: Any) -> Any:
    match value:
        case dict():
            return {key: reversed_maps(value[key]) for key in reversed(value)}
        case list():
            return [reversed_maps(each) for each in value]
        case Described(descriptor, content):
            return Described(descriptor, reversed_maps(content))
        case Typed(Kind.ARRAY, items):
            return Typed(Kind.ARRAY, tuple(map(reversed_maps, items)))
    return value


@given(amqp_values())
def test_the_order_of_keys_does_not_change_what_is_sorted(value: Any) -> None:
    assert encode_sorted(reversed_maps(value)) == encode_sorted(value)


@given(st.dictionaries(st.text(max_size=5), amqp_values(), max_size=4))
def test_a_trip_does_not_change_the_properties(properties: dict[str, Any]) -> None:
    there = decode_message(encode_message(Message(properties=properties)))

    assert encode_sorted(there.properties) == encode_sorted(properties)


def test_properties_are_a_map_sorted_by_key() -> None:
    assert encode_sorted({"b": 1, "a": True}) == octets("c1 0a 04 a1 01 61 41 a1 01 62 55 01")


def test_properties_of_other_types_have_other_bytes() -> None:
    assert len({encode_sorted({"a": value}) for value in (1, 1.0, True, "1")}) == 4


@given(
    st.dictionaries(
        st.text(max_size=3), st.one_of(st.none(), st.booleans(), st.integers(0, 300), st.text())
    )
)
def test_a_map_is_sorted_the_same_alone_and_in_a_list(flat: dict[str, Any]) -> None:
    assert encode_sorted([flat]).endswith(encode_sorted(flat))


def test_the_keys_of_a_map_need_not_be_strings() -> None:
    assert encode_sorted({symbol("b"): 1, "a": 1, 7: 1}) == octets(
        "c1 0f 06 55 07 55 01 a1 01 61 55 01 a3 01 62 55 01"
    )


@pytest.mark.parametrize("properties", [{1: 1}, {"a": 1, None: 1}])
def test_the_names_of_properties_must_be_strings(properties: Any) -> None:
    with pytest.raises(MessageError):
        encode_message(Message(properties=properties))


def test_an_invalid_value_is_not_sorted() -> None:
    with pytest.raises(MessageError):
        encode_sorted({"a": object()})
