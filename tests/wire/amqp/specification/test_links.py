"""AMQP 1.0, part 2, 2.6.1 to 2.6.10 (links), 2.7.3 (attach), 2.7.4 (flow) and 2.7.7 (detach)."""

import pytest

from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    NewLink,
    ReceiverSettles,
    SenderSettles,
    SessionClosed,
    Terminus,
    TransferReceived,
)
from tests.wire.amqp.performative_fields import AMQP_HEADER, Frame, error, error_of, frame
from tests.wire.amqp.raw_peer import SOURCE, TARGET, RawPeer, client, new_link, of_kind, server
from tests.wire.amqp.specification.closed import closed_with, ended_with

WINDOWS = {"next_outgoing_id": 0, "incoming_window": 100, "outgoing_window": 100}
TERMINI = {"source": SOURCE, "target": TARGET}
FAILED = AmqpError(condition="amqp:internal-error", description="failed")
LAST = 2**32 - 1


@pytest.fixture
def peer() -> RawPeer:
    """A client of the engine, with a session."""
    peer = server().opened()
    peer.session()
    peer.events.clear()
    return peer


def client_with(new: NewLink, **answer: object) -> tuple[RawPeer, int]:
    """A server of an engine that has attached a link, and the link; the peer has answered."""
    peer = client()
    peer.say(AMQP_HEADER, frame("open", container_id="raw"))
    link = peer.engine.attach(peer.engine.begin(), new)
    peer.hear()
    peer.send("begin", remote_channel=0, **WINDOWS)
    fields = {"name": new.name, "handle": 0, "role": new.we_send} | TERMINI | answer
    peer.send("attach", **fields)
    assert link is not None
    return peer, link


def messages(frames: list[Frame]) -> int:
    return len(of_kind(frames, "transfer"))


# --------------------------------------------------------------------------- 2.6.1, 2.6.2: names


def test_the_answer_to_an_attach_has_its_name_and_the_other_role(peer: RawPeer) -> None:
    """2.6.1, 2.6.3: the remote endpoint creates a corresponding link endpoint."""
    peer.link(sends=True, handle=3, name="up")
    peer.link(sends=False, handle=5, name="down")

    answers = [(each.fields["name"], each.role) for each in of_kind(peer.frames, "attach")]
    assert answers == [("up", True), ("down", False)]


def test_a_name_may_be_used_once_in_each_direction(peer: RawPeer) -> None:
    """2.6.1: names MUST uniquely identify a link amongst all links of the same direction."""
    up = peer.link(sends=True, handle=0, name="same")
    down = peer.link(sends=False, handle=1, name="same")
    peer.engine.grant(up.link, 1)
    peer.credit(1, handle=1)
    peer.transfer(0, handle=0)
    peer.engine.send(down.link, b"t", b"payload")
    transfers = of_kind(peer.hear(), "transfer")

    assert [each.link for each in peer.told(TransferReceived)] == [up.link]
    assert len(transfers) == 1


def test_the_handles_of_both_directions_are_independent(peer: RawPeer) -> None:
    """2.6.2: the two endpoints are not required to use the same handle."""
    attached = [peer.link(sends=True, handle=each) for each in (9, 4, 1000)]
    ours = {each.fields["name"]: each.handle for each in of_kind(peer.frames, "attach")}
    peer.told(LinkAttached)
    peer.send("detach", handle=4, closed=True)
    (detach,) = of_kind(peer.frames, "detach")

    assert len(set(ours.values())) == 3
    assert [each.link for each in peer.told(LinkDetached)] == [attached[1].link]
    assert detach.handle == ours["link 4"]


def test_a_handle_in_use_ends_the_connection(peer: RawPeer) -> None:
    """2.7.3, handle: MUST be responded to with an immediate close with handle-in-use."""
    peer.link(sends=True)
    peer.events.clear()
    peer.send("attach", name="other", handle=0, role=True, **TERMINI)

    assert closed_with(peer) == "amqp:session:handle-in-use"


