"""
Frames and messages of the hot path mean the same, whether the fast way or the slow one reads them.
"""

import struct
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Typed
from gateway.wire.amqp.dispositions import Range, encode_state, write_disposition
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    DispositionReceived,
    LinkAttached,
    Modified,
    OtherState,
    Rejected,
    TransferReceived,
)
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.messages.fields import read_properties
from gateway.wire.amqp.messages.sections import split_sections
from gateway.wire.amqp.performatives import described, uint
from gateway.wire.amqp.types import encode
from tests.strategies import messages
from tests.wire.amqp.frames import (
    ATTACH,
    BEGIN,
    DISPOSITION,
    FLOW,
    NULLS,
    OPEN,
    SOURCE,
    TARGET,
    TRANSFER,
    anonymous_server,
    frame,
)
from tests.wire.amqp.pair_of_engines import Pair, take_all

USUAL = b"\0\x53"  # the descriptor's code in one byte
LONG = b"\0\x80" + bytes(7)  # in eight bytes: no fast way knows it

IDS = st.sampled_from([0, 1, 2, 255, 256, 2**32 - 1])
FLAGS = st.sampled_from([b"\x40", b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"])
FORMATS = st.sampled_from([b"\x40", b"\x43", b"\x52\x07", b"\x70\x80\x01\x37\x00"])
FLAGS_OF_FLOW = [b"\x40", b"\x41", b"\x42"]
TAGS = st.sampled_from([b"", b"1", b"2", b"tag", b"x" * 32])


def server_with_links(count=2):
    """A server with links on which the peer sends: handles 0 and 300 of channel 0."""
    server = anonymous_server()
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]))
    server.open()
    server.feed(frame(BEGIN, [None, uint(0), uint(100), uint(100)]))
    for handle in (0, 300)[:count]:
        ends = [SOURCE, TARGET, *NULLS, uint(0)]
        server.feed(frame(ATTACH, [f"link {handle}", uint(handle), False, *NULLS, *ends]))
        *_, attached = server.events()
        assert isinstance(attached, LinkAttached)
        server.accept(attached.link, max_message_size=100)
        server.grant(attached.link, 10)
    take_all(server)
    return server


def encoded_uint(value, width):
    if width == 0 and value == 0:
        return b"\x43"
    if width <= 1 and value < 256:
        return bytes((0x52, value))
    return b"\x70" + value.to_bytes(4)


def listed(values, *, wide):
    """A list of encoded values, in either encoding."""
    content = b"".join(values)
    if wide or len(content) > 254:
        return b"\xd0" + struct.pack(">II", len(content) + 4, len(values)) + content
    return bytes((0xC0, len(content) + 1, len(values))) + content


def in_frame(descriptor, code, fields, payload=b""):
    body = descriptor + bytes((code,)) + fields + payload
    return (len(body) + 8).to_bytes(4) + b"\x02\0\0\0" + body


@st.composite
def transfers(draw):
    tag, more = draw(TAGS), draw(FLAGS)
    values = [
        encoded_uint(draw(st.sampled_from([0, 300])), draw(st.integers(0, 2))),
        encoded_uint(draw(IDS), draw(st.integers(0, 2))),
        b"\xa0" + bytes((len(tag),)) + tag,
        draw(FORMATS),
        draw(FLAGS),
        more,
        *[b"\x40"] * draw(st.integers(0, 3)),
    ]
    return listed(values, wide=draw(st.booleans())), draw(st.binary(max_size=120))


# Mostly the same frame again and again, with another payload.
@given(
    st.lists(transfers(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=120)), max_size=20),
)
def test_a_transfer_means_the_same_in_the_fast_way_as_in_the_slow_one(kinds, series):
    told = []
    for descriptor in (USUAL, LONG):
        server = server_with_links()
        for which, payload in series:
            fields, _ = kinds[which % len(kinds)]
            server.feed(in_frame(descriptor, TRANSFER, fields, payload))
        told.append((list(server.events()), server.unsettled, take_all(server)))

    assert told[0] == told[1]


