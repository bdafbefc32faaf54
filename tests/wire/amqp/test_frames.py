"""Frames byte by byte; frames that break the protocol end the session or the connection."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.message import Described
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    NewLink,
    Rejected,
    SessionClosed,
    SessionOpened,
    TransferReceived,
)
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.performatives import uint
from gateway.wire.amqp.types import encode
from tests.wire.amqp.frames import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    NULLS,
    OPEN,
    SOURCE,
    TARGET,
    TRANSFER,
    anonymous_server,
    frame,
    sending_to,
    split,
    transfer,
)
from tests.wire.amqp.pair_of_engines import Pair, new_client, new_server, take_all

BATCH = 0x80013700


def transfers(events):
    return [event for event in events if isinstance(event, TransferReceived)]


@pytest.fixture
def server():
    """A server with a link on which raw frames send: handle 0 of channel 0."""
    return sending_to(anonymous_server())


# --------------------------------------------------------------------------- message formats


@pytest.mark.parametrize("size", [10, 70_000, 300_000])
def test_the_message_format_arrives_in_either_direction(size):
    pair = Pair().open()
    ours, _ = pair.link(name="a")
    _, theirs = pair.link(name="b", we_send=False)

    for number, format_ in enumerate([0, BATCH, 0, 255]):
        tag = bytes((number,))
        pair.client.send(ours, tag, bytes(size), message_format=format_)
        pair.server.send(theirs, tag, bytes(size), message_format=format_)
    at_server, at_client = pair.pump()

    formats = [
        [each.message_format for each in events if isinstance(each, TransferReceived)]
        for events in (at_server, at_client)
    ]
    assert formats == [[0, BATCH, 0, 255]] * 2


def test_an_aborted_delivery_takes_its_format_along(server):
    batch = [uint(0), uint(0), b"a", uint(BATCH), False, True]
    server.feed(frame(TRANSFER, batch, b"one"))
    server.feed(
        frame(TRANSFER, [uint(0), uint(0), b"a", None, None, False, None, None, None, True])
    )
    server.feed(transfer(1, tag=b"b"))

    (received,) = server.events()

    assert (received.tag, received.message_format) == (b"b", 0)
    assert server.unsettled == len(b"payload")


# --------------------------------------------------------------------------- delivery ids


def test_repeated_delivery_ids_are_settled_under_the_ids_that_the_peer_used(server):
    ids = [0, 1, 1, 1, 4]
    for delivery_id in ids:
        server.feed(transfer(delivery_id, tag=bytes((delivery_id,))))

    deliveries = [each.delivery for each in server.events()]
    for delivery in deliveries:
        server.settle(delivery, ACCEPTED)
    frames = split(take_all(server))

    settled = []
    for code, fields, _ in frames:
        if code == DISPOSITION:
            first = fields[1].value
            last = fields[2].value if fields[2] is not None else first
            settled += range(first, last + 1)
    assert len(deliveries) == 5
    assert sorted(settled) == ids


def test_a_repeated_id_over_many_frames_is_one_delivery(server):
    server.feed(transfer(7, tag=b"a"))
    server.feed(transfer(7, tag=b"b", more=True, payload=b"1"))
    server.feed(transfer(7, tag=b"b", more=True, payload=b"2"))
    server.feed(frame(TRANSFER, [uint(0)], b"3"))

    assert [each.payload for each in server.events()] == [b"payload", b"123"]


def test_a_repeated_id_in_the_largest_frame_is_taken(server):
    rest = 65536 - len(transfer(300, payload=b""))
    server.feed(transfer(0))
    server.feed(transfer(0, payload=bytes(rest)))

    assert len(list(server.events())) == 2


# --------------------------------------------------------------------------- nulls, infos


def test_frames_are_padded_for_peers_that_read_by_position():
    pair = Pair().open(pads_frames=True)
    _ours, theirs = pair.link()
    pair.server.detach(theirs)
    pair.server.close()
    frames = split(take_all(pair.server))

    assert {code: len(fields) for code, fields, _ in frames} == {DETACH: 3, CLOSE: 1}


def test_padded_open_transfer_and_disposition_are_still_understood():
    pair = Pair().open(pads_frames=True)
    ours, _ = pair.link(name="a")
    _, theirs = pair.link(name="b", we_send=False)
    pair.client.send(ours, b"1", b"up")
    pair.server.send(theirs, b"1", bytes(200_000))
    at_server, at_client = pair.pump()
    (up,), (down,) = transfers(at_server), transfers(at_client)
    pair.server.settle(up.delivery, ACCEPTED)
    _, told = pair.pump()

    assert len(down.payload) == 200_000
    assert [each.state for each in told if isinstance(each, DispositionReceived)] == [ACCEPTED]


@pytest.mark.parametrize(
    ("garbage", "code"),
    [(b"\0\0\0\x09\x02\0\0\0\x40", CLOSE), (frame(TRANSFER, [uint(9), uint(0), b"t"]), END)],
)
def test_an_error_that_the_engine_finds_has_info_too(server, garbage, code):
    server.feed(garbage)

    (written, (error,), _) = split(take_all(server))[-1]

    assert written == code
    assert error.value[2]


def test_a_rejection_has_info_so_that_the_sdk_does_not_hang(server):
    server.feed(transfer(0))
    (received,) = server.events()

    server.settle(received.delivery, Rejected(error=AmqpError(condition="amqp:not-allowed")))
    ((_, fields, _),) = [each for each in split(take_all(server)) if each[0] == DISPOSITION]

    (error,) = fields[4].value
    assert error.value[2]


# --------------------------------------------------------------------------- what breaks it


def ended(server):
    events = list(server.events())
    assert isinstance(events[-1], ConnectionClosed)
    return events[-1].error.condition


def session_ended(server):
    *links, session = server.events()
    assert isinstance(session, SessionClosed)
    assert {type(each) for each in links} == {LinkDetached}
    return session.error.condition


def test_a_frame_above_the_limit_ends_the_connection():
    server = anonymous_server(max_frame_size=1000)
    server.feed(AMQP_HEADER + (1001).to_bytes(4))
    server.feed(b"\x02\0\0\0")

    assert ended(server) == "amqp:connection:framing-error"
    assert [code for code, _, _ in split(take_all(server))] == [OPEN, CLOSE]
    assert server.finished


@pytest.mark.parametrize(
    ("most", "pads", "message_format"), [(512, False, 0), (544, True, BATCH), (65_536, True, BATCH)]
)
def test_no_frame_is_larger_than_the_peer_takes(most, pads, message_format):
    pair = Pair(client=new_client(max_frame_size=most)).open(pads_frames=pads)
    _, link = pair.link(we_send=False)

    pair.server.send(link, b"tag", bytes(200_000), message_format=message_format)
    data = take_all(pair.server)
    pair.client.feed(data)

    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + int.from_bytes(data[starts[-1] : starts[-1] + 4]))
    assert max(after - before for before, after in pairwise(starts)) <= most
    assert [len(each.payload) for each in transfers(pair.client.events())] == [200_000]


def test_a_frame_of_the_limit_is_taken():
    pair = Pair(server=new_server(max_frame_size=1000)).open()
    ours, _ = pair.link()
    pair.client.send(ours, b"1", bytes(10_000))

    (received,), _ = pair.pump()

    assert len(received.payload) == 10_000


@pytest.mark.parametrize(
    ("garbage", "condition"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "amqp:connection:framing-error"),
        (AMQP_HEADER + b"\0\0\0\x04\x02\0\0\0", "amqp:connection:framing-error"),
        (AMQP_HEADER + b"\0\0\0\x10\x01\0\0\0", "amqp:connection:framing-error"),
        (AMQP_HEADER + b"\0\0\0\x10\x02\x01\0\0" + bytes(8), "amqp:connection:framing-error"),
        (AMQP_HEADER + b"\0\0\0\x0b\x02\0\0\0\0\x53\x10", "amqp:decode-error"),
        (AMQP_HEADER + frame(OPEN, ["a", Described(1, [])])[:-1] + b"\x99", "amqp:decode-error"),
    ],
)
def test_garbage_ends_the_connection_with_the_right_error(garbage, condition):
    server = anonymous_server()

    server.feed(garbage)

    assert ended(server) == condition


def test_deep_nesting_ends_the_connection():
    nested = b"\x40"
    while len(nested) < 50_000:
        size = (len(nested) + 4).to_bytes(4)
        nested = b"\xd0" + size + (1).to_bytes(4) + nested
    fields = encode("raw") + b"\x40" * 8 + b"\xc1\x00"
    body = b"\0\x53\x10\xd0" + (len(fields + nested) + 4).to_bytes(4) + (10).to_bytes(4)
    server = anonymous_server()

    frame_ = (8 + len(body + fields + nested)).to_bytes(4) + b"\x02\0\0\0" + body + fields + nested
    server.feed(AMQP_HEADER + frame_)

    assert ended(server) == "amqp:decode-error"


@pytest.mark.parametrize("code", [TRANSFER, FLOW, DISPOSITION])
def test_deep_nesting_in_the_frames_of_messages_ends_the_connection(server, code):
    nested = b"\x40"
    for _ in range(2000):
        nested = b"\xd0" + (len(nested) + 4).to_bytes(4) + (1).to_bytes(4) + nested
    fields = b"\x43" * 2 + b"\x40" * 2 + nested
    body = b"\0\x53" + bytes((code,)) + b"\xd0" + (len(fields) + 4).to_bytes(4)
    body += (5).to_bytes(4) + fields

    server.feed((8 + len(body)).to_bytes(4) + b"\x02\0\0\0" + body)

    assert ended(server) == "amqp:decode-error"


def test_too_many_links_end_the_connection():
    pair = Pair(server=new_server(max_links=3)).open()
    session = pair.client.begin()
    for number in range(3):
        pair.link(session=session, name=str(number))

    pair.client.attach(session, NewLink(name="more", we_send=True, source=None, target=None))
    at_server, at_client = pair.pump()

    conditions = {each.error.condition for each in (at_server[-1], at_client[-1])}
    assert conditions == {"amqp:resource-limit-exceeded"}


def test_refused_links_count_until_the_peer_has_detached_them():
    server = anonymous_server(max_links=3)
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]))
    server.open()
    server.feed(frame(BEGIN, [None, uint(0), uint(1), uint(1)]))
    for handle in range(4):
        attach = [str(handle), uint(handle), True, *NULLS, SOURCE, TARGET]
        server.feed(frame(ATTACH, attach))
        *_, last = server.events()
        if isinstance(last, LinkAttached):
            server.refuse(last.link, AmqpError(condition="amqp:not-found"))

    assert last.error.condition == "amqp:resource-limit-exceeded"


def test_too_many_sessions_end_the_connection(server):
    server.feed(frame(BEGIN, [None, uint(0), uint(1), uint(1)], channel=256))

    assert ended(server) == "amqp:connection:framing-error"


def test_a_channel_or_handle_that_is_in_use_ends_the_connection(server):
    other = anonymous_server()
    begin = frame(BEGIN, [None, uint(0), uint(1), uint(1)])
    attach = ["other", uint(0), True, *NULLS, SOURCE, TARGET]

    other.feed(AMQP_HEADER + frame(OPEN, ["raw"]) + begin + begin)
    server.feed(frame(ATTACH, attach))

    assert ended(other) == "amqp:connection:framing-error"
    assert ended(server) == "amqp:session:handle-in-use"


@pytest.mark.parametrize(
    ("broken", "condition"),
    [
        (frame(BEGIN, [None, uint(0), uint(1), uint(1)], channel=256), "framing-error"),
        (frame(ATTACH, ["x", uint(2**31), True, *NULLS, SOURCE, TARGET]), "framing-error"),
        (frame(ATTACH, ["x", uint(1), True, *NULLS, SOURCE, TARGET], channel=3), "not-allowed"),
        (frame(END, [], channel=7), "not-allowed"),
    ],
)
def test_a_frame_outside_of_a_begun_session_ends_the_connection_with_the_right_error(
    server, capfd, broken, condition
):
    server.feed(broken)

    assert ended(server).endswith(condition)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "broken",
    [
        frame(TRANSFER, [uint(9), uint(0), b"t"], b"payload"),
        frame(FLOW, [None, uint(1), uint(0), uint(1), uint(9), uint(0)]),
        frame(DETACH, [uint(9), True]),
    ],
)
def test_a_handle_that_was_never_attached_ends_its_session_alone(server, broken):
    server.feed(broken)
    condition = session_ended(server)
    server.feed(broken + frame(END, []) + frame(BEGIN, [None, uint(0), uint(1), uint(1)]))

    assert condition == "amqp:session:unattached-handle"
    assert [type(event) for event in server.events()] == [SessionOpened]
    assert [code for code, *_ in split(take_all(server))] == [END, BEGIN]


@pytest.mark.parametrize("handle_max", [0, 2])
def test_more_links_than_the_peer_has_handles_for_end_the_connection(capfd, handle_max):
    server = anonymous_server()
    begin = frame(BEGIN, [None, uint(0), uint(100), uint(100), uint(handle_max)])
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]) + begin)
    server.open()

    for handle in range(handle_max + 2):
        server.feed(frame(ATTACH, [str(handle), uint(handle), True, *NULLS, SOURCE, TARGET]))
        *_, last = server.events()
        if isinstance(last, LinkAttached):
            server.accept(last.link)
    frames = split(take_all(server))

    assert last.error.condition == "amqp:not-allowed"
    assert [code for code, *_ in frames].count(ATTACH) == handle_max + 1
    assert frames[-1][0] == CLOSE
    assert capfd.readouterr() == ("", "")


def test_a_handle_that_is_free_again_can_be_used_again(capfd):
    server = anonymous_server()
    begin = frame(BEGIN, [None, uint(0), uint(100), uint(100), uint(0)])
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]) + begin)
    server.open()

    for number in range(3):
        server.feed(frame(ATTACH, [str(number), uint(0), True, *NULLS, SOURCE, TARGET]))
        *_, attached = server.events()
        server.accept(attached.link)
        server.feed(frame(DETACH, [uint(0), True]))
        assert len(list(server.events())) == 1

    assert [code for code, *_ in split(take_all(server))].count(ATTACH) == 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("lingering", [1, 2])
def test_a_link_that_lingers_gives_its_handle_to_one_that_needs_it(capfd, lingering):
    server = anonymous_server()
    begin = frame(BEGIN, [None, uint(0), uint(100), uint(100), uint(lingering - 1)])
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]) + begin)
    server.open()

    for number in range(lingering + 1):
        server.feed(frame(ATTACH, [str(number), uint(0), True, *NULLS, SOURCE, TARGET]))
        *_, attached = server.events()
        server.accept(attached.link, lingers=True)
        server.feed(frame(DETACH, [uint(0), True]))
        assert len(list(server.events())) == 1

    codes = [code for code, *_ in split(take_all(server))]
    assert codes.count(ATTACH) == lingering + 1
    assert codes.count(DETACH) == lingering
    assert capfd.readouterr() == ("", "")


def test_a_message_on_a_link_where_the_peer_receives_ends_the_connection(server):
    server.feed(frame(ATTACH, ["other", uint(1), True, *NULLS, SOURCE, TARGET]))
    *_, attached = server.events()
    server.accept(attached.link)

    server.feed(transfer(0, handle=1))

    assert ended(server) == "amqp:not-allowed"


@pytest.mark.parametrize("credit", [5, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("properties", [{}, {"filler": "x" * 100}])
def test_all_the_credit_that_a_peer_can_give_is_credit(server, credit, properties):
    server.feed(frame(ATTACH, ["other", uint(1), True, *NULLS, SOURCE, TARGET]))
    *_, attached = server.events()
    server.accept(attached.link)

    flow = [uint(0), uint(9), uint(0), uint(9), uint(1), uint(0), uint(credit), uint(0)]
    server.feed(frame(FLOW, [*flow, False, False, properties]))

    assert [event.credit for event in server.events()] == [min(credit, 2**31 - 1)]
    assert server.send(attached.link, b"t", b"payload") is not None
    assert [code for code, *_ in split(take_all(server))] == [ATTACH, TRANSFER]


def test_unfinished_messages_beyond_the_limit_end_the_connection():
    pair = Pair(server=new_server(max_partial=100_000)).open()
    ours, _ = pair.link()
    pair.client.send(ours, b"1", bytes(300_000))

    at_server, at_client = pair.pump()

    (closed,) = at_server
    assert closed.error.condition == "amqp:resource-limit-exceeded"
    assert at_client[-1].error.condition == "amqp:resource-limit-exceeded"


FRAME_IN_PART = transfer(1)[:-1]
MESSAGE_IN_PART = transfer(1, more=True)


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (FRAME_IN_PART, b""),
        (MESSAGE_IN_PART, transfer(1, more=True)),
        (MESSAGE_IN_PART, transfer(1, more=True)[:-1]),
        (MESSAGE_IN_PART, b"\0\0\0\x08\x02\0\0\0"),
    ],
)
@pytest.mark.parametrize("began_at", [0, 1, 9])
def test_a_peer_that_does_not_finish_loses_the_connection(begun, more, began_at):
    server = sending_to(anonymous_server(partial_timeout=10))
    events, now = [], 0
    while not events:
        if now == began_at:
            server.feed(begun)
        if now == began_at + 5:
            server.feed(more)
        server.tick(now)
        events += server.events()
        now += 1
    (closed,) = events

    assert began_at + 10 <= now - 1 <= began_at + 20
    assert closed.error.condition == "amqp:resource-limit-exceeded"
    assert "wasn't complete after 10" in closed.error.description


@pytest.mark.parametrize("begun", [FRAME_IN_PART, MESSAGE_IN_PART])
def test_a_peer_that_gets_more_time_has_it_and_no_more(begun):
    server = sending_to(anonymous_server(partial_timeout=10))
    server.feed(begun)
    events, now = [], 0
    while not events:
        if 5 <= now < 105:
            server.allow_partial_for(1)
        server.tick(now)
        events += server.events()
        now += 1
    (closed,) = events

    assert 110 <= now - 1 <= 120
    assert closed.error.condition == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("limit", [10, 0])
def test_a_peer_that_finishes_may_begin_the_next(limit):
    server = sending_to(anonymous_server(partial_timeout=limit))
    for number in range(20):
        server.feed(transfer(number, tag=b"%d" % number, more=True))
        server.tick(10 * number)
        server.feed(transfer(number, tag=b"%d" % number))
        frame = transfer(100 + number, tag=b"f%d" % number)
        server.feed(frame[:-1])
        server.tick(10 * number + 5)
        server.feed(frame[-1:])

    assert len(transfers(server.events())) == 40


@pytest.mark.parametrize("begun", [FRAME_IN_PART, MESSAGE_IN_PART])
def test_without_a_limit_a_peer_may_take_its_time(begun):
    server = sending_to(anonymous_server(partial_timeout=0, idle_timeout=0))
    server.feed(begun)

    assert server.tick(0) == server.tick(1e6) == float("inf")
    assert list(server.events()) == []


# --------------------------------------------------------------------------- cuts, mutations


def conversation():
    """A client's side of a short conversation: its turns, between which it waits for answers."""
    pair = Pair()
    turns = []
    feed = pair.server.feed
    pair.server.feed = lambda data: (turns.append(data), feed(data))
    pair.open()
    ours, _ = pair.link()
    pair.client.send(ours, b"1", b"small", message_format=BATCH)
    pair.client.send(ours, b"2", bytes(70_000))
    pair.pump()
    pair.client.detach(ours)
    pair.client.close()
    pair.pump()
    return [turn for turn in turns if turn]


