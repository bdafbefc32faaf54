"""AMQP 1.0, part 2, 2.5 (sessions), 2.7.2 (begin) and 2.7.8 (end)."""

import pytest

from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    LinkAttached,
    LinkDetached,
    SessionClosed,
    SessionOpened,
    TransferReceived,
)
from tests.wire.amqp.performative_fields import AMQP_HEADER, error, error_of, frame
from tests.wire.amqp.raw_peer import SOURCE, TARGET, RawPeer, client, new_link, of_kind, server
from tests.wire.amqp.specification.closed import FRAMING_ERROR, closed_with

WINDOWS = {"next_outgoing_id": 0, "incoming_window": 100, "outgoing_window": 100}
FAILED = AmqpError(condition="amqp:internal-error", description="failed")
LAST = 2**32 - 1


def opened_client(**fields: int) -> RawPeer:
    peer = client()
    peer.say(AMQP_HEADER, frame("open", **{"container_id": "raw"} | fields))
    return peer


# --------------------------------------------------------------------------- 2.5.1: establishing


def test_the_answer_to_a_begin_names_the_channel_of_the_peer() -> None:
    """2.5.1, 2.7.2: remote-channel MUST be set to the channel on which the remote sent begin."""
    peer = server().opened()
    for channel in (7, 0, 200):
        peer.session(channel=channel)

    begins = of_kind(peer.frames, "begin")
    assert [each.remote_channel for each in begins] == [7, 0, 200]
    assert len({each.channel for each in begins}) == 3


def test_a_begin_of_our_own_names_no_channel_of_the_peer() -> None:
    """2.5.1, 2.7.2: if a session is locally initiated, the remote-channel MUST NOT be set."""
    peer = opened_client()
    peer.engine.begin()
    (begin,) = peer.hear()

    assert begin.kind == "begin"
    assert begin.remote_channel is None


def test_the_channels_of_both_directions_are_independent() -> None:
    """2.4: the channel number used for incoming frames isn't necessarily that of outgoing ones."""
    peer = opened_client()
    sessions = [peer.engine.begin(), peer.engine.begin()]
    ours = [each.channel for each in of_kind(peer.hear(), "begin")]
    for theirs, channel in zip((9, 3), ours, strict=True):
        peer.send("begin", channel=theirs, remote_channel=channel, **WINDOWS)
    links = [peer.engine.attach(each, new_link(we_send=False)) for each in sessions]
    attaches = of_kind(peer.hear(), "attach")
    for theirs in (9, 3):
        fields = {"source": SOURCE, "target": TARGET, "initial_delivery_count": 0}
        peer.send("attach", channel=theirs, name="link", handle=5, role=False, **fields)
        tag = b"%d" % theirs
        peer.transfer(0, channel=theirs, handle=5, delivery_tag=tag)

    assert [each.session for each in peer.events if isinstance(each, SessionOpened)] == sessions
    received = peer.told(TransferReceived)
    assert [each.channel for each in attaches] == ours
    assert [(each.link, each.tag) for each in received] == [(links[0], b"9"), (links[1], b"3")]


def test_a_channel_is_used_by_one_session_at_a_time() -> None:
    """2.5.1: a session is assigned to an unused channel."""
    peer = server().opened()
    peer.session()
    peer.send("begin", **WINDOWS)

    closed_with(peer)


def test_an_answer_to_a_begin_that_was_not_sent_ends_the_connection() -> None:
    """2.7.2: the remote-channel is that on which the remote session sent its begin."""
    peer = server().opened()
    peer.send("begin", remote_channel=3, **WINDOWS)

    closed_with(peer)


@pytest.mark.parametrize("field", ["next_outgoing_id", "incoming_window", "outgoing_window"])
def test_a_begin_tells_its_windows(field: str) -> None:
    """2.7.2: these fields are mandatory."""
    peer = server().opened()
    peer.session()

    assert of_kind(peer.frames, "begin")[0].fields[field] is not None


def test_a_handle_beyond_the_maximum_ends_the_connection() -> None:
    """
    2.7.2, handle-max: a peer that receives a handle outside the supported range MUST close the
    connection with framing-error.
    """
    peer = server().opened()
    peer.session()
    most = of_kind(peer.frames, "begin")[0].handle_max
    assert most is not None
    peer.send(
        "attach",
        name="a",
        handle=most + 1,
        role=True,
        source=SOURCE,
        target=TARGET,
    )

    assert closed_with(peer) == FRAMING_ERROR


