"""The fast way of plain messages gives what the way by sections gives."""

from collections.abc import Callable

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import Message
from gateway.wire.amqp.message import decode_by_sections, encode_message, write_by_sections
from gateway.wire.amqp.messages.plain import read_plain, write_plain
from tests.strategies import messages

TEXTS = st.none() | st.text(max_size=6) | st.just("ü" * 200)
BODIES = st.binary(max_size=5) | st.sampled_from([b"x" * 255, b"x" * 256, b"x" * 70_000])
PROPERTIES = st.dictionaries(
    st.text(max_size=4), st.integers(-5, 300) | st.text(max_size=3), max_size=3
)
PLAIN = st.builds(
    Message,
    message_id=TEXTS,
    to=TEXTS,
    subject=TEXTS,
    reply_to=TEXTS,
    correlation_id=TEXTS,
    content_type=st.none() | st.sampled_from(["text/plain", "a/" * 150]),
    content_encoding=st.none() | st.just("gzip"),
    session_id=TEXTS,
    reply_to_session_id=TEXTS,
    properties=PROPERTIES,
    body=BODIES,
)
HEADERS = st.builds(
    attrs.evolve,
    PLAIN,
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
)


def fields_of(message: Message) -> tuple[object, ...]:
    """All of a message, also what equality leaves out."""
    return (message, message.encoded, message.written)


@given(PLAIN)
def test_a_plain_message_is_written_as_by_sections(message: Message) -> None:
    assert write_plain(message) == write_by_sections(message)


def outcome_of(write: Callable[[Message], tuple[bytes, ...] | None], message: Message) -> object:
    try:
        return write(message)
    except MessageError as error:
        return str(error)


@given(messages() | HEADERS)
@example(Message(message_id=1))
@example(Message(subject="\ud800"))
def test_any_message_that_is_written_fast_is_written_as_by_sections(message: Message) -> None:
    assert outcome_of(write_plain, message) in (None, outcome_of(write_by_sections, message))


@given(messages() | HEADERS)
def test_any_message_that_is_read_fast_is_read_as_by_sections(message: Message) -> None:
    data = encode_message(message)

    fast = read_plain(data)

    assert fast is None or fields_of(fast) == fields_of(decode_by_sections(data))


@given(HEADERS.filter(lambda message: len(message.subject or "") < 100))
def test_a_plain_message_with_short_texts_is_read_fast(message: Message) -> None:
    texts = (message.message_id, message.to, message.reply_to, message.correlation_id)
    others = (message.session_id, message.reply_to_session_id, message.content_type)
    is_short = all(len((text or "").encode()) < 20 for text in (*texts, *others))

    fast = read_plain(encode_message(message))

    assert (fast is not None) or not is_short


@given(HEADERS, st.data())
def test_spoiled_bytes_that_are_read_fast_are_read_as_by_sections(
    message: Message, data: st.DataObject
) -> None:
    encoded = bytearray(encode_message(attrs.evolve(message, body=message.body[:300])))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, min(len(encoded), 120) - 1))] = data.draw(
            st.integers(0, 255)
        )
    spoiled = bytes(
        encoded[: data.draw(st.integers(0, len(encoded)))] if len(message.body) % 2 else encoded
    )

    fast = read_plain(spoiled)

    assert fast is None or fields_of(fast) == fields_of(decode_by_sections(spoiled))


@given(st.binary(max_size=40))
@example(b"\x00\x53\x73\xc0\x01\x00\x00\x53\x75\xa0\x00")  # a list without fields
@example(b"\x00\x53\x73\xc0\x03\x01\xa3\x00\x00\x53\x75\xa0\x00")  # an id that is a symbol
@example(b"\x00\x53\x73\xc0\x03\x01\xa1\x05\x00\x53\x75\xa0\x00")  # a text beyond its list
@example(b"\x00\x53\x75\xb0\x00\x00\x00\x01x")  # a short body with a long size
@example(b"\x00\x53\x74\xc1\x01\x00\x00\x53\x75\xa0\x00")  # no application properties
@example(b"\x00\x53\x74\xc1\x05\x02\xa1\x01aA\x00\x53\x75\xa0\x00")  # a map that is too short
@example(b"\x00\x53\x74\xc1\x04\x02\x55\x01\x41\x00\x53\x75\xa0\x00")  # a name that is none
@example(b"\x00\x53\x75\xa0\x00\x00\x53\x75\xa0\x00")  # two data sections
def test_any_bytes_that_are_read_fast_are_read_as_by_sections(data: bytes) -> None:
    fast = read_plain(data)

    assert fast is None or fields_of(fast) == fields_of(decode_by_sections(data))