def test_the_handles_of_each_session_are_its_own(peer: RawPeer) -> None:
    """2.6.2: a handle is assigned at a session endpoint."""
    peer.session(channel=1)
    first = peer.link(sends=True, handle=0, channel=0)
    second = peer.link(sends=True, handle=0, channel=1)
    for each in (first, second):
        peer.engine.grant(each.link, 1)
    peer.transfer(0, channel=1)

    assert [each.link for each in peer.told(TransferReceived)] == [second.link]


def test_a_handle_is_free_after_both_have_detached(peer: RawPeer) -> None:
    """2.6.2: the handle remains in use until the link is detached."""
    for number in range(3):
        peer.link(sends=number % 2 == 0, name=f"{number}")
        peer.send("detach", handle=0, closed=True)

    assert [each.kind for each in peer.frames].count("detach") == 3
    assert not peer.told(ConnectionClosed)


# --------------------------------------------------------------------------- 2.6.3: establishing


def test_a_refused_link_has_no_terminus_and_is_detached_at_once(peer: RawPeer) -> None:
    """2.6.3: without a local terminus, the session endpoint MUST immediately detach the link."""
    for handle, sends in enumerate((True, False)):
        peer.link(
            sends=sends,
            handle=handle,
            accept=lambda attached: peer.engine.refuse(attached.link, FAILED),
        )
    frames = [each for each in peer.frames if each.kind in ("attach", "detach")]

    assert [each.kind for each in frames] == ["attach", "detach"] * 2
    assert frames[0].target is None
    assert frames[2].source is None
    assert [error_of(each.error) for each in frames[1::2]] == ["amqp:internal-error"] * 2


def test_the_actual_properties_of_a_terminus_are_told(peer: RawPeer) -> None:
    """2.6.3: the endpoint MUST report the actual properties of the terminus as created."""
    peer.link(
        sends=False,
        accept=lambda attached: peer.engine.accept(
            attached.link, address="created", filters={"a": 1}, max_message_size=1000
        ),
    )
    (attach,) = of_kind(peer.frames, "attach")

    assert attach.source.value[0] == "created"
    assert attach.max_message_size == 1000


def test_a_sender_tells_where_its_count_begins(peer: RawPeer) -> None:
    """2.7.3, initial-delivery-count: MUST NOT be null if the role is sender."""
    peer.link(sends=False)
    other, _ = client_with(new_link())
    attaches = of_kind(peer.frames + other.frames, "attach")

    assert [each.role for each in attaches] == [False, False]
    assert all(each.initial_delivery_count is not None for each in attaches)


@pytest.mark.parametrize("modes", [(0, 0), (1, 0), (2, 1), (0, 1)])
def test_the_settle_modes_are_negotiated(peer: RawPeer, modes: tuple[int, int]) -> None:
    """2.7.3: each end tells the mode that it uses, and the one that it desires of the other."""
    attached = peer.link(sends=False, snd_settle_mode=modes[0], rcv_settle_mode=modes[1])
    (attach,) = of_kind(peer.frames, "attach")

    assert (attached.sender_settles, attached.receiver_settles) == modes
    assert (attach.snd_settle_mode, attach.rcv_settle_mode or 0) == modes


def test_the_settle_modes_have_defaults(peer: RawPeer) -> None:
    """2.7.3: snd-settle-mode is mixed, and rcv-settle-mode first, if they aren't set."""
    attached = peer.link(sends=True)

    assert attached.sender_settles is SenderSettles.MIXED
    assert attached.receiver_settles is ReceiverSettles.FIRST


def test_the_unsettled_map_of_a_new_link_is_empty(peer: RawPeer) -> None:
    """2.7.3, unsettled: it MUST NOT contain null values, and MUST be null when reattaching."""
    for name in ("a", "b", "a"):
        peer.link(sends=True, name=name)
        peer.send("detach", handle=0, closed=False)

    assert {each.unsettled for each in of_kind(peer.frames, "attach")} == {None}


# --------------------------------------------------------------------------- 2.6.4 to 2.6.6: ending


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_in_kind(peer: RawPeer, *, closed: bool) -> None:
    """2.6.6: the partner replies with its own detach with the closed flag set to true."""
    attached = peer.link(sends=True)
    (detach,) = peer.send("detach", handle=0, closed=closed)

    assert detach.kind == "detach"
    assert bool(detach.closed) is closed
    assert peer.told(LinkDetached) == [LinkDetached(link=attached.link, closed=closed, error=None)]