def test_no_handle_is_used_that_the_peer_does_not_handle() -> None:
    """2.7.2, handle-max: a peer MUST NOT attach with a handle outside its partner's range."""
    peer = opened_client()
    session = peer.engine.begin()
    peer.hear()
    peer.send("begin", remote_channel=0, handle_max=1, **WINDOWS)
    for number in range(4):
        peer.engine.attach(session, new_link(str(number)))
    peer.hear()

    assert {each.handle for each in of_kind(peer.frames, "attach")} <= {0, 1}


# --------------------------------------------------------------------------- 2.5.2 to 2.5.5: ending


def test_an_end_is_answered_by_an_end() -> None:
    """2.5.2 and 2.5.5: END RCVD; the session is unmapped once both have sent end."""
    peer = server().opened()
    session = peer.session()
    peer.link(sends=True)
    (end,) = peer.send("end")

    assert end.kind == "end"
    assert [each.session for each in peer.told(SessionClosed)] == [session]


def test_the_error_of_an_end_is_told_both_ways() -> None:
    """2.5.2: an end carries error information when relevant."""
    peer = server().opened()
    first, second = peer.session(channel=0), peer.session(channel=1)
    peer.told(SessionOpened)
    peer.send("end", error=error("amqp:not-found"))
    peer.engine.end(second, FAILED)
    frames = of_kind(peer.hear(), "end")

    closed = peer.told(SessionClosed)
    assert [(each.session, each.error.condition) for each in closed] == [(first, "amqp:not-found")]
    assert [error_of(each.error) for each in frames] == ["amqp:internal-error"]


def test_after_an_end_the_channel_can_be_used_again() -> None:
    """2.5.5, UNMAPPED: the endpoint isn't mapped to any channel."""
    peer = server().opened()
    for _ in range(3):
        peer.session()
        peer.link(sends=True)
        peer.send("end")

    assert [each.kind for each in peer.frames].count("end") == 3
    assert not peer.told(ConnectionClosed)


def test_after_an_end_with_an_error_whatever_comes_is_discarded_until_the_peers_end() -> None:
    """
    2.5.4 and 2.5.5, DISCARDING: incoming frames on the session MUST be silently discarded until
    the peer's end is received.
    """
    peer = server().opened()
    session = peer.session()
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 10)
    peer.engine.end(session, FAILED)
    peer.hear()
    peer.told(LinkAttached)
    heard = peer.transfer(0)
    heard += peer.transfer(7, handle=9)
    heard += peer.flow(handle=9, link_credit=1, delivery_count=0, echo=True)
    heard += peer.send("disposition", role=True, first=0, settled=True)
    heard += peer.send("attach", name="x", handle=1, role=True, source=SOURCE, target=TARGET)
    heard += peer.send("detach", handle=0, closed=True)
    heard += peer.send("detach", handle=9, closed=True)
    told = list(peer.events)
    heard += peer.send("end")
    peer.session()

    assert heard == []
    assert told == []
    assert peer.frames[-1].kind == "begin"


def test_two_ends_may_cross() -> None:
    """2.5.3: a simultaneous end appears to each peer as the answer to its own."""
    peer = server().opened()
    session = peer.session()
    peer.engine.end(session)
    heard = peer.send("end")

    assert [each.kind for each in heard] == ["end"]
    assert not peer.told(ConnectionClosed)


def test_frames_may_come_after_our_end_until_the_peers_end() -> None:
    """2.5.5, END SENT: the endpoint may receive frames, but can't send them."""
    peer = server().opened()
    session = peer.session()
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 10)
    peer.engine.end(session)
    peer.hear()
    heard = peer.transfer(0)
    heard += peer.flow()
    heard += peer.send("detach", handle=0, closed=True)
    heard += peer.send("end")

    assert heard == []
    assert not peer.told(ConnectionClosed)


def test_nothing_is_sent_in_a_session_after_its_end() -> None:
    """2.5.5, END SENT: the endpoint is no longer assigned an outgoing channel number."""
    peer = server().opened()
    session = peer.session()
    attached = peer.link(sends=False)
    peer.credit(10)
    peer.engine.end(session)
    peer.engine.send(attached.link, b"1", b"payload")
    peer.engine.detach(attached.link)
    peer.engine.drained(attached.link)

    assert [each.kind for each in peer.hear()] == ["end"]


def test_the_end_of_a_session_is_that_of_its_links() -> None:
    """2.5.2: sessions are explicitly ended; 2.6: a link endpoint is associated with a session."""
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=False)
    peer.link(sends=True, handle=1)
    peer.told(LinkAttached)
    peer.send("end")
    kinds = [type(each) for each in peer.events]

    assert kinds == [LinkDetached, LinkDetached, SessionClosed]
    assert peer.engine.send(attached.link, b"1", b"payload") is None