def test_frames_of_one_shape_are_read_one_after_the_other_and_in_pieces():
    server = server_with_links()
    series = [
        frame(TRANSFER, [uint(300), uint(each + 256), b"%02d" % each, uint(0), False], b"x" * each)
        for each in range(20)
    ]
    data = b"".join(series)
    for start in range(0, len(data), 7):
        server.feed(data[start : start + 7])

    events = list(server.events())

    assert [(each.tag, len(each.payload)) for each in events] == [
        (b"%02d" % each, each) for each in range(20)
    ]


@given(st.data())
def test_a_disposition_means_the_same_in_the_fast_way_as_in_the_slow_one(data):
    values = [
        data.draw(st.sampled_from([b"\x41", b"\x42"])),
        encoded_uint(data.draw(st.integers(0, 5)), data.draw(st.integers(0, 2))),
        data.draw(st.sampled_from([b"\x40", b"\x43", b"\x52\x02", b"\x70\0\0\0\x04"])),
        data.draw(st.sampled_from([b"\x41", b"\x42"])),
        data.draw(st.sampled_from([b"\0\x53\x24\x45", b"\0\x53\x24\xc0\1\0", b"\0\x53\x26\x45"])),
        *data.draw(st.sampled_from([[], [b"\x40"], [b"\x42"]])),
    ]
    fields = listed(values, wide=data.draw(st.booleans()))
    told = []
    for descriptor in (USUAL, LONG):
        pair = Pair().open()
        _, theirs = pair.link(we_send=False)
        for number in range(5):
            pair.server.send(theirs, b"%d" % number, b"payload")
        pair.pump()
        pair.server.feed(in_frame(descriptor, DISPOSITION, fields))
        told.append(list(pair.server.events()))

    assert told[0] == told[1]
    assert all(isinstance(each, DispositionReceived) for each in told[0])


NUMBERS = [b"\x40", b"\x43", b"\x52\x02", b"\x70\0\0\0\x04", b"\x70\xff\xff\xff\xff"]
OTHERS = [b"\x41", b"\x60\0\x01", b"\x81\0\0\0\0\0\0\0\x02", b"\x56\x01", b"\xa1\x01x"]


@given(st.data())
def test_a_flow_means_the_same_in_the_fast_way_as_in_the_slow_one(data):
    values = [
        data.draw(st.sampled_from(NUMBERS if number < 8 else FLAGS_OF_FLOW)) for number in range(10)
    ]
    values[4] = data.draw(st.sampled_from([b"\x40", b"\x43", b"\x52\x01", b"\x52\x07"]))
    if data.draw(st.booleans()):  # rarely is it anything else
        values[data.draw(st.integers(0, 9))] = data.draw(st.sampled_from(OTHERS))
    values = values[: data.draw(st.integers(3, 10))]
    values += data.draw(st.sampled_from([[], [b"\x40"], [b"\xc1\x01\0"], [b"\x40", b"\x40"]]))
    fields = listed(values, wide=data.draw(st.booleans()))
    told = []
    for descriptor in (USUAL, LONG):
        pair = Pair().open()
        _, theirs = pair.link(we_send=False)
        pair.link(we_send=True)
        for number in range(5):
            pair.server.send(theirs, b"%d" % number, b"payload")
        pair.pump()
        pair.server.feed(in_frame(descriptor, FLOW, fields))
        told.append((list(pair.server.events()), take_all(pair.server)))

    assert told[0] == told[1]


@given(st.data())
def test_a_flow_that_is_spoiled_means_the_same_in_the_fast_way_as_in_the_slow_one(data):
    values = [data.draw(st.sampled_from(NUMBERS)) for _ in range(7)]
    fields = bytearray(listed(values, wide=False))
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(st.integers(0, 255))
    told = []
    for descriptor in (USUAL, LONG):
        pair = Pair().open()
        pair.link(we_send=False)
        pair.server.feed(in_frame(descriptor, FLOW, bytes(fields)))
        told.append([type(each) for each in pair.server.events()])

    assert told[0] == told[1]


STATES = [
    None,
    ACCEPTED,
    RELEASED,
    Rejected(),
    Rejected(error=AmqpError(condition="amqp:not-found", description="x" * 300)),
    Modified(delivery_failed=True, annotations={"a": 1}),
    OtherState(code=0x23),
]


