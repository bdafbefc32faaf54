"""Messages travel through AMQP 0-9-1 unchanged, and fields that exist there are set there."""

import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.header import ContentHeader

from gateway.domain.errors import MessageError
from gateway.domain.message import DataBody, Kind, Message, SequenceBody, Typed, ValueBody, symbol
from gateway.wire.amqp.message import decode_message, encode_message, encode_sorted
from gateway.wire.rabbitmq.content import read_content_header, write_content_header, write_entry
from gateway.wire.rabbitmq.properties import (
    BODY,
    COPY,
    REST,
    UNREADABLE,
    USER_ID,
    CopyId,
    copy_in,
    message_as_given,
    prepare,
    read,
    refusal_of_properties,
)
from tests.strategies import messages

A_COPY = CopyId(sent=1_800_000_000_123, tag=7, channel="c0ffee")


def through(message: Message) -> Message:
    outgoing = prepare(message)
    return read(outgoing.header(A_COPY), outgoing.body).message


def properties_of(message: Message) -> dict[str, object]:
    return read_content_header(prepare(message).header(A_COPY))


def said_by(message: Message) -> tuple[bytes, bytes]:
    """All of it with its types; the order of application properties doesn't count."""
    rest = attrs.evolve(message, properties={}, encoded=())
    return encode_message(rest), encode_sorted(message.properties)


@given(messages())
@example(Message(properties={"symbol": symbol("s"), "number": 1, "uint": Typed(Kind.UINT, 1)}))
@example(Message(subject="", message_id="", content_type="x" * 256))
@example(Message(properties={"CC": "orders", "x-death": "mine", "": 1, "n" * 256: 1, COPY: "x"}))
@example(Message(properties={"nan": float("inf"), "many": "x" * 40_000}))
@example(Message(annotations={"x-opt": "y" * 40_000}))
@example(Message(time_to_live=timedelta(days=60)))
@example(Message(time_to_live=timedelta(0)))
@example(Message(creation_time=datetime(2026, 1, 1, tzinfo=UTC)))
@example(Message(creation_time=datetime(1969, 1, 1, tzinfo=UTC)))
def test_every_message_that_amqp_can_say_arrives_as_it_was(message: Message) -> None:
    try:
        expected = decode_message(encode_message(message))
    except MessageError:
        return
    assert said_by(through(message)) == said_by(expected)


@pytest.mark.parametrize("text", ["\ud800", "x" * 300 + "\ud800"], ids=ascii)
@pytest.mark.parametrize(
    "field", ["message_id", "correlation_id", "subject", "reply_to", "content_type", "session_id"]
)
def test_a_text_with_half_a_surrogate_pair_is_refused(field: str, text: str) -> None:
    with pytest.raises(MessageError):
        prepare(Message(**{field: text}))


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_a_message_that_can_not_be_read_is_handed_over_with_its_body(
    header: bytes, body: bytes
) -> None:
    message = read(header, body).message

    assert message.body == body or message == Message(body=body)


@given(messages(), st.data())
def test_a_broken_header_breaks_nothing_else(message: Message, data: st.DataObject) -> None:
    try:
        header = bytearray(prepare(message).header(A_COPY))
    except MessageError:
        return
    at = data.draw(st.integers(12, len(header) - 1))
    header[at] ^= data.draw(st.integers(1, 255))

    read(bytes(header[: data.draw(st.integers(0, len(header)))]), b"body")


def test_a_property_with_a_place_in_amqp_0_9_1_stands_there() -> None:
    message = Message(
        message_id="1",
        correlation_id="c",
        content_type="text/plain",
        content_encoding="gzip",
        reply_to="answers",
        subject="s",
        creation_time=datetime(2026, 1, 1, tzinfo=UTC),
        time_to_live=timedelta(minutes=1),
        priority=4,
        properties={"text": "t", "bytes": b"b", "yes": True, "number": 7, "real": 0.1, "no": None},
        body=b"body",
    )

    assert properties_of(message) == {
        "message_id": "1",
        "correlation_id": "c",
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "reply_to": "answers",
        "type": "s",
        "timestamp": 1_767_225_600,
        "expiration": "60000",
        "priority": 4,
        "delivery_mode": 2,
        "headers": {**message.properties, COPY: str(A_COPY)},
    }
    assert prepare(message).body == b"body"


@pytest.mark.parametrize(
    "message",
    [
        Message(session_id="s"),
        Message(message_id=Typed(Kind.ULONG, 1)),
        Message(annotations={"x-opt-mine": 1}),
        Message(properties={"symbol": symbol("s")}),
    ],
    ids=repr,
)
def test_the_rest_is_one_header_and_the_body_stays_the_body(message: Message) -> None:
    message = attrs.evolve(message, body=b"body")

    assert set(properties_of(message)["headers"]) == {COPY, REST}
    assert prepare(message).body == b"body"