@pytest.mark.parametrize("kind", ["attach", "flow", "transfer", "disposition", "detach", "end"])
def test_a_frame_on_a_channel_without_a_session_ends_the_connection(kind: str) -> None:
    """2.5.5, UNMAPPED: in this state an endpoint can't send or receive frames."""
    fields = {
        "attach": {"name": "a", "handle": 0, "role": True},
        "flow": WINDOWS,
        "transfer": {"handle": 0, "delivery_id": 0, "delivery_tag": b"t", "message_format": 0},
        "disposition": {"role": True, "first": 0},
        "detach": {"handle": 0},
        "end": {},
    }
    peer = server().opened()
    peer.session(channel=1)
    peer.send(kind, **fields[kind])

    closed_with(peer)


# --------------------------------------------------------------------------- 2.5.6: flow control


def sending(window: int, *, credit: int = 1000) -> tuple[RawPeer, int]:
    """A peer that receives, with this incoming window; and the engine's first transfer-id."""
    peer = server().opened(max_frame_size=512)
    peer.session(incoming_window=window)
    attached = peer.link(sends=False)
    first = of_kind(peer.frames, "begin")[0].next_outgoing_id
    windows = {"next_incoming_id": first, "incoming_window": window}
    peer.credit(credit, **windows)
    for number in range(10):
        peer.engine.send(attached.link, b"%d" % number, b"%d" % number)
    return peer, first


@pytest.mark.parametrize("window", [0, 1, 3, 10, 50])
def test_no_more_transfers_are_sent_than_the_window_of_the_peer_allows(window: int) -> None:
    """2.5.6: remote-incoming-window MUST be decremented after every transfer that is sent."""
    peer, _ = sending(window)

    assert len(of_kind(peer.hear(), "transfer")) == min(window, 10)


def test_each_frame_of_a_large_message_takes_a_place_in_the_window() -> None:
    """2.5.6: each transfer frame has an implicit transfer-id."""
    peer, first = sending(0)
    attached = peer.link(sends=False, handle=1)
    peer.engine.send(attached.link, b"large", bytes(3000))
    heard = peer.credit(1, handle=1, next_incoming_id=first, incoming_window=12, delivery_count=0)

    assert len(of_kind(heard, "transfer")) == 12


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_the_window_is_computed_from_what_the_peer_has_received(behind: int) -> None:
    """2.5.6: next-incoming-id(flow) + incoming-window(flow) - next-outgoing-id(endpoint)."""
    peer, first = sending(3)
    peer.hear()
    heard = peer.flow(next_incoming_id=(first + 3 - behind) % 2**32, incoming_window=3)

    assert len(of_kind(heard, "transfer")) == 3 - behind


def test_a_flow_before_any_begin_was_seen_counts_from_the_first_id() -> None:
    """2.5.6: without next-incoming-id, initial-outgoing-id is taken in its place."""
    peer, _ = sending(3)
    peer.hear()
    none = peer.flow(next_incoming_id=None, incoming_window=3)
    two = peer.flow(next_incoming_id=None, incoming_window=5)

    assert (len(of_kind(none, "transfer")), len(of_kind(two, "transfer"))) == (0, 2)


def test_the_window_may_be_closed_again() -> None:
    """2.5.6: the window is recomputed when informed of the remote session endpoint's state."""
    peer, first = sending(0)
    assert len(of_kind(peer.hear(), "transfer")) == 0
    two = peer.flow(next_incoming_id=first, incoming_window=2)
    closed = peer.flow(next_incoming_id=(first + 2) % 2**32, incoming_window=0)
    late = peer.flow(next_incoming_id=(first + 1) % 2**32, incoming_window=1)
    rest = peer.flow(next_incoming_id=(first + 2) % 2**32, incoming_window=100)

    assert [len(of_kind(each, "transfer")) for each in (two, closed, late, rest)] == [2, 0, 0, 8]


@pytest.mark.parametrize("first", [0, 1, 5000, LAST - 3, LAST])
def test_transfers_are_counted_from_where_the_peer_begins_and_around_the_end(first: int) -> None:
    """2.5.6: next-outgoing-id may be initialized to an arbitrary value, and follows RFC 1982."""
    peer = server().opened()
    peer.session(next_outgoing_id=first)
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 100)
    peer.hear()
    for number in range(7):
        peer.transfer((first + number) % 2**32)
    peer.engine.grant(attached.link, 100)
    (flow,) = peer.hear()

    assert len(peer.told(TransferReceived)) == 7
    assert flow.next_incoming_id == (first + 7) % 2**32


def test_the_peer_says_which_transfer_is_next() -> None:
    """2.5.6: on a flow, next-incoming-id MUST be updated from the frame's next-outgoing-id."""
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=True)
    peer.flow(next_outgoing_id=40)
    peer.engine.grant(attached.link, 100)
    (flow,) = peer.hear()

    assert flow.next_incoming_id == 40