@given(
    st.sampled_from(STATES), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1), st.booleans()
)
def test_any_disposition_that_is_written_is_understood(state, receiver, settled, first, pads):
    written = write_disposition(
        7, Range(receiver, first, first, settled, encode_state(state)), pads=pads
    )
    size, channel = int.from_bytes(written[:4]), int.from_bytes(written[6:8])
    usual = described(DISPOSITION, [receiver, uint(first), uint(first), settled, None])

    assert (size, channel) == (len(written), 7)
    assert written[8:11] == encode(usual)[:3]


def test_messages_of_any_tag_and_format_arrive_as_they_were_sent():
    pair = Pair().open()
    ours, theirs = pair.link(credit=200)
    sent = []
    for number in range(60):
        tag, format_ = b"t" * (number % 33), (0, 1, 0x80013700)[number % 3]
        settled, payload = number % 2 == 0, bytes(number)
        pair.client.send(ours, tag, payload, settled=settled, message_format=format_)
        sent.append((theirs, tag, format_, payload, settled))
    at_server, _ = pair.pump()

    assert [
        (each.link, each.tag, each.message_format, each.payload, each.settled)
        for each in at_server
        if isinstance(each, TransferReceived)
    ] == sent


@given(messages(), st.data())
def test_sections_mean_the_same_in_the_fast_way_as_in_the_slow_one(message, data):
    encoded = encode_message(message)
    parts = [(code, encoded[start + 3 : end]) for code, start, end, _ in split_sections(encoded)]
    # Spoil one of them; without those behind it, whose beginnings it could take for its content.
    if parts and data.draw(st.booleans()):
        which = data.draw(st.integers(0, len(parts) - 1))
        code, part = parts[which]
        place = data.draw(st.integers(0, len(part) - 1))
        part = part[:place] + data.draw(st.binary(max_size=3)) + part[place + 1 :]
        parts[which:] = [(data.draw(st.sampled_from([code, 0x79])), part)]

    fast, slow = (told_by(joined(start, parts)) for start in (USUAL, LONG))

    assert fast == slow


def joined(start, parts):
    return b"".join(start + bytes((code,)) + part for code, part in parts)


def told_by(encoded):
    """The codes and values in a form that tells 1 from true, or that there is an error."""
    try:
        return [(code, repr(value)) for code, _, _, value in split_sections(encoded)]
    except MessageError:
        return MessageError


def read_field(place, value):
    """The field of that place (part 3, 3.2.4), read without any fast way."""
    kind = value.kind if isinstance(value, Typed) else None
    if value is None:
        return None
    if place in (0, 5) and (isinstance(value, str | UUID | bytes) or kind is Kind.ULONG):
        return value
    if place in (2, 3, 4, 6, 7, 10, 12) and (isinstance(value, str) or kind is Kind.SYMBOL):
        return value.value if kind else value
    if (place == 1 and isinstance(value, bytes)) or (
        place in (8, 9) and (isinstance(value, datetime) or kind is Kind.TIMESTAMP)
    ):
        return value
    if place == 11 and kind is Kind.UINT:
        return value.value
    raise MessageError("a field of another type")


TYPED = [Typed(kind, 1) for kind in (Kind.UINT, Kind.ULONG, Kind.TIMESTAMP)]
VALUES = [
    None,
    "",
    "text",
    b"",
    b"1",
    UUID(int=1),
    datetime(2026, 11, 25, tzinfo=UTC),
    1,
    True,
    *TYPED,
]


@given(st.lists(st.sampled_from([*VALUES, Typed(Kind.SYMBOL, "s")]), max_size=13))
def test_properties_mean_the_same_in_the_fast_way_as_in_the_slow_one(values):
    before = list(values)
    try:
        expected = [read_field(place, value) for place, value in enumerate(values)]
    except MessageError:
        with pytest.raises(MessageError):
            read_properties(values)
    else:
        assert read_properties(values) == (*expected, *[None] * (13 - len(values)))
    assert values == before


@pytest.mark.parametrize("times", [1, 2])
def test_a_header_that_was_read_before_is_checked_again(times):
    bad = b"\0\x53\x70\xc0\x03\x01\x50\x05"  # durable is a number

    for _ in range(times):
        with pytest.raises(MessageError, match="header: durable is no boolean"):
            decode_message(bad)
