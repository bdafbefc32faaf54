"""AMQP 1.0, part 2, 2.6.11 to 2.6.14 (messages), 2.7.5 (transfer) and 2.7.6 (disposition)."""

import pytest

from gateway.domain.message import symbol
from gateway.wire.amqp import events
from gateway.wire.amqp.events import (
    AmqpError,
    DispositionReceived,
    LinkAttached,
    Modified,
    OtherState,
    Rejected,
    TransferReceived,
)
from gateway.wire.amqp.performatives import described
from tests.wire.amqp.performative_fields import Frame, error, error_of, frame
from tests.wire.amqp.raw_peer import ACCEPTED, RawPeer, of_kind, server
from tests.wire.amqp.specification.closed import closed_with

RELEASED = described(0x26, [])
LAST = 2**32 - 1


@pytest.fixture
def peer() -> RawPeer:
    """A client of the engine, with a session; frames are small in either direction."""
    peer = server(max_frame_size=512).opened(max_frame_size=512)
    peer.session()
    peer.events.clear()
    return peer


@pytest.fixture
def receiving(peer: RawPeer) -> LinkAttached:
    """A link on which the peer sends."""
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 100)
    peer.hear()
    return attached


@pytest.fixture
def sending(peer: RawPeer) -> LinkAttached:
    """A link on which the engine sends."""
    attached = peer.link(sends=False)
    peer.credit(100)
    peer.told(LinkAttached)
    return attached


def received(peer: RawPeer) -> list[tuple[bytes, bytes, bool]]:
    return [(each.tag, each.payload, each.settled) for each in peer.told(TransferReceived)]


def broken(peer: RawPeer) -> bool:
    """True if the session or the connection was ended with an error."""
    ends = of_kind(peer.frames, "end", "close")
    return any(error_of(each.error) is not None for each in ends)


# --------------------------------------------------------------------------- what the engine sends


def test_the_first_transfer_of_a_delivery_has_id_tag_and_format(
    peer: RawPeer, sending: LinkAttached
) -> None:
    """
    2.7.5: delivery-id MUST be supplied on the first transfer; delivery-tag and message-format MUST
    be specified there.
    """
    for number, size in enumerate((10, 2000, 0)):
        peer.engine.send(sending.link, b"%d" % number, bytes(size), message_format=number)
    transfers = of_kind(peer.hear(), "transfer")
    firsts, more = [], False
    for each in transfers:
        if not more:
            firsts.append(each)
        more = bool(each.more)

    assert [each.delivery_tag for each in firsts] == [b"0", b"1", b"2"]
    assert [each.message_format for each in firsts] == [0, 1, 2]
    assert [each.delivery_id - firsts[0].delivery_id for each in firsts] == [0, 1, 2]


def test_all_transfers_of_a_delivery_have_its_id_or_none(
    peer: RawPeer, sending: LinkAttached
) -> None:
    """2.7.5: it is an error if the id on a continuation differs from that on the first."""
    peer.engine.send(sending.link, b"tag", bytes(5000), message_format=5)
    first, *rest = of_kind(peer.hear(), "transfer")

    assert len(rest) >= 9
    assert {each.delivery_id for each in rest} <= {None, first.delivery_id}
    assert {each.delivery_tag for each in rest} <= {None, b"tag"}
    assert [bool(each.more) for each in (first, *rest)] == [True] * len(rest) + [False]


def test_messages_of_one_link_are_not_interleaved(peer: RawPeer, sending: LinkAttached) -> None:
    """2.6.14: messages transferred along a single link MUST NOT be interleaved."""
    other = peer.link(sends=False, handle=1)
    peer.credit(100, handle=1)
    for number in range(6):
        link = (sending, other)[number % 2].link
        peer.engine.send(link, b"%d" % number, b"%d" % number * 1500)
    pieces: dict[int, list[Frame]] = {}
    for each in of_kind(peer.hear(), "transfer"):
        pieces.setdefault(each.handle, []).append(each)

    for frames in pieces.values():
        contents = b"".join(each.payload for each in frames)
        digits = [contents[at : at + 1500] for at in range(0, len(contents), 1500)]
        assert len(digits) == 3
        assert all(len(set(each)) == 1 for each in digits)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("size", [10, 2000])