@pytest.mark.parametrize("closed", [True, False])
def test_an_endpoint_that_unmaps_a_handle_says_so(peer: RawPeer, *, closed: bool) -> None:
    """2.6.4: the endpoint MUST send a detach to inform the remote peer."""
    attached = peer.link(sends=True)
    peer.engine.detach(attached.link, closed=closed)
    (detach,) = peer.hear()
    answered = peer.send("detach", handle=0, closed=closed)

    assert (detach.kind, bool(detach.closed)) == ("detach", closed)
    assert answered == []


def test_an_error_of_a_link_is_told_in_its_detach(peer: RawPeer) -> None:
    """2.6.5: the endpoint MUST be detached with error information in the error field."""
    attached = peer.link(sends=True)
    peer.engine.detach(attached.link, FAILED)
    (detach,) = peer.hear()

    assert error_of(detach.error) == "amqp:internal-error"


def test_the_error_of_the_peers_detach_is_told(peer: RawPeer) -> None:
    """2.7.7: the value of the field should contain details on the cause of the error."""
    peer.link(sends=True)
    peer.send("detach", handle=0, closed=True, error=error("amqp:link:detach-forced", "bye"))
    (told,) = peer.told(LinkDetached)

    assert (told.error.condition, told.error.description) == ("amqp:link:detach-forced", "bye")


def test_transfers_that_were_under_way_to_a_link_with_an_error_are_dropped(peer: RawPeer) -> None:
    """
    2.6.5 wants the session ended (errant-link) if anything but a detach arrives then. Here it
    isn't: the peer may have sent it before it could know, and clients do. Nothing of it is told.
    """
    attached = peer.link(sends=True)
    other = peer.link(sends=True, handle=1)
    for each in (attached, other):
        peer.engine.grant(each.link, 10)
    peer.engine.detach(attached.link, FAILED)
    peer.told(LinkAttached)
    peer.transfer(0)
    peer.transfer(1, more=True)
    peer.transfer(1)
    peer.credit(1)
    peer.send("detach", handle=0, closed=True)
    peer.transfer(2, handle=1)

    told = peer.told(TransferReceived)
    assert [each.link for each in told] == [other.link]
    assert not of_kind(peer.frames, "end", "close")


def test_two_closing_detaches_may_cross(peer: RawPeer) -> None:
    """2.6.6: a link is closed once both have sent their detach, in any order."""
    attached = peer.link(sends=True)
    peer.engine.detach(attached.link)
    heard = peer.send("detach", handle=0, closed=True)
    peer.link(sends=True)

    assert [each.kind for each in heard] == ["detach"]


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("handle", [0, 5])
def test_a_detach_that_crossed_our_close_is_followed_by_the_peers_own(
    peer: RawPeer, *, sends: bool, handle: int
) -> None:
    """
    2.6.6: a partner that has detached without closing while we closed MUST reattach, on any handle,
    and then send a closing detach. Both are answered, and the link is gone.
    """
    attached = peer.link(sends=sends, handle=0, name="crossed")
    peer.engine.detach(attached.link)
    peer.hear()
    count = {"initial_delivery_count": 0} if sends else {}
    attach = {"name": "crossed", "handle": handle, "role": not sends, **TERMINI, **count}

    heard = peer.say(
        frame("detach", handle=0, closed=False),
        frame("attach", **attach),
        frame("detach", handle=handle, closed=True),
    )

    assert [each.kind for each in heard] == ["attach", "detach"]
    assert heard[1].closed is True
    (again,) = peer.told(LinkDetached)
    assert again.link != attached.link
    assert peer.link(sends=sends, handle=0, name="crossed").link > again.link


def test_a_detach_that_crossed_our_close_may_be_the_last(peer: RawPeer) -> None:
    """2.6.6: what a partner that detached without closing owes us is never waited for."""
    attached = peer.link(sends=True)
    peer.engine.detach(attached.link)
    heard = peer.hear() + peer.send("detach", handle=0, closed=False)
    peer.link(sends=True)

    assert [each.kind for each in heard] == ["detach"]
    assert peer.told(LinkDetached) == []


