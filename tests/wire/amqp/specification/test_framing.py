"""AMQP 1.0, part 2, 2.3 (framing), and 1.4 (composite types) as far as frames are built of it."""

import pytest

from gateway.domain.message import Described, Kind, Typed, symbol
from gateway.wire.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    LinkAttached,
    SessionOpened,
    TransferReceived,
)
from gateway.wire.amqp.types import encode
from tests.wire.amqp.performative_fields import (
    AMQP_HEADER,
    EMPTY,
    body,
    frame,
    raw_frame,
)
from tests.wire.amqp.raw_peer import SOURCE, TARGET, client, new_link, server
from tests.wire.amqp.specification.closed import DECODE_ERROR, FRAMING_ERROR, closed_with


@pytest.mark.parametrize("size", range(8))
def test_a_size_below_that_of_the_header_is_malformed(size: int) -> None:
    """2.3.1: the frame is malformed if the size is less than that of the header, 8 bytes."""
    peer = server().opened()
    peer.say(size.to_bytes(4) + b"\x02\x00\x00\x00")

    assert closed_with(peer) == FRAMING_ERROR


@pytest.mark.parametrize("words", [0, 1])
def test_a_data_offset_inside_of_the_header_is_malformed(words: int) -> None:
    """2.3.1: the frame is malformed if the data offset is less than 2."""
    content = body("begin", next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    peer = server().opened()
    peer.say((8 + len(content)).to_bytes(4) + bytes((words, 0, 0, 0)) + content)

    assert closed_with(peer) == FRAMING_ERROR


def test_a_data_offset_behind_the_end_is_malformed() -> None:
    """2.3.1: the size MUST contain the frame header, the extended header and the body."""
    peer = server().opened()
    peer.say((12).to_bytes(4) + bytes((4, 0, 0, 0)) + bytes(4))

    assert closed_with(peer) == FRAMING_ERROR


@pytest.mark.parametrize("words", [1, 2, 253])
def test_an_extended_header_is_ignored(words: int) -> None:
    """2.3.1: the data offset gives the position of the body; the area before it is an extension."""
    content = body("begin", next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    peer = server().opened()
    peer.say(raw_frame(content, extended=b"\xff" * 4 * words))

    assert len(peer.told(SessionOpened)) == 1


@pytest.mark.parametrize("name", ["transfer", "flow"])
def test_an_extended_header_is_ignored_in_the_frames_of_messages(name: str) -> None:
    """2.3.1, as above."""
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 1)
    contents = {
        "transfer": body("transfer", handle=0, delivery_id=0, delivery_tag=b"t", message_format=0),
        "flow": body("flow", incoming_window=1, next_outgoing_id=0, outgoing_window=1),
    }
    payload = b"payload" if name == "transfer" else b""
    peer.say(raw_frame(contents[name] + payload, extended=bytes(8)))

    told = [event.payload for event in peer.events if isinstance(event, TransferReceived)]
    assert told == ([b"payload"] if name == "transfer" else [])
    assert not peer.told(ConnectionClosed)


def test_a_frame_of_another_type_is_no_frame_of_amqp() -> None:
    """2.3.1: a type code of 0x00 indicates an AMQP frame."""
    peer = server().opened()
    peer.say(raw_frame(body("close"), type_code=2))

    assert closed_with(peer) == FRAMING_ERROR


@pytest.mark.parametrize("code", [0x00, 0x0F, 0x19, 0x28, 0x40, 0x41, 0x70, 0xFF])
def test_a_body_is_one_of_the_performatives(code: int) -> None:
    """2.3.2: the performative MUST be one of those defined in 2.7."""
    peer = server().opened()
    peer.say(raw_frame(encode(Described(Typed(Kind.ULONG, code), []))))

    assert closed_with(peer) in (FRAMING_ERROR, DECODE_ERROR, "amqp:not-allowed")


@pytest.mark.parametrize(
    "content",
    [
        b"\x40",
        encode(["a list"]),
        encode(Described(Typed(Kind.ULONG, 0x11), "no list")),
        encode(Described(Typed(Kind.ULONG, 0x11), {})),
        b"\x00\x53\x11\xc0\x09\x01",
        b"\x00\x53\x11\xd0\x00\x00",
        b"\x00",
        b"\x00\x53",
    ],
)
def test_a_body_is_a_described_list(content: bytes) -> None:
    """2.3.2 and 1.4: a performative is a described type, whose representation is a list."""
    peer = server().opened()
    peer.say(raw_frame(content))

    assert closed_with(peer) == DECODE_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        {"next_outgoing_id": "0"},
        {"incoming_window": b"1"},
        {"remote_channel": [1]},
        {"handle_max": {}},
    ],
)
def test_a_field_has_the_type_of_its_definition(fields: dict[str, object]) -> None:
    """1.4: the permitted values are determined by the type of the field."""
    windows = {"next_outgoing_id": 0, "incoming_window": 1, "outgoing_window": 1}
    peer = server().opened()
    peer.send("begin", **windows | fields)

    assert closed_with(peer) in (DECODE_ERROR, "amqp:invalid-field")


def test_empty_frames_are_ignored() -> None:
    """2.3.2: a frame without a body generates artificial traffic, and has no other meaning."""
    peer = server().opened()
    peer.session()
    heard = peer.say(EMPTY * 3, raw_frame(b"", channel=5), raw_frame(b"", extended=bytes(4)))

    assert heard == []
    assert peer.told(ConnectionClosed) == []