def test_a_delivery_is_settled_on_at_least_one_transfer_or_on_none(
    peer: RawPeer, *, settled: bool, size: int
) -> None:
    """
    2.7.5, settled: with snd-settle-mode settled it MUST be true on at least one transfer; with
    unsettled it MUST be false on every one.
    """
    attached = peer.link(sends=False, snd_settle_mode=1 if settled else 0)
    peer.credit(100)
    peer.engine.send(attached.link, b"t", bytes(size), settled=settled)
    transfers = of_kind(peer.hear(), "transfer")

    assert any(each.settled for each in transfers) is settled


def test_settled_and_unsettled_deliveries_share_one_sequence(
    peer: RawPeer, sending: LinkAttached
) -> None:
    """2.6.12: the delivery-id is assigned by the session, for all of its links."""
    other = peer.link(sends=False, handle=1)
    peer.credit(100, handle=1)
    for number in range(8):
        link = (sending, other)[number % 2].link
        peer.engine.send(link, b"%d" % number, b"", settled=number % 3 == 0)
    ids = [each.delivery_id for each in of_kind(peer.hear(), "transfer")]

    assert [each - ids[0] for each in ids] == list(range(8))


# --------------------------------------------------------------------------- what the peer sends


def test_a_message_in_pieces_is_told_when_it_is_whole(
    peer: RawPeer, receiving: LinkAttached
) -> None:
    """2.6.14: additional data is transferred by setting more on all but the last transfer."""
    peer.transfer(0, more=True, payload=b"one,")
    peer.send("transfer", handle=0, more=True, payload=b"two,")
    peer.send("transfer", handle=0, delivery_id=0, more=True, payload=b"three,")
    early = received(peer)
    peer.send("transfer", handle=0, payload=b"four")

    assert early == []
    assert received(peer) == [(b"0", b"one,two,three,four", False)]


def test_pieces_of_different_links_may_be_interleaved(
    peer: RawPeer, receiving: LinkAttached
) -> None:
    """2.6.14: messages being transferred along different links MAY be interleaved."""
    other = peer.link(sends=True, handle=1)
    peer.engine.grant(other.link, 10)
    peer.transfer(0, more=True, payload=b"a")
    peer.transfer(1, handle=1, more=True, payload=b"x")
    peer.send("transfer", handle=0, more=True, payload=b"b")
    peer.send("transfer", handle=1, payload=b"y")
    peer.send("transfer", handle=0, payload=b"c")
    told = peer.told(TransferReceived)

    assert [(each.link, each.payload) for each in told] == [
        (other.link, b"xy"),
        (receiving.link, b"abc"),
    ]


def test_another_id_on_a_continuation_is_an_error(peer: RawPeer, receiving: LinkAttached) -> None:
    """2.7.5: it is an error if the delivery-id on a continuation differs from the first one's."""
    peer.transfer(0, more=True)
    peer.send("transfer", handle=0, delivery_id=1, payload=b"x")

    assert broken(peer)
    assert received(peer) == []


@pytest.mark.parametrize("missing", ["delivery_id", "delivery_tag"])
def test_a_first_transfer_without_id_or_tag_is_an_error(
    peer: RawPeer, receiving: LinkAttached, missing: str
) -> None:
    """2.7.5: these MUST be supplied on the first transfer of a delivery."""
    peer.send(
        "transfer",
        handle=0,
        **{"delivery_id": 0, "delivery_tag": b"t", "message_format": 0} | {missing: None},
    )

    assert broken(peer)
    assert received(peer) == []