def test_a_window_that_was_used_is_opened_again() -> None:
    """2.5.6: the peer MUST be able to go on, since it may not send beyond our window."""
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 10_000)
    frames = list(peer.frames) + peer.hear()
    begin = of_kind(frames, "begin")[0]
    limit = begin.incoming_window
    for number in range(6000):
        assert number < limit, "the window was used up, and is not renewed"
        for flow in of_kind(peer.transfer(number, settled=True), "flow"):
            limit = flow.next_incoming_id + flow.incoming_window

    assert len(peer.told(TransferReceived)) == 6000


@pytest.mark.parametrize("client_begins", [False, True])
def test_a_flow_says_what_was_received_once_there_is_a_begin(*, client_begins: bool) -> None:
    """2.7.4: next-incoming-id MUST be set if and only if the peer's begin was received."""
    if not client_begins:
        peer = server().opened()
        peer.session(next_outgoing_id=5)
        attached = peer.link(sends=True)
        peer.engine.grant(attached.link, 1)
        (flow,) = of_kind(peer.hear(), "flow")
        assert flow.next_incoming_id == 5
        return
    peer = opened_client()
    link = peer.engine.attach(peer.engine.begin(), new_link(we_send=False))
    assert link is not None
    peer.engine.grant(link, 1)
    early = of_kind(peer.hear(), "flow")
    peer.send("begin", remote_channel=0, **WINDOWS | {"next_outgoing_id": 5})
    peer.engine.grant(link, 1)
    late = of_kind(peer.hear(), "flow")

    assert {each.next_incoming_id for each in early} <= {None}
    assert {each.next_incoming_id for each in late} == {5}


def test_a_flow_of_the_session_alone_has_no_fields_of_a_link() -> None:
    """2.7.4: if handle isn't set, delivery-count, link-credit, available and drain MUST NOT be."""
    peer = server().opened()
    peer.session()
    heard = peer.flow(echo=True)
    for flow in of_kind(heard, "flow"):
        names = ("handle", "delivery_count", "link_credit", "available")
        assert [flow.fields[each] for each in names] == [None] * 4
        assert not flow.drain


def lingering_link(peer: RawPeer, **fields: int) -> LinkAttached:
    """A link whose detach the engine's owner answers."""
    return peer.link(
        sends=False, accept=lambda told: peer.engine.accept(told.link, lingers=True), **fields
    )


def test_an_end_waits_for_the_detaches_of_links_that_linger() -> None:
    """2.6.6, 2.7.8: a detach is answered by a detach, also where an end comes right behind it."""
    # BaseLinkHandler of azure-servicebus 1.2.18 for Java writes both at once; CoreMessageReceiver
    # then waits a minute for the detach.
    peer = server().opened()
    session = peer.session()
    first, second = lingering_link(peer), lingering_link(peer, handle=1)
    other = peer.link(sends=True, handle=2)
    peer.told(LinkAttached)

    ends = frame("detach", handle=0, closed=True), frame("detach", handle=1), frame("end")
    at_once = peer.say(*ends)
    told = list(peer.events)
    peer.engine.answer_detach(second.link)
    then = peer.hear()
    peer.engine.answer_detach(first.link)

    gone = [each.link for each in told if isinstance(each, LinkDetached)]
    assert gone == [first.link, second.link, other.link]
    assert told[-1] == SessionClosed(session=session, error=None)
    assert at_once == []
    assert [(each.kind, each.handle, each.closed) for each in then] == [("detach", 1, None)]
    assert [each.kind for each in peer.hear()] == ["detach", "end"]


def test_an_end_that_waits_holds_up_no_other_session() -> None:
    """2.5.5, END RCVD: the peer has no channel of that session any more."""
    peer = server().opened(channel_max=0)
    peer.session()
    attached = lingering_link(peer)
    peer.say(frame("detach", handle=0, closed=True), frame("end"))

    written = peer.send("begin", **WINDOWS)
    peer.engine.answer_detach(attached.link)

    assert [each.kind for each in written] == ["detach", "end", "begin"]
    assert peer.hear() == []
    assert peer.told(ConnectionClosed) == []


def test_nothing_follows_a_close_although_an_end_has_waited() -> None:
    """2.7.9: a close is the last frame of a connection."""
    peer = server().opened()
    peer.session()
    attached = lingering_link(peer)
    peer.say(frame("detach", handle=0, closed=True), frame("end"))

    peer.say(b"\0\0\0\x08\x01\0\0\0")  # no AMQP frame: the engine closes
    peer.engine.answer_detach(attached.link)

    assert peer.hear() == []