@pytest.mark.parametrize(
    "body", [DataBody((b"1", b"2")), SequenceBody(((1,),)), ValueBody(None)], ids=repr
)
def test_a_body_that_is_not_bytes_is_encoded_and_says_so(body: object) -> None:
    assert properties_of(Message(body=body))["headers"][BODY] is True


@pytest.mark.parametrize("name", ["CC", "BCC", "x-death", "x-delivery-count", COPY, REST, BODY])
def test_no_property_is_taken_for_a_command_to_the_broker(name: str) -> None:
    message = Message(properties={name: "orders"})

    assert properties_of(message)["headers"].get(name) != "orders"
    assert through(message).properties == {name: "orders"}


def test_a_message_of_another_producer_is_read_as_far_as_it_goes() -> None:
    table = b"".join(
        (
            write_entry("color", "blue"),
            b"\x05rawxs" + b"S\x00\x00\x00\x01\xff",
            b"\x04list" + b"A\x00\x00\x00\x03s\x00\x07",
            b"\x04when" + b"T" + (1_767_225_600).to_bytes(8),
            b"\x07decimal" + b"D\x02\x00\x00\x00\x7b",
        )
    )
    header = write_content_header(4, {"user_id": "guest", "app_id": "billing"}, table)

    incoming = read(header, b"body")

    assert incoming.copy is None
    assert incoming.message == Message(
        body=b"body",
        user_id=b"guest",
        annotations={"x-app-id": "billing"},
        properties={
            "color": "blue",
            "rawxs": b"\xff",
            "list": [7],
            "when": datetime(2026, 1, 1, tzinfo=UTC),
            "decimal": "1.23",
        },
    )


def test_a_content_type_that_is_no_symbol_is_an_annotation_and_is_not_sent() -> None:
    written = {"content_type": "text/größe", "content_encoding": "gzip", "app_id": "billing"}

    message = read(write_content_header(0, written, b""), b"").message

    assert message == Message(
        content_encoding="gzip",
        annotations={"x-content-type": "text/größe", "x-app-id": "billing"},
    )
    assert through(message) == message == decode_message(encode_message(message))
    with pytest.raises(MessageError, match="content-type"):
        prepare(Message(content_type="text/größe"))


NAMES = st.sampled_from(["a", "b", "ab", "é"])
# Few names and short texts: many tables have the same size, and of those many the same shape.
TABLES = st.lists(
    st.tuples(NAMES, st.one_of(st.text(alphabet="xyé", max_size=3), st.integers(0, 1))), max_size=4
)


@given(st.lists(TABLES, max_size=20))
def test_a_table_is_read_the_same_whichever_tables_were_read_before(
    tables: list[list[tuple[str, object]]],
) -> None:
    for entries in tables:
        header = write_content_header(0, {}, b"".join(write_entry(*entry) for entry in entries))

        assert read_content_header(header) == {"headers": dict(entries)}


@pytest.mark.parametrize("text", [b"xx", b"\xff\xff", b"yy"])
def test_a_text_that_is_not_utf_8_is_bytes_also_in_a_table_of_a_known_shape(text: bytes) -> None:
    table = b"\x05plainS\x00\x00\x00\x02" + text
    expected = text if text == b"\xff\xff" else text.decode()

    for _ in range(2):
        header = write_content_header(0, {}, table)
        assert read_content_header(header) == {"headers": {"plain": expected}}


def test_a_table_that_is_cut_off_is_so_in_a_known_shape_too() -> None:
    header = write_content_header(0, {}, write_entry("name", "text"))
    read_content_header(header)

    with pytest.raises(MessageError, match="too early"):
        read_content_header(header[:-1])


def test_large_tables_of_ever_new_lengths_leave_no_memory_behind() -> None:
    entries = b"".join(write_entry(f"{number:04}", "") for number in range(2000))
    tracemalloc.start()
    for length in range(20):
        header = write_content_header(0, {}, entries + write_entry("last", "x" * length))
        for _ in range(2):
            read_content_header(header)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert left < 1024 * 1024  # with a shape for each it would be ten times that


def test_a_header_that_the_broker_adds_is_no_property_of_the_message() -> None:
    table = write_entry("x-delivery-count", 2) + write_entry("x-first-death-reason", "expired")
    header = write_content_header(0, {}, table)

    assert read(header, b"").message == Message()
    assert read(header, b"").delivery_count == 2
    assert read(header, b"", is_dead_letter=True).message.properties == {
        "DeadLetterReason": "TTLExpiredException"
    }


def test_an_envelope_is_legible_for_others() -> None:
    envelope = {"x-ms-path": "orders", "x-pairgate-v": "1"}
    said = properties_of(Message(properties=envelope))["headers"]

    assert isinstance(said, dict)
    assert {name: said[name] for name in envelope} == envelope
    assert REST not in said


@pytest.mark.parametrize("durable", [True, False])
def test_durable_needs_no_encoded_rest(durable: bool) -> None:
    message = Message(durable=durable)
    said = properties_of(message)["headers"]

    assert isinstance(said, dict)
    assert REST not in said
    assert through(message).durable is durable