def test_nothing_is_sent_on_a_link_after_its_detach(peer: RawPeer) -> None:
    """2.6.4: the handle is no longer attached to the link endpoint."""
    attached = peer.link(sends=False)
    peer.credit(10)
    peer.engine.detach(attached.link)
    peer.engine.send(attached.link, b"1", b"payload")
    peer.engine.drained(attached.link)
    heard = peer.credit(10)
    heard += peer.send("detach", handle=0, closed=True)

    assert [each.kind for each in heard] == ["detach"]


@pytest.mark.parametrize("kind", ["flow", "transfer", "detach"])
def test_a_handle_that_is_not_attached_is_an_error_of_the_session(peer: RawPeer, kind: str) -> None:
    """
    2.7.4, handle: if it isn't that of an attached link, the recipient MUST respond by ending the
    session with unattached-handle; 2.8.17 says so of every frame but an attach.
    """
    fields: dict[str, dict[str, object]] = {
        "flow": {**WINDOWS, "next_incoming_id": 0, "delivery_count": 0, "link_credit": 1},
        "transfer": {"delivery_id": 0, "delivery_tag": b"t", "message_format": 0},
        "detach": {"closed": True},
    }
    peer.link(sends=True)
    peer.told(LinkAttached)
    peer.send(kind, handle=7, **fields[kind])
    peer.send("end")

    assert [type(each) for each in peer.events] == [LinkDetached, SessionClosed]
    assert ended_with(peer) == "amqp:session:unattached-handle"


# --------------------------------------------------------------------------- 2.6.7: flow control


def test_a_link_begins_without_credit(peer: RawPeer) -> None:
    """2.6.7: link-credit and available are initialized to zero."""
    attached = peer.link(sends=False)
    peer.engine.send(attached.link, b"1", b"payload")

    assert messages(peer.hear()) == 0
    assert messages(peer.credit(1)) == 1


@pytest.mark.parametrize("credit", [0, 1, 5, 9, 10, 11])
def test_no_more_messages_are_sent_than_there_is_credit(peer: RawPeer, credit: int) -> None:
    """2.6.7: if the link-credit is less than or equal to zero, it is illegal to send more."""
    attached = peer.link(sends=False)
    peer.credit(credit)
    for number in range(10):
        peer.engine.send(attached.link, b"%d" % number, b"payload", settled=number % 2 == 0)

    assert messages(peer.hear()) == min(credit, 10)
    assert max(peer.engine.credit(attached.link), 0) == max(credit - 10, 0)


@pytest.mark.parametrize(("seen", "credit", "more"), [(5, 5, 5), (3, 5, 3), (0, 5, 0), (0, 6, 1)])
def test_credit_counts_from_what_the_receiver_has_seen(
    peer: RawPeer, seen: int, credit: int, more: int
) -> None:
    """2.6.7: link-credit(snd) := delivery-count(rcv) + link-credit(rcv) - delivery-count(snd)."""
    attached = peer.link(sends=False)
    start = of_kind(peer.frames, "attach")[0].initial_delivery_count
    peer.credit(5, delivery_count=start)
    for number in range(12):
        peer.engine.send(attached.link, b"%d" % number, b"payload")
    peer.hear()
    heard = peer.credit(credit, delivery_count=(start + seen) % 2**32, next_incoming_id=seen)

    assert messages(heard) == more


def test_a_receiver_that_knows_no_count_counts_from_the_first(peer: RawPeer) -> None:
    """2.6.7: if delivery-count is unspecified, the sender MUST assume its first one."""
    attached = peer.link(sends=False)
    peer.credit(3, delivery_count=None)
    for number in range(12):
        peer.engine.send(attached.link, b"%d" % number, b"payload")
    first = messages(peer.hear())
    second = messages(peer.credit(5, delivery_count=None))

    assert (first, second) == (3, 2)