def test_a_delivery_without_a_format_is_of_format_0(peer: RawPeer, receiving: LinkAttached) -> None:
    """2.7.5: the format MUST be specified first; who doesn't is understood nevertheless."""
    peer.send("transfer", handle=0, delivery_id=0, delivery_tag=b"t", payload=b"x")

    assert [each.message_format for each in peer.told(TransferReceived)] == [0]


@pytest.mark.parametrize(
    ("flags", "settled"),
    [
        ((None, None, None), False),
        ((False, None, None), False),
        ((True, None, None), True),
        ((None, True, None), True),
        ((None, None, True), True),
        ((False, False, False), False),
        ((None, False, True), True),
    ],
)
def test_a_delivery_is_settled_if_one_of_its_transfers_says_so(
    peer: RawPeer,
    receiving: LinkAttached,
    flags: tuple[bool | None, ...],
    *,
    settled: bool,
) -> None:
    """
    2.7.5, settled: if not set on the first transfer, it MUST be interpreted as false; if unset on
    a later one, as true if and only if it was true on any of the preceding ones.
    """
    first, middle, last = flags
    peer.transfer(0, settled=first, more=True)
    peer.send("transfer", handle=0, settled=middle, more=True)
    peer.send("transfer", handle=0, settled=last)

    assert [each.settled for each in peer.told(TransferReceived)] == [settled]


@pytest.mark.parametrize("more", [True, False])
def test_an_aborted_delivery_is_forgotten(
    peer: RawPeer, receiving: LinkAttached, *, more: bool
) -> None:
    """
    2.7.5, aborted: the payload MUST be ignored, an aborted message is implicitly settled, and the
    flag takes precedence over more; 2.6.14: the receiver MUST discard what came before.
    """
    peer.transfer(0, more=True, payload=b"gone")
    peer.send("transfer", handle=0, aborted=True, more=more, payload=b"gone, too")
    nothing = received(peer)
    peer.transfer(1, payload=b"next")

    assert nothing == []
    assert received(peer) == [(b"1", b"next", False)]
    assert peer.engine.unsettled == len(b"next")


def test_a_delivery_that_is_aborted_with_its_first_transfer_is_none(
    peer: RawPeer, receiving: LinkAttached
) -> None:
    """2.7.5, aborted, as above."""
    peer.transfer(0, aborted=True)
    peer.transfer(1)

    assert received(peer) == [(b"1", b"payload", False)]


def test_a_resumed_delivery_that_is_not_known_is_ignored(
    peer: RawPeer, receiving: LinkAttached
) -> None:
    """2.7.5, resume: the receiver MUST ignore those that aren't in its local unsettled map."""
    peer.transfer(0, resume=True)
    peer.transfer(1)

    assert received(peer) == [(b"1", b"payload", False)]


@pytest.mark.parametrize("tag", [b"", b"t", bytes(range(32))])
def test_a_tag_is_up_to_32_octets_of_binary_data(
    peer: RawPeer, receiving: LinkAttached, tag: bytes
) -> None:
    """2.8.7: a delivery-tag may be up to 32 octets of binary data."""
    peer.transfer(0, delivery_tag=tag)

    assert received(peer) == [(tag, b"payload", False)]


@pytest.mark.parametrize("first", [0, 77, LAST - 1, LAST])
def test_delivery_ids_begin_anywhere_and_go_around_the_end(
    peer: RawPeer, receiving: LinkAttached, first: int
) -> None:
    """2.8.8, 2.8.10: a delivery-number is a serial number as defined in RFC 1982."""
    for number in range(4):
        peer.transfer((first + number) % 2**32)
    for each in peer.told(TransferReceived):
        peer.engine.settle(each.delivery, events.ACCEPTED)
    settled = []
    for each in of_kind(peer.hear(), "disposition"):
        last = each.first if each.last is None else each.last
        settled += [(each.first + more) % 2**32 for more in range((last - each.first) % 2**32 + 1)]

    assert settled == [(first + number) % 2**32 for number in range(4)]


