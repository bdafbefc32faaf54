"""
Windows of sessions, credit of links: the transfers that wait for them, and the counts of both
sides.
"""

import pytest

from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    ConnectionClosed,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    SessionClosed,
    TransferReceived,
)
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.performatives import field, uint
from tests.wire.amqp.frames import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    END,
    FLOW,
    NULLS,
    OPEN,
    SOURCE,
    TARGET,
    TRANSFER,
    anonymous_server,
    frame,
    split,
)
from tests.wire.amqp.pair_of_engines import Pair, new_server, take_all

FAILED = AmqpError(condition="amqp:internal-error", description="failed")


def sending_server(window):
    """A server with a link on which it sends, to a raw client with a window of `window` frames."""
    server = anonymous_server()
    server.feed(AMQP_HEADER + frame(OPEN, ["raw", None, uint(512)]))
    server.open()
    server.feed(frame(BEGIN, [None, uint(0), uint(window), uint(100)]))
    server.feed(frame(ATTACH, ["link", uint(0), True, *NULLS, SOURCE, TARGET]))
    *_, attached = server.events()
    assert isinstance(attached, LinkAttached)
    server.accept(attached.link)
    server.feed(flow(0, window, credit=10))
    take_all(server)
    list(server.events())
    return server, attached.link


def flow(seen, window, *, count=0, credit=None, drain=False, echo=False, channel=0):
    of_link = [None] * 3 if credit is None else [uint(0), uint(count), uint(credit)]
    fields = [uint(seen), uint(window), uint(0), uint(100), *of_link, None, drain, echo]
    return frame(FLOW, fields, channel=channel)


def codes(data):
    return [code for code, *_ in split(data)]


# --------------------------------------------------------------------------- windows


def test_transfers_wait_while_the_peers_window_is_closed():
    server, link = sending_server(window=2)
    for number in range(3):
        server.send(link, b"%d" % number, b"payload")
    before = take_all(server), server.unsent
    server.feed(flow(2, 5))

    assert codes(before[0]) == [TRANSFER, TRANSFER]
    assert before[1] > 0
    assert codes(take_all(server)) == [TRANSFER]
    assert server.unsent == 0


def test_a_message_of_several_frames_goes_on_when_the_window_opens():
    server, link = sending_server(window=2)
    server.send(link, b"1", bytes(1200))
    first = split(take_all(server))
    server.feed(flow(2, 2))
    rest = split(take_all(server))

    assert [field(fields, 5, bool) for _, fields, _ in first + rest] == [True, True, False]
    assert b"".join(payload for *_, payload in first + rest) == bytes(1200)


@pytest.mark.parametrize(
    ("act", "last"),
    [
        (lambda server, link: server.detach(link), [DETACH]),
        (lambda server, link: server.close(FAILED), [CLOSE]),
        (lambda server, link: (server.detach(link), server.close()), [DETACH, CLOSE]),
    ],
)
def test_nothing_overtakes_a_transfer_that_waits(act, last):
    server, link = sending_server(window=1)
    for number in range(3):
        server.send(link, b"%d" % number, b"payload", settled=True)
    act(server, link)
    before = codes(take_all(server))
    server.feed(flow(1, 1))
    between = codes(take_all(server))
    server.feed(flow(2, 1))

    assert (before, between) == ([TRANSFER], [TRANSFER])
    assert codes(take_all(server)) == [TRANSFER, *last]


def test_frames_that_wait_behind_a_transfer_count_as_unsent():
    server, link = sending_server(window=1)
    for number in range(2):
        server.send(link, b"%d" % number, b"payload", settled=True)
    storm = frame(ATTACH, ["more", uint(1), True, *NULLS, SOURCE, TARGET]) + frame(
        DETACH, [uint(1), True]
    )
    take_all(server)
    for _ in range(100):
        server.feed(storm + flow(1, 0, credit=10, echo=True))
        *_, attached, _, _ = server.events()
        server.refuse(attached.link, FAILED)
        assert take_all(server) == b""
    unsent = server.unsent
    server.feed(flow(1, 1))

    assert unsent > 100 * 3 * 256  # two frames each time, and a flow
    assert codes(take_all(server))[:4] == [TRANSFER, ATTACH, DETACH, FLOW]
    assert server.unsent == 0