@pytest.mark.parametrize("drain", [False, True])
def test_credit_that_is_taken_back_is_not_used(peer: RawPeer, *, drain: bool) -> None:
    """2.6.10: stopping a link is accomplished by a link-credit of zero."""
    attached = peer.link(sends=False)
    peer.credit(5)
    peer.credit(0, drain=drain)
    peer.engine.send(attached.link, b"1", b"payload")

    assert messages(peer.hear()) == 0
    assert messages(peer.credit(1)) == 1


def test_a_limit_behind_what_was_sent_is_no_credit(peer: RawPeer) -> None:
    """2.6.7: the credit may be less than zero, when it was reduced while transfers were sent."""
    attached = peer.link(sends=False)
    peer.credit(5)
    for number in range(8):
        peer.engine.send(attached.link, b"%d" % number, b"payload")
    peer.hear()
    stopped = messages(peer.credit(2, delivery_count=1))
    going_on = messages(peer.credit(7, delivery_count=0))

    assert (stopped, going_on) == (0, 2)


@pytest.mark.parametrize("used", [0, 2, 5])
def test_a_drained_sender_uses_all_credit_and_says_so(peer: RawPeer, used: int) -> None:
    """
    2.6.7: if drain is set and there are no messages, the sender MUST advance its delivery-count
    until link-credit is zero, and send its updated flow state.
    """
    attached = peer.link(sends=False)
    start = of_kind(peer.frames, "attach")[0].initial_delivery_count
    for number in range(used):
        peer.engine.send(attached.link, b"%d" % number, b"payload")
    peer.told(LinkFlow)
    peer.credit(5, drain=True, delivery_count=start)
    asked = peer.told(LinkFlow)
    peer.engine.drained(attached.link)
    peer.hear()
    sent = messages(peer.frames)
    flows = [each for each in of_kind(peer.frames, "flow") if each.handle is not None]

    assert (sent, peer.engine.credit(attached.link)) == (used, 0)
    assert [(each.drain, each.credit) for each in asked][-1:] == [(True, 5 - used)]
    if used < 5:
        assert flows[-1].delivery_count == (start + 5) % 2**32
        assert flows[-1].link_credit == 0
        assert flows[-1].drain is True


def test_a_drained_receiver_knows_what_was_given_back(peer: RawPeer) -> None:
    """2.6.7, 2.6.8: once the credit is consumed, the receiver can tell whether a message came."""
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 5)
    peer.engine.drain(attached.link)
    flow = of_kind(peer.hear(), "flow")[-1]
    peer.transfer(0)
    peer.told(TransferReceived)
    fields = {"next_outgoing_id": 1, "delivery_count": 5, "link_credit": 0, "drain": True}
    peer.flow(handle=0, **fields)
    drained = peer.told(LinkDrained)
    peer.engine.grant(attached.link, 2)
    again = of_kind(peer.hear(), "flow")[-1]

    assert (flow.drain, flow.link_credit) == (True, 5)
    assert [each.link for each in drained] == [attached.link]
    assert (again.delivery_count, again.link_credit, bool(again.drain)) == (5, 2, False)


@pytest.mark.parametrize("start", [0, 7, LAST - 1, LAST])
def test_a_receiver_counts_from_where_the_sender_begins_and_around_the_end(
    peer: RawPeer, start: int
) -> None:
    """2.6.7: delivery-count follows RFC 1982; the receiver initializes it from the attach."""
    attached = peer.link(sends=True, initial_delivery_count=start)
    peer.engine.grant(attached.link, 10)
    early = of_kind(peer.hear(), "flow")[-1]
    for number in range(4):
        peer.transfer(number)
    peer.engine.grant(attached.link, 1)
    late = of_kind(peer.hear(), "flow")[-1]

    assert (early.delivery_count, early.link_credit) == (start, 10)
    assert (late.delivery_count, late.link_credit) == ((start + 4) % 2**32, 7)