# --------------------------------------------------------------------------- dispositions


def test_the_engine_says_whose_end_it_settles(peer: RawPeer, receiving: LinkAttached) -> None:
    """2.7.6, role: it identifies whether sending or receiving link endpoints are meant."""
    attached = peer.link(sends=False, handle=1, rcv_settle_mode=1)
    peer.credit(10, handle=1)
    delivery = peer.engine.send(attached.link, b"t", b"payload")
    (sent,) = of_kind(peer.hear(), "transfer")
    peer.transfer(0)
    (came,) = peer.told(TransferReceived)
    peer.engine.settle(came.delivery, events.ACCEPTED)
    (mine,) = peer.hear()
    peer.send("disposition", role=True, first=sent.delivery_id, state=ACCEPTED)
    peer.engine.settle(delivery, events.ACCEPTED)
    (theirs,) = peer.hear()

    assert (mine.role, mine.first, mine.settled) == (True, 0, True)
    assert (theirs.role, theirs.first, theirs.settled) == (False, sent.delivery_id, True)


@pytest.mark.parametrize("last", [None, 0, 2, 4])
def test_a_disposition_is_of_a_range(
    peer: RawPeer, sending: LinkAttached, last: int | None
) -> None:
    """2.7.6, last: if it isn't set, it is taken to be the same as first."""
    ids = [peer.engine.send(sending.link, b"%d" % each, b"") for each in range(5)]
    first = of_kind(peer.hear(), "transfer")[0].delivery_id
    end = None if last is None else first + last
    peer.send("disposition", role=True, first=first, last=end, settled=True, state=ACCEPTED)
    told = peer.told(DispositionReceived)

    assert [each.delivery for each in told] == ids[: (last or 0) + 1]
    assert {(each.state, each.settled) for each in told} == {(events.ACCEPTED, True)}


def test_a_disposition_may_refer_to_several_links(peer: RawPeer, sending: LinkAttached) -> None:
    """2.7.6: it may reference deliveries from many different links of a session."""
    other = peer.link(sends=False, handle=1)
    peer.credit(100, handle=1)
    links = [sending.link, other.link, sending.link]
    for number, link in enumerate(links):
        peer.engine.send(link, b"%d" % number, b"")
    first = of_kind(peer.hear(), "transfer")[0].delivery_id
    peer.told(LinkAttached)
    peer.send("disposition", role=True, first=first, last=first + 2, settled=True, state=RELEASED)

    assert [each.link for each in peer.told(DispositionReceived)] == links


def test_a_disposition_concerns_links_of_its_role_only(
    peer: RawPeer, sending: LinkAttached
) -> None:
    """2.7.6: all links MUST have the directionality indicated by the specified role."""
    attached = peer.link(sends=True, handle=1)
    peer.engine.grant(attached.link, 10)
    ours = peer.engine.send(sending.link, b"t", b"")
    first = of_kind(peer.hear(), "transfer")[0].delivery_id
    peer.transfer(first, handle=1)
    (came,) = peer.told(TransferReceived)
    peer.send("disposition", role=False, first=first, settled=True)
    theirs = peer.told(DispositionReceived)
    peer.send("disposition", role=True, first=first, settled=True)
    mine = peer.told(DispositionReceived)

    assert [each.delivery for each in theirs] == [came.delivery]
    assert [each.delivery for each in mine] == [ours]