def test_a_session_that_is_ended_drops_what_waits():
    server, _ = sending_server(window=1)
    server.feed(frame(BEGIN, [None, uint(0), uint(1), uint(100)], channel=1))
    server.feed(frame(ATTACH, ["link", uint(0), True, *NULLS, SOURCE, TARGET], channel=1))
    *_, attached = server.events()
    server.accept(attached.link)
    server.feed(flow(0, 1, credit=10, channel=1))
    take_all(server)
    for number in range(3):
        server.send(attached.link, b"%d" % number, b"payload")
    server.end(attached.session)

    assert codes(take_all(server)) == [TRANSFER, END]
    assert server.unsent == 0


def test_credit_that_is_given_back_counts_the_messages_that_wait_for_the_window():
    server, link = sending_server(window=1)
    for number in range(3):
        server.send(link, b"%d" % number, b"payload")
    server.feed(flow(0, 1, credit=10, drain=True))
    server.drained(link)
    before = codes(take_all(server))
    server.feed(flow(1, 10))
    written = split(take_all(server))

    assert before == [TRANSFER]
    assert [code for code, *_ in written] == [TRANSFER, TRANSFER, FLOW]
    (_, fields, _) = written[-1]
    assert [each.value for each in (fields[2], fields[5], fields[6])] == [3, 10, 0]


def test_a_window_is_renewed_before_it_closes():
    pair = Pair(server=new_server(session_window=4)).open()
    ours, _ = pair.link(credit=100)
    for number in range(50):
        pair.client.send(ours, b"%d" % number, b"payload")
    at_server, _ = pair.pump()

    assert len([each for each in at_server if isinstance(each, TransferReceived)]) == 50


def test_a_transfer_beyond_the_window_ends_the_session():
    server = anonymous_server(session_window=2)
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]))
    server.open()
    server.feed(frame(BEGIN, [None, uint(0), uint(9), uint(9)]))
    ends = [SOURCE, TARGET, *NULLS, uint(0)]
    server.feed(frame(ATTACH, ["link", uint(0), False, *NULLS, *ends]))
    list(server.events())
    series = [frame(TRANSFER, [uint(0), uint(each), b"t", uint(0)], b"x") for each in range(3)]
    server.feed(b"".join(series))
    *transfers, detached, ended = server.events()

    assert len(transfers) == 2
    assert isinstance(detached, LinkDetached)
    assert isinstance(ended, SessionClosed)
    assert ended.error.condition == "amqp:session:window-violation"


# --------------------------------------------------------------------------- credit


def test_a_drain_and_its_answer_leave_both_sides_with_the_same_count():
    """The credit that is granted afterwards can be used in full, and not more."""
    pair = Pair().open()
    ours, theirs = pair.link(we_send=False, credit=5)
    for turn in range(3):
        pair.server.send(theirs, b"%d" % turn, b"payload", settled=True)
        pair.client.drain(ours)
        pair.pump()
        pair.server.drained(theirs)
        _, told = pair.pump()
        between = pair.client.credit(ours), pair.server.credit(theirs)
        pair.client.grant(ours, 5)
        pair.pump()

        assert [type(each) for each in told] == [LinkDrained]
        assert between == (0, 0)
        assert pair.client.credit(ours) == pair.server.credit(theirs) == 5


def test_a_drain_without_credit_is_answered_too():
    pair = Pair().open()
    ours, theirs = pair.link(we_send=False, credit=1)
    pair.server.send(theirs, b"1", b"payload")
    pair.pump()
    pair.client.drain(ours)
    (asked,), _ = pair.pump()
    pair.server.drained(theirs)
    _, told = pair.pump()

    assert asked == LinkFlow(link=theirs, credit=0, drain=True)
    assert told == [LinkDrained(link=ours)]


def test_messages_on_their_way_while_the_peer_drains_are_counted_once():
    pair = Pair().open()
    ours, theirs = pair.link(we_send=False, credit=5)
    pair.server.send(theirs, b"1", b"payload", settled=True)
    pair.client.drain(ours)
    pair.server.feed(take_all(pair.client))
    pair.server.send(theirs, b"2", b"payload", settled=True)
    pair.server.drained(theirs)
    _, told = pair.pump()

    assert [type(each) for each in told] == [TransferReceived, TransferReceived, LinkDrained]
    assert pair.client.credit(ours) == pair.server.credit(theirs) == 0


@pytest.mark.parametrize("echo", [True, False])
def test_an_echo_is_answered_with_the_state_of_the_link(echo):
    server, link = sending_server(window=10)
    server.send(link, b"1", b"payload")
    take_all(server)
    server.feed(flow(1, 10, count=1, credit=4, echo=echo))
    written = split(take_all(server))
    told = list(server.events())

    assert told == [LinkFlow(link=link, credit=4, drain=False)]
    assert [code for code, *_ in written] == [FLOW] * echo
    for _, fields, _ in written:
        assert [each.value for each in (fields[4], fields[5], fields[6])] == [0, 1, 4]
        assert not field(fields, 9, bool, False)


