"""Frames on their way between a client and its broker."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from gateway.domain.errors import MessageError
from gateway.wire.rabbitmq.frames import ProtocolError, content_frames, method_frame
from gateway.wire.rabbitmq.relayed import FrameReader, RelayedContent, RelayedFrame, read_publish

PUBLISH = method_frame(1, commands.Basic.Publish(exchange="", routing_key="orders"))
BODY = b"hello, wide world"
HEADER = header.ContentHeader(body_size=len(BODY), properties=commands.Basic.Properties()).marshal()
CONTENT = b"".join(content_frames(1, HEADER, BODY, 4096))
CONVERSATION = PUBLISH + CONTENT + method_frame(2, commands.Basic.Ack(7, multiple=True))


@given(st.lists(st.integers(1, len(CONVERSATION)), max_size=8))
def test_frames_are_the_same_wherever_their_bytes_are_cut(cuts):
    reader, frames = FrameReader(), []
    marks = [0, *sorted(cuts), len(CONVERSATION)]
    for start, stop in pairwise(marks):
        frames += reader.feed(CONVERSATION[start:stop])

    assert b"".join(each.data for each in frames) == CONVERSATION
    assert [each.channel for each in frames] == [1, 1, 1, 2]
    assert [each.method_index for each in frames] == [
        commands.Basic.Publish.index,
        0,
        0,
        commands.Basic.Ack.index,
    ]


def frames_of(reader, data, marks):
    """The frames as a list of bytes, each delivery's apart; None: a protocol error."""
    try:
        found = [frame for a, b in pairwise(marks) for frame in reader.feed(data[a:b])]
    except ProtocolError:
        return None
    for frame in found:
        if frame.content_at:
            assert frame.method_index == commands.Basic.Deliver.index
            [whole] = FrameReader(joins=True).feed(frame.data)
            assert whole == frame
            [_, content, *_] = FrameReader().feed(frame.data)
            assert frame.content_header == content.data[:-1]
    return [each.data for frame in found for each in FrameReader().feed(frame.data)]


DELIVER = method_frame(1, commands.Basic.Deliver("tag", 7, False, "", "orders"))
EMPTY = header.ContentHeader(body_size=0, properties=commands.Basic.Properties()).marshal()
PARTS = st.sampled_from(
    [
        DELIVER,
        DELIVER + CONTENT,
        DELIVER + b"".join(content_frames(1, HEADER, BODY, 22)),
        DELIVER + b"".join(content_frames(1, EMPTY, b"", 4096)),
        DELIVER + b"".join(content_frames(2, HEADER, BODY, 4096)),  # of another channel
        DELIVER + CONTENT[:-1] + b"x",  # without the end octet
        DELIVER + b"".join(content_frames(1, HEADER, BODY + b"too much", 4096)),
        DELIVER + PUBLISH,
        CONTENT,
        method_frame(1, commands.Basic.Ack(7)),
    ]
)


@given(st.lists(PARTS, max_size=5).map(b"".join), st.lists(st.integers(1, 400), max_size=4))
def test_deliveries_in_one_piece_have_the_same_frames(data, cuts):
    marks = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    assert frames_of(FrameReader(joins=True), data, marks) == frames_of(FrameReader(), data, marks)


def test_frames_that_are_not_asked_for_come_with_the_next_bytes():
    reader = FrameReader()
    first = next(reader.feed(CONVERSATION))
    others = list(reader.feed(b""))

    assert b"".join(each.data for each in [first, *others]) == CONVERSATION


def test_a_delivery_that_has_arrived_as_a_whole_stays_in_one_piece():
    [frame] = FrameReader(joins=True).feed(DELIVER + CONTENT)

    assert frame.data == DELIVER + CONTENT
    assert frame.content_at == len(DELIVER)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_crash(data):
    try:
        for frame in FrameReader(max_frame=64).feed(data):
            frame.method()
    except ProtocolError:
        pass


def test_a_frame_above_the_limit_is_refused():
    with pytest.raises(ProtocolError, match="at most 4 allowed"):
        list(FrameReader(max_frame=4).feed(PUBLISH))


WITH_ARGUMENTS = [
    commands.Queue.Declare(queue="q", durable=True, nowait=True),
    commands.Exchange.Declare(exchange="e", exchange_type="topic", internal=True),
    commands.Queue.Bind(queue="q", exchange="e", routing_key="k"),
    commands.Queue.Unbind(queue="q", exchange="e", routing_key="k"),
    commands.Exchange.Bind(destination="d", source="s", routing_key="k", nowait=True),
    commands.Exchange.Unbind(destination="d", source="s", routing_key="k"),
    commands.Basic.Consume(queue="q", consumer_tag="t", no_ack=True),
]


@pytest.mark.parametrize("method", WITH_ARGUMENTS, ids=lambda each: each.name)
def test_all_but_the_large_arguments_of_a_method_is_read(method):
    method.arguments = {f"field {number}": True for number in range(1000)}
    [frame] = FrameReader().feed(method_frame(1, method))
    found = frame.method()

    others = [name for name in method.__slots__ if name != "arguments"]
    assert [getattr(found, name) for name in others] == [getattr(method, name) for name in others]
    assert found.arguments != method.arguments
    with pytest.raises(MessageError):
        method_frame(1, found)


def test_a_content_has_its_body_from_all_frames():
    [publish, *rest] = FrameReader().feed(PUBLISH + b"".join(content_frames(1, HEADER, BODY, 22)))
    content = RelayedContent(publish)
    for frame in rest:
        assert not content.is_whole
        content.add(frame, 100)

    assert content.is_whole
    assert content.body() == BODY
    assert read_publish(content.method).routing_key == "orders"


@pytest.mark.parametrize(
    "wrong",
    [
        next(FrameReader().feed(PUBLISH)),
        RelayedFrame(2, 1, b"\x02\x00\x01\x00\x00\x00\x01x\xce"),
        next(FrameReader().feed(b"\x03\x00\x01\x00\x00\x00\x01x\xce")),
    ],
    ids=["a method", "a short header", "a body without a header"],
)
def test_a_content_is_refused_that_has_other_frames(wrong):
    with pytest.raises(ProtocolError):
        RelayedContent(next(FrameReader().feed(PUBLISH))).add(wrong, 100)


def test_a_body_above_the_limit_is_refused():
    [publish, head, *_] = FrameReader().feed(PUBLISH + CONTENT)
    with pytest.raises(ProtocolError, match="0 to 4 are allowed"):
        RelayedContent(publish).add(head, 4)