def test_the_engine_writes_whole_frames_of_amqp() -> None:
    """2.3.1: the size MUST be that of the whole frame (each one is checked as it is read)."""
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=False)
    peer.credit(10)
    for size in (0, 1, 1000, 200_000):
        peer.engine.send(attached.link, b"%d" % size, bytes(size))
    frames = peer.hear()
    peer.engine.close()
    frames += peer.hear()

    assert sum(len(each.payload) for each in frames) == 201_001
    assert {each.kind for each in frames} == {"transfer", "close"}


# --------------------------------------------------------------------------- 1.4: composite types


def test_trailing_nulls_may_be_there_or_not() -> None:
    """1.4: when the trailing elements of the list are null, they MAY be omitted."""
    nulls = Described(Typed(Kind.ULONG, 0x10), ["raw", *[None] * 9])
    peers = [server(), server()]
    peers[0].say(AMQP_HEADER, frame("open", container_id="raw"))
    peers[1].say(AMQP_HEADER, raw_frame(encode(nulls)))

    told = [peer.told(ConnectionOpened) for peer in peers]
    assert told[0] == told[1]
    assert told[0][0].container_id == "raw"


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x53\x10\xc0\x06\x01\xa1\x03raw",
        b"\x00\x53\x10\xd0\x00\x00\x00\x09\x00\x00\x00\x01\xa1\x03raw",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x10\xc0\x06\x01\xa1\x03raw",
        b"\x00\x53\x10\xc0\x09\x01\xb1\x00\x00\x00\x03raw",
    ],
)
def test_each_encoding_of_a_list_and_its_descriptor_is_read(content: bytes) -> None:
    """1.6: list8 and list32, smallulong and ulong, str8 and str32 are encodings of one value."""
    peer = server()
    peer.say(AMQP_HEADER, raw_frame(content))

    assert [each.container_id for each in peer.told(ConnectionOpened)] == ["raw"]


@pytest.mark.parametrize("zero", [b"\x43", b"\x52\x00", b"\x70\x00\x00\x00\x00"])
@pytest.mark.parametrize("yes", [b"\x41", b"\x56\x01"])
@pytest.mark.parametrize("tag", [b"\xa0\x01t", b"\xb0\x00\x00\x00\x01t"])
@pytest.mark.parametrize("wide", [False, True])
def test_each_encoding_of_the_fields_of_a_transfer_is_read(
    zero: bytes, yes: bytes, tag: bytes, *, wide: bool
) -> None:
    """1.6: uint0, smalluint and uint; true and boolean; vbin8 and vbin32; list8 and list32."""
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 10)
    fields = zero + zero + tag + zero + yes
    head = b"\xc0" + bytes((len(fields) + 1, 5))
    if wide:
        head = b"\xd0" + (len(fields) + 4).to_bytes(4) + (5).to_bytes(4)
    peer.say(raw_frame(b"\x00\x53\x14" + head + fields + b"payload"))

    (received,) = peer.told(TransferReceived)
    assert (received.tag, received.payload, received.settled) == (b"t", b"payload", True)


def test_a_performative_may_be_described_by_its_symbol() -> None:
    """1.4 and 2.7: a composite type has a symbolic descriptor beside the numeric one."""
    peer = server()
    peer.say(AMQP_HEADER, raw_frame(encode(Described(symbol("amqp:open:list"), ["raw"]))))
    windows = [None, *[Typed(Kind.UINT, 1)] * 3]
    peer.say(raw_frame(encode(Described(symbol("amqp:begin:list"), windows))))

    assert [type(each) for each in peer.events] == [ConnectionOpened, SessionOpened]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (None, ()),
        ((), ()),
        ("queue", ("queue",)),
        (("queue",), ("queue",)),
        (("queue", "topic"), ("queue", "topic")),
    ],
)
def test_a_field_of_multiple_values_holds_none_one_or_an_array(
    capabilities: str | tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    """1.4: a single value is always permitted; null and an empty array are the same."""
    value = capabilities
    if isinstance(value, tuple):
        value = Typed(Kind.ARRAY, tuple(symbol(each) for each in value))
    elif value is not None:
        value = symbol(value)
    source = Described(Typed(Kind.ULONG, 0x28), ["source", *[None] * 9, value])
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=True, source=source)

    assert attached.source.capabilities == expected


@pytest.mark.parametrize(
    "content",
    [
        b"\xc1\x05\x03\xa3\x01a\x41",  # an odd number
        b"\xc1\x09\x04\xa3\x01a\x41\xa3\x01a\x42",  # a key twice
    ],
)
def test_a_map_that_is_none_is_refused(content: bytes) -> None:
    """1.6.23: a map MUST contain an even number of items, and no key twice."""
    head = encode("raw") + b"\x40" * 8
    fields = head + content
    peer = server()
    peer.engine.open()
    peer.say(
        AMQP_HEADER,
        raw_frame(b"\x00\x53\x10\xc0" + bytes((len(fields) + 1, 10)) + fields),
    )

    assert closed_with(peer) == DECODE_ERROR


def test_a_client_reads_termini_that_are_described_by_their_symbols() -> None:
    """1.4 and 3.5.3: as above, for values inside of a performative."""
    peer = client()
    peer.say(AMQP_HEADER, frame("open", container_id="raw"))
    session = peer.engine.begin()
    peer.engine.attach(session, new_link())
    peer.hear()
    windows = {"next_outgoing_id": 0, "incoming_window": 1, "outgoing_window": 1}
    peer.send("begin", remote_channel=0, **windows)
    source, target = (
        Described(symbol(f"amqp:{name}:list"), value.value)
        for name, value in (("source", SOURCE), ("target", TARGET))
    )
    peer.send("attach", name="link", handle=0, role=True, source=source, target=target)

    (attached,) = peer.told(LinkAttached)
    assert (attached.source.address, attached.target.address) == ("source", "target")