def test_ids_that_nobody_knows_are_passed_over(peer: RawPeer, sending: LinkAttached) -> None:
    """2.7.6: a range may hold deliveries that are settled already; those have no state any more."""
    delivery = peer.engine.send(sending.link, b"t", b"")
    first = of_kind(peer.hear(), "transfer")[0].delivery_id
    peer.send("disposition", role=True, first=first, last=first + 1000, settled=True)
    again = [peer.send("disposition", role=True, first=first, settled=True) for _ in range(2)]
    told = peer.told(DispositionReceived)

    assert [(each.delivery, each.state) for each in told] == [(delivery, None)]
    assert again == [[], []]
    assert not broken(peer)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ACCEPTED, events.ACCEPTED),
        (RELEASED, events.RELEASED),
        (
            described(0x25, [error("amqp:not-allowed", "why")]),
            Rejected(error=AmqpError(condition="amqp:not-allowed", description="why")),
        ),
        (described(0x25, []), Rejected()),
        (
            described(0x27, [True, False, {symbol("a"): 1}]),
            Modified(delivery_failed=True, annotations={"a": 1}),
        ),
        (described(0x27, []), Modified()),
        (described(0x23, []), OtherState(code=0x23)),
    ],
)
def test_each_state_is_told(
    peer: RawPeer, sending: LinkAttached, state: object, expected: object
) -> None:
    """2.7.6, state: communicates the state of all the deliveries referenced by the disposition."""
    peer.engine.send(sending.link, b"t", b"")
    first = of_kind(peer.hear(), "transfer")[0].delivery_id
    peer.send("disposition", role=True, first=first, state=state)

    assert [(each.state, each.settled) for each in peer.told(DispositionReceived)] == [
        (expected, False)
    ]


def test_a_delivery_is_settled_once(peer: RawPeer, receiving: LinkAttached) -> None:
    """2.6.12: it is only possible to announce once that a delivery is forgotten."""
    peer.transfer(0)
    (came,) = peer.told(TransferReceived)
    for _ in range(3):
        peer.engine.settle(came.delivery, events.ACCEPTED)

    assert [each.kind for each in peer.hear()] == ["disposition"]


def test_a_transfer_that_came_settled_is_not_settled_again(
    peer: RawPeer, receiving: LinkAttached
) -> None:
    """2.6.12: the receiver makes no effort to notify who has settled the delivery."""
    peer.transfer(0, settled=True)
    (came,) = peer.told(TransferReceived)
    peer.engine.settle(came.delivery, events.ACCEPTED)

    assert peer.hear() == []


def test_a_receiver_that_settles_second_waits_for_the_sender(peer: RawPeer) -> None:
    """
    2.7.5, rcv-settle-mode second: the receiver MUST NOT settle until it has sent its disposition
    and received a settled one.
    """
    attached = peer.link(sends=True, rcv_settle_mode=1)
    peer.engine.grant(attached.link, 10)
    peer.hear()
    peer.transfer(0)
    (came,) = peer.told(TransferReceived)
    peer.engine.update(came.delivery, events.ACCEPTED)
    (asked,) = peer.hear()
    answered = peer.send("disposition", role=False, first=0, settled=True, state=ACCEPTED)
    told = peer.told(DispositionReceived)

    assert (asked.role, asked.first, bool(asked.settled)) == (True, 0, False)
    assert answered == []
    assert [(each.delivery, each.settled) for each in told] == [(came.delivery, True)]


def test_a_large_range_of_nothing_costs_nothing(peer: RawPeer, sending: LinkAttached) -> None:
    """2.7.6: first and last are serial numbers; the whole circle is a range, too."""
    peer.engine.send(sending.link, b"t", b"")
    first = of_kind(peer.hear(), "transfer")[0].delivery_id
    peer.send("disposition", role=True, first=first, last=(first + 2**31 - 1) % 2**32, settled=True)

    assert len(peer.told(DispositionReceived)) == 1


def test_a_transfer_on_a_link_where_the_peer_receives_is_an_error(
    peer: RawPeer, sending: LinkAttached
) -> None:
    """2.6: a link is a unidirectional transport."""
    peer.say(
        frame("transfer", handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, payload=b"")
    )

    assert broken(peer) or closed_with(peer)