TURNS = conversation()
CONVERSATION = b"".join(TURNS)
ENDS = list(accumulate(map(len, TURNS)))


def hear(data, cuts=()):
    """Feed these pieces to a server that accepts everything; return its events."""
    server = new_server()
    told = []
    for start, end in pairwise(sorted({0, *ENDS, *cuts})):
        server.feed(data[start:end])
        for event in server.events():
            told.append(event)
            if isinstance(event, ConnectionOpened):
                server.open()
            elif isinstance(event, LinkAttached):
                server.accept(event.link)
                server.grant(event.link, 10)
            elif isinstance(event, TransferReceived):
                server.settle(event.delivery, ACCEPTED)
        take_all(server)
    return told


WHOLE = hear(CONVERSATION)


def test_a_conversation_is_heard_to_its_end():
    assert [type(event) for event in WHOLE][-4:] == [
        TransferReceived,
        TransferReceived,
        LinkDetached,
        ConnectionClosed,
    ]


@given(st.sets(st.integers(1, len(CONVERSATION))))
def test_bytes_may_be_cut_anywhere(cuts):
    assert hear(CONVERSATION, cuts) == WHOLE


def test_bytes_may_come_one_by_one():
    payload_at = CONVERSATION.index(bytes(1000))
    payload_end = CONVERSATION.rindex(bytes(1000)) + 1000
    cuts = {*range(payload_at), *range(payload_end, len(CONVERSATION))}

    assert hear(CONVERSATION, cuts) == WHOLE


@given(
    position=st.integers(0, 900),
    value=st.integers(0, 255),
    more=st.lists(
        st.tuples(st.integers(0, len(CONVERSATION) - 1), st.integers(0, 255)), max_size=4
    ),
)
def test_changed_bytes_never_raise(position, value, more):
    changed = bytearray(CONVERSATION)
    for where, what in [(position, value), *more]:
        changed[where] = what

    told = hear(bytes(changed))

    assert sum(isinstance(event, ConnectionClosed) for event in told) <= 1


@given(st.binary())
def test_garbage_after_sasl_never_raises(garbage):
    server = anonymous_server()

    server.feed(AMQP_HEADER + garbage)
    take_all(server)

    assert server.unsettled == 0