def test_a_receiver_tells_no_count_before_it_has_seen_the_attach() -> None:
    """2.7.4: a receiver that hasn't seen the initial attach MUST NOT set delivery-count."""
    peer = client()
    peer.say(AMQP_HEADER, frame("open", container_id="raw"))
    session = peer.engine.begin()
    peer.hear()
    peer.send("begin", remote_channel=0, **WINDOWS)
    link = peer.engine.attach(session, new_link(we_send=False))
    assert link is not None
    peer.engine.grant(link, 5)
    early = of_kind(peer.hear(), "flow")
    fields = {"name": "link", "handle": 0, "role": False, "initial_delivery_count": 9}
    peer.send("attach", **fields, **TERMINI)
    peer.engine.grant(link, 1)
    late = of_kind(peer.hear(), "flow")

    assert [each.delivery_count for each in early] == [None] * len(early)
    assert (late[-1].delivery_count, late[-1].link_credit) == (9, 6)


def test_messages_of_several_frames_count_once(peer: RawPeer) -> None:
    """2.6.7: delivery-count is incremented whenever a message is sent or received."""
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 5)
    peer.transfer(0, more=True)
    peer.transfer(0, more=True)
    peer.transfer(0)
    peer.engine.grant(attached.link, 1)
    flow = of_kind(peer.hear(), "flow")[-1]

    assert (flow.delivery_count, flow.link_credit) == (1, 5)


def test_more_messages_than_there_is_credit_may_be_taken(peer: RawPeer) -> None:
    """2.6.7: the receiver MAY handle excess messages normally. One SDK ignores its credit."""
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 2)
    for number in range(4):
        peer.transfer(number)

    assert len(peer.told(TransferReceived)) == 4
    assert peer.engine.credit(attached.link) <= 0


def test_a_sender_that_tells_its_flow_tells_its_count(peer: RawPeer) -> None:
    """2.7.4: flow state from the sender MUST have the current delivery-count of the endpoint."""
    attached = peer.link(sends=False)
    start = of_kind(peer.frames, "attach")[0].initial_delivery_count
    peer.credit(5, delivery_count=start)
    peer.engine.send(attached.link, b"1", b"payload")
    peer.hear()
    heard = peer.credit(4, delivery_count=(start + 1) % 2**32, next_incoming_id=1, echo=True)

    for flow in of_kind(heard, "flow"):
        if flow.handle is not None:
            assert (flow.delivery_count, flow.link_credit) == ((start + 1) % 2**32, 4)


def test_a_sender_is_not_believed_about_credit(peer: RawPeer) -> None:
    """2.6.7: only the receiver can independently choose a value for link-credit."""
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 3)
    peer.flow(handle=0, delivery_count=0, link_credit=10_000)
    peer.engine.grant(attached.link, 1)
    flow = of_kind(peer.hear(), "flow")[-1]

    assert flow.link_credit == 4


def test_a_client_whose_attach_is_refused_is_told_so() -> None:
    """2.6.3: if the peer doesn't wish to create a terminus, the local terminus is null."""
    peer, link = client_with(new_link(), source=SOURCE, target=None)
    peer.send("detach", handle=0, closed=True, error=error("amqp:not-found"))
    answers = [each for each in peer.events if isinstance(each, LinkAttached | LinkDetached)]

    assert [each.link for each in answers] == [link, link]
    assert answers[0].target is None
    assert of_kind(peer.frames, "detach")


def test_the_link_is_between_what_each_end_describes() -> None:
    """2.6.3: the source is as described by the sender, the target as described by the receiver."""
    peer, _ = client_with(
        new_link(we_send=False, source=Terminus(address="wish")), initial_delivery_count=0
    )
    (attached,) = peer.told(LinkAttached)

    assert attached.source.address == "source"


def test_dispositions_of_a_link_without_error_may_come_late(peer: RawPeer) -> None:
    """
    2.7.6 wants the state of deliveries of a detached link kept. Here they are void with the link,
    which holds no terminus; what refers to them is dropped, and the session goes on.
    """
    attached = peer.link(sends=False)
    peer.credit(5)
    peer.engine.send(attached.link, b"1", b"payload")
    peer.hear()
    peer.engine.detach(attached.link, closed=False)
    peer.hear()
    peer.send("disposition", role=True, first=0, settled=True)
    peer.send("detach", handle=0, closed=False)

    assert not peer.told(DispositionReceived)
    assert not of_kind(peer.frames, "end", "close")