def test_an_echo_of_a_session_is_answered_without_a_link():
    server, _ = sending_server(window=10)
    server.feed(flow(0, 10, echo=True))
    ((code, fields, _),) = split(take_all(server))

    assert code == FLOW
    assert len(fields) == 4


def test_credit_that_is_granted_in_turn_is_one_flow():
    pair = Pair().open()
    _, theirs = pair.link(credit=1)
    for _ in range(10):
        pair.server.grant(theirs, 2)

    assert codes(take_all(pair.server)) == [FLOW]
    assert pair.server.credit(theirs) == 21


def test_a_message_in_several_frames_counts_when_it_is_whole():
    pair = Pair().open()
    ours, theirs = pair.link(we_send=False, credit=3)
    pair.server.send(theirs, b"1", bytes(200_000))
    data = take_all(pair.server)
    pair.client.feed(data[:100_000])
    between = pair.client.credit(ours)
    pair.client.grant(ours, 1)
    pair.server.feed(take_all(pair.client))
    pair.client.feed(data[100_000:])
    pair.pump()

    assert between == 3
    assert pair.client.credit(ours) == pair.server.credit(theirs) == 3


def test_an_aborted_message_uses_up_credit_and_no_bytes():
    pair = Pair().open()
    _, theirs = pair.link(credit=3)
    more = [uint(0), uint(0), b"a", uint(0), False, True]
    pair.server.feed(frame(TRANSFER, more, b"one"))
    pair.server.feed(frame(TRANSFER, [*more[:5], False, *NULLS, None, True], b"two"))

    assert list(pair.server.events()) == []
    assert pair.server.unsettled == 0
    assert pair.server.credit(theirs) == 2


def test_a_peer_far_beyond_its_credit_loses_the_link():
    server = anonymous_server()
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]))
    server.open()
    server.feed(frame(BEGIN, [None, uint(0), uint(9), uint(9)]))
    ends = [SOURCE, TARGET, *NULLS, uint(0)]
    server.feed(frame(ATTACH, ["link", uint(0), False, *NULLS, *ends]))
    *_, attached = server.events()
    server.accept(attached.link)
    take_all(server)
    settled = [
        frame(TRANSFER, [uint(0), uint(each), b"t", uint(0), True], b"x") for each in range(20_001)
    ]
    server.feed(b"".join(settled))
    *transfers, detached = server.events()

    assert len(transfers) == 20_000
    assert detached.error.condition == "amqp:link:transfer-limit-exceeded"
    assert codes(take_all(server)) == [DETACH]


# --------------------------------------------------------------------------- dispositions


def test_deliveries_that_are_settled_in_turn_are_one_disposition():
    pair = Pair().open()
    ours, _ = pair.link(credit=100)
    sent = [pair.client.send(ours, b"%d" % each, b"payload") for each in range(100)]
    at_server, _ = pair.pump()
    for event in at_server:
        pair.server.settle(event.delivery, ACCEPTED)
    data = take_all(pair.server)
    pair.client.feed(data)

    assert len(split(data)) == 1
    assert [each.delivery for each in pair.client.events()] == sent


def test_a_range_of_any_bounds_is_looked_up_at_once():
    pair = Pair().open()
    ours, _ = pair.link(credit=100)
    sent = [pair.client.send(ours, b"%d" % each, b"payload") for each in range(3)]
    pair.pump()
    backwards = frame(0x15, [True, uint(2**32 - 1), uint(2**32 - 2), True, None])
    everything = frame(0x15, [True, uint(2**32 - 1), uint(2**31 - 2), True, None])
    pair.client.feed(backwards + everything)

    told = list(pair.client.events())

    assert [each.delivery for each in told if isinstance(each, DispositionReceived)] == sent
    assert not any(isinstance(each, ConnectionClosed) for each in told)


def test_a_range_whose_last_comes_before_its_first_settles_nothing():
    pair = Pair().open()
    ours, _ = pair.link(credit=100)
    for each in range(20):
        pair.client.send(ours, b"%d" % each, b"payload")
    pair.pump()
    pair.client.feed(frame(0x15, [True, uint(9), uint(3), True, None]))

    assert not any(isinstance(each, DispositionReceived) for each in pair.client.events())