def test_a_copy_is_known_again_by_its_stamp() -> None:
    later = CopyId(sent=A_COPY.sent, tag=8, channel="c0ffee")

    assert copy_in(prepare(Message()).header(A_COPY)) == A_COPY
    assert later.sequence_number == A_COPY.sequence_number + 1 > 0


@pytest.mark.parametrize("stamp", ["", "1", "x-1-a", "1-x-a", "9" * 30 + "-1-a", "1-1-" + "a" * 99])
def test_a_stamp_that_we_did_not_write_is_none(stamp: str) -> None:
    assert copy_in(write_content_header(0, {}, write_entry(COPY, stamp))) is None


def test_a_message_says_why_it_could_not_be_read() -> None:
    broken = write_content_header(0, {}, b"\x01a?")

    assert "unknown type" in read(broken, b"body").message.properties[UNREADABLE]


def long_string(name: str, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return bytes((len(name),)) + name.encode() + b"S" + len(data).to_bytes(4) + data


VALUES = st.sampled_from(["aa", "bb", "é", b"\xff\xfe", "", "x"])
TABLES = st.dictionaries(st.sampled_from(["one", "two", "six", "four"]), VALUES)


@given(st.lists(TABLES, max_size=12))
def test_tables_of_one_shape_are_read_whichever_values_vary(tables: list[dict[str, Any]]) -> None:
    for table in tables:
        entries = b"".join([long_string(name, value) for name, value in table.items()])

        found = read_content_header(write_content_header(0, {"priority": 3}, entries))

        assert found == {"headers": table, "priority": 3}
        assert list(found["headers"]) == list(table)
        found["headers"].clear()  # the next one is its reader's own, too


def test_of_two_values_with_one_name_the_last_counts_in_each_table() -> None:
    for value in ("aa", "bb", "aa"):
        entries = long_string("twice", value) + long_string("twice", "zz")

        assert read_content_header(write_content_header(0, {}, entries)) == {
            "headers": {"twice": "zz"}
        }


GIVEN = ContentHeader(
    body_size=3,
    properties=commands.Basic.Properties(
        content_type="text/plain",
        headers={"retries": [1, None, {"deep": True}], "CC": ["others"]},
        delivery_mode=1,
        priority=3,
        expiration="5000",
        message_id="m",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        user_id="anna",
        app_id="app",
    ),
).marshal()


def test_a_content_header_that_was_given_is_published_as_it_is():
    message = message_as_given(GIVEN, b"abc")
    published = read_content_header(prepare(message).header(CopyId(1, 2, "c")))
    given = read_content_header(GIVEN)

    # The broker takes no other user's id.
    added = {COPY: "1-2-c", USER_ID: given.pop("user_id")}
    assert published == {**given, "headers": {**given["headers"], **added}}


def test_a_content_header_that_was_given_has_the_life_that_is_left():
    message = message_as_given(GIVEN, b"abc")
    assert message.time_to_live == timedelta(seconds=5)

    for left, expiration in ((timedelta(seconds=2), "2000"), (None, None)):
        outgoing = prepare(attrs.evolve(message, time_to_live=left))
        assert outgoing.properties.get("expiration") == expiration


def test_an_empty_content_header_is_published_with_the_id_of_its_copy_alone():
    empty = ContentHeader(body_size=0, properties=commands.Basic.Properties()).marshal()
    published = read_content_header(prepare(message_as_given(empty, b"")).header(CopyId(1, 2, "c")))

    assert published == {"headers": {COPY: "1-2-c"}}


def test_a_malformed_content_header_is_not_taken():
    with pytest.raises(MessageError):
        message_as_given(GIVEN[:-3], b"abc")


def header_with(**properties: Any) -> bytes:
    return ContentHeader(body_size=0, properties=commands.Basic.Properties(**properties)).marshal()


def test_a_publish_that_was_given_goes_with_its_message():
    message = message_as_given(GIVEN, b"abc", b"publish")

    assert prepare(message).publish_method == b"publish"


@pytest.mark.parametrize("expiration", ["soon", "-1", "1.5", "4294967296"])
def test_an_expiration_that_rabbitmq_does_not_take_is_refused(expiration):
    assert "invalid expiration" in refusal_of_properties(header_with(expiration=expiration), "anna")
    assert refusal_of_properties(header_with(expiration="4294967295"), "anna") == ""


def test_a_user_id_of_another_user_is_refused():
    text = "user_id property set to 'otto' but authenticated user was 'anna'"

    assert refusal_of_properties(header_with(user_id="otto"), "anna") == text
    assert refusal_of_properties(header_with(user_id="anna"), "anna") == ""


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_routes_that_are_no_array_are_refused(name):
    assert name in refusal_of_properties(header_with(headers={name: "queue"}), "anna")
    assert refusal_of_properties(header_with(headers={name: ["queue"]}), "anna") == ""


def test_a_header_that_cannot_be_read_is_left_to_who_reads_it():
    assert refusal_of_properties(GIVEN[:-3], "anna") == ""
