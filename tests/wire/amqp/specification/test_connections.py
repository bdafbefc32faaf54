"""AMQP 1.0, part 2, 2.4 (connections), 2.7.1 (open) and 2.7.9 (close)."""

import pytest

from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    SessionOpened,
    TransferReceived,
)
from tests.wire.amqp.performative_fields import (
    AMQP_HEADER,
    EMPTY,
    MIN_MAX_FRAME_SIZE,
    error,
    error_of,
    frame,
)
from tests.wire.amqp.raw_peer import (
    SOURCE,
    TARGET,
    RawPeer,
    client,
    new_engine,
    new_link,
    of_kind,
    server,
)
from tests.wire.amqp.specification.closed import FRAMING_ERROR, closed_with

WINDOWS = {"next_outgoing_id": 0, "incoming_window": 100, "outgoing_window": 100}
BEGIN = frame("begin", **WINDOWS)
FAILED = AmqpError(condition="amqp:internal-error", description="failed")


# --------------------------------------------------------------------------- 2.4.1, 2.4.2: opening


def test_the_first_frame_in_either_direction_is_an_open_on_channel_0() -> None:
    """2.7.1: the first frame MUST contain an open; 2.4.1: only on channel 0."""
    peers = [client(), server()]
    peers[1].say(AMQP_HEADER, frame("open", container_id="raw"))
    peers[1].engine.open()
    peers[1].hear()

    assert [(peer.frames[0].kind, peer.frames[0].channel) for peer in peers] == [("open", 0)] * 2


def test_a_client_begins_only_after_its_open() -> None:
    """2.7.1, as above, whatever the order of calls is."""
    peer = client()
    session = peer.engine.begin()
    peer.engine.attach(session, new_link())
    peer.hear()
    peer.say(AMQP_HEADER, frame("open", container_id="raw"))

    assert [each.kind for each in peer.frames] == ["open", "begin", "attach"]


@pytest.mark.parametrize(
    "first",
    [
        BEGIN,
        frame("attach", name="a", handle=0, role=False),
        frame("flow", incoming_window=1, next_outgoing_id=0, outgoing_window=1),
        frame("transfer", handle=0, delivery_id=0, delivery_tag=b"", message_format=0),
        frame("disposition", role=True, first=0),
        frame("detach", handle=0),
        frame("end"),
    ],
)
def test_a_first_frame_that_is_no_open_ends_the_connection(first: bytes) -> None:
    """2.7.1: the first frame sent in either direction MUST contain an open body."""
    peer = server()
    peer.say(AMQP_HEADER, first)

    assert [type(each) for each in peer.events] == [ConnectionClosed]
    closed_with(peer)


def test_a_second_open_ends_the_connection() -> None:
    """2.4.6: an open is received once; afterwards it isn't permitted in any state."""
    peer = server().opened()
    peer.send("open", container_id="raw")

    assert closed_with(peer) in ("amqp:not-allowed", "amqp:illegal-state")


def test_the_open_fits_into_the_smallest_frame() -> None:
    """2.4.1: prior to any negotiation, the maximum frame size is MIN-MAX-FRAME-SIZE."""
    peer = client()

    assert peer.frames[0].size <= MIN_MAX_FRAME_SIZE


def test_frames_may_be_pipelined_before_the_answer() -> None:
    """2.4.2: a peer may send frames before it has received the partner's header or open."""
    peer = server()
    peer.say(
        AMQP_HEADER,
        frame("open", container_id="raw"),
        BEGIN,
        frame(
            "attach",
            name="a",
            handle=0,
            role=False,
            source=SOURCE,
            target=TARGET,
            initial_delivery_count=0,
        ),
    )
    peer.engine.open()
    peer.hear()

    kinds = [ConnectionOpened, SessionOpened, LinkAttached]
    assert [type(each) for each in peer.events] == kinds
    assert [each.kind for each in peer.frames][:2] == ["open", "begin"]


def test_an_open_and_a_close_may_be_pipelined() -> None:
    """2.4.6: OPEN-CLOSE PIPE; both are answered."""
    peer = server()
    peer.say(AMQP_HEADER, frame("open", container_id="raw"), frame("close"))

    assert [each.kind for each in peer.frames] == ["open", "close"]
    assert peer.engine.finished


def test_a_close_that_is_pipelined_with_the_open_is_on_channel_0() -> None:
    """2.4.3: implementations MUST send close on channel 0 if pipelined with the open."""
    peer = RawPeer(new_engine())
    peer.engine.open()
    peer.engine.close()
    peer.hear()
    peer.say(AMQP_HEADER, frame("open", container_id="raw"))

    assert [(each.kind, each.channel) for each in peer.frames] == [("open", 0), ("close", 0)]


# --------------------------------------------------------------------------- 2.7.1: limits


@pytest.mark.parametrize("size", [MIN_MAX_FRAME_SIZE, 1000, 65536])
@pytest.mark.parametrize("format_", [0, 0x80013700])
def test_no_frame_is_larger_than_the_peer_handles(size: int, format_: int) -> None:
    """2.7.1, max-frame-size: a peer MUST NOT send frames larger than its partner can handle."""
    peer = server().opened(max_frame_size=size)
    peer.session()
    attached = peer.link(sends=False)
    peer.credit(10)
    peer.engine.send(attached.link, bytes(32), bytes(150_000), message_format=format_)
    frames = peer.hear()

    assert max(each.size for each in frames) <= size
    assert sum(len(each.payload) for each in frames) == 150_000


@pytest.mark.parametrize("limit", [MIN_MAX_FRAME_SIZE, 4096])
def test_frames_of_the_maximum_size_are_taken_and_larger_ones_end_the_connection(
    limit: int,
) -> None:
    """
    2.7.1, max-frame-size: both peers MUST accept frames of 512 octets; a peer that receives an
    oversized frame MUST close the connection with framing-error.
    """
    peer = server(max_frame_size=limit).opened()
    peer.session()
    attached = peer.link(sends=True)
    peer.engine.grant(attached.link, 10)
    fields = {"handle": 0, "delivery_id": 0, "delivery_tag": b"t", "message_format": 0}
    room = limit - len(frame("transfer", **fields))
    peer.say(frame("transfer", payload=bytes(room), **fields))
    received = peer.told(TransferReceived)
    peer.say(frame("transfer", payload=bytes(room + 1), **fields | {"delivery_id": 1}))

    assert [len(each.payload) for each in received] == [room]
    assert closed_with(peer) == FRAMING_ERROR


def test_the_maximum_frame_size_is_announced() -> None:
    """2.7.1, max-frame-size: the largest frame that the sending peer is able to accept."""
    peer = server(max_frame_size=4096).opened()

    assert peer.frames[0].max_frame_size == 4096


def test_a_channel_beyond_the_maximum_ends_the_connection() -> None:
    """
    2.7.1, channel-max: a peer that receives a channel number outside the supported range MUST close
    the connection with framing-error.
    """
    peer = server(channel_max=3).opened()
    peer.session(channel=3)
    told = peer.frames[0].channel_max
    peer.send("begin", channel=4, **WINDOWS)

    assert told == 3
    assert closed_with(peer) == FRAMING_ERROR


def test_no_channel_is_used_that_the_peer_does_not_handle() -> None:
    """2.7.1, channel-max: a peer MUST NOT use channel numbers outside its partner's range."""
    peer = client()
    peer.say(AMQP_HEADER, frame("open", container_id="raw", channel_max=1))
    for _ in range(3):
        peer.engine.begin()
    peer.hear()

    assert {each.channel for each in peer.frames} <= {0, 1}


# --------------------------------------------------------------------------- 2.4.3, 2.7.9: closing


def test_a_close_is_answered_and_is_the_last_frame() -> None:
    """2.4.3: prior to closing, each peer MUST write a close; it MUST be the last thing written."""
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=False)
    peer.credit(10)
    peer.engine.send(attached.link, b"1", bytes(100))
    peer.send("close")
    peer.engine.send(attached.link, b"2", bytes(100))
    peer.engine.begin()
    peer.engine.close(FAILED)
    peer.tick(1000)
    peer.hear()

    assert [each.kind for each in peer.frames].count("close") == 1
    assert peer.frames[-1].kind == "close"
    assert peer.engine.finished


@pytest.mark.parametrize("failed", [None, FAILED])
def test_nothing_is_written_after_the_close(failed: AmqpError | None) -> None:
    """2.4.3 and 2.7.9: it is illegal to send any more frames after a close."""
    peer = server(idle_timeout=10).opened(idle_time_out=2000)
    peer.session()
    attached = peer.link(sends=False)
    peer.credit(10)
    peer.engine.close(failed)
    peer.hear()
    peer.engine.send(attached.link, b"1", bytes(100))
    peer.engine.detach(attached.link)
    peer.engine.end(attached.session)
    peer.engine.close(FAILED)
    heard = peer.say(frame("flow", echo=True, handle=0, **WINDOWS), BEGIN, EMPTY)
    for now in range(1, 5):
        heard += peer.tick(now)

    assert heard == []
    assert peer.frames[-1].kind == "close"


def test_the_reason_of_a_close_is_told() -> None:
    """2.4.3: each peer MUST write a close frame with a code indicating the reason."""
    peer = server().opened()
    peer.engine.close(FAILED)
    (close,) = peer.hear()

    assert error_of(close.error) == "amqp:internal-error"


def test_after_a_close_frames_are_taken_until_the_peers_close() -> None:
    """2.4.3: after writing close, a peer SHOULD read until it receives the partner's."""
    peer = server().opened()
    peer.engine.close()
    peer.hear()
    peer.say(BEGIN, EMPTY)
    before = peer.engine.finished, peer.told(ConnectionClosed)
    peer.send("close", error=error("amqp:not-found"))

    assert before == (False, [])
    assert [each.error.condition for each in peer.told(ConnectionClosed)] == ["amqp:not-found"]
    assert peer.engine.finished


@pytest.mark.parametrize(
    "frames", [[BEGIN], [frame("transfer", handle=7)], [frame("detach", handle=7)], [EMPTY]]
)
def test_after_an_error_of_the_peer_whatever_comes_is_discarded(frames: list[bytes]) -> None:
    """2.4.6, DISCARDING: incoming frames MUST be silently discarded until the peer's close."""
    peer = server().opened()
    peer.session()
    peer.send("open", container_id="again")
    peer.told(ConnectionClosed)
    heard = peer.say(*frames, frame("close"))

    assert heard == []
    assert peer.events == []
    assert peer.engine.finished


@pytest.mark.parametrize("error_of_ours", [None, FAILED])
def test_frames_that_were_under_way_when_we_closed_are_still_heard(
    error_of_ours: AmqpError | None,
) -> None:
    """
    2.4.6, CLOSE SENT: there may still be incoming frames. A close that the application asks for is
    no error of the peer, whatever reason it has: what the peer has settled is settled.
    """
    peer = server().opened()
    peer.session()
    attached = peer.link(sends=False)
    peer.credit(1)
    delivery = peer.engine.send(attached.link, b"t", b"payload")
    (sent,) = of_kind(peer.hear(), "transfer")
    peer.engine.close(error_of_ours)
    heard = peer.hear()
    heard += peer.send("disposition", role=True, first=sent.delivery_id, settled=True)
    told = peer.told(DispositionReceived)
    heard += peer.send("close")

    assert [each.kind for each in heard] == ["close"]
    assert [(each.delivery, each.settled) for each in told] == [(delivery, True)]
    assert len(peer.told(ConnectionClosed)) == 1


def test_two_closes_may_cross() -> None:
    """2.4.4: it is possible for a simultaneous close to occur."""
    peer = server().opened()
    peer.engine.close(FAILED)
    peer.send("close", error=error("amqp:connection:forced"))

    assert [each.kind for each in peer.frames].count("close") == 1
    assert len(peer.told(ConnectionClosed)) == 1
    assert peer.engine.finished


def test_a_close_may_come_on_any_channel() -> None:
    """2.4.3: a close may be received on any channel up to the maximum."""
    peer = server().opened()
    peer.send("close", channel=9)

    assert len(peer.told(ConnectionClosed)) == 1
    assert peer.frames[-1].kind == "close"


# --------------------------------------------------------------------------- 2.4.5: idle time-out


def test_a_peer_that_wants_traffic_gets_empty_frames_in_time() -> None:
    """2.4.5: at connection open each peer communicates the maximum period between frames."""
    peer = server(idle_timeout=0).opened(idle_time_out=4000)
    now, silent = 100.0, 0.0
    deadline = peer.engine.tick(now)
    for _ in range(10):
        assert now < deadline <= now + 4
        silent = deadline - now if not peer.hear() else 0.0
        now = deadline
        deadline = peer.engine.tick(now)
        assert silent < 4
    frames = peer.hear()

    assert {(each.kind, each.channel, each.size) for each in peer.frames[1:] + frames} == {
        ("", 0, 8)
    }
    assert len(peer.frames) > 5


def test_no_traffic_is_made_up_before_the_open_is_sent() -> None:
    """2.4.5: empty frames can only be sent after the open frame is sent."""
    peer = server(idle_timeout=10)
    peer.say(AMQP_HEADER, frame("open", container_id="raw", idle_time_out=2000))
    heard = [each.kind for now in range(1, 9) for each in peer.tick(now)]
    peer.engine.open()
    heard += [each.kind for each in peer.hear()]

    assert heard[0] == "open"


@pytest.mark.parametrize("none", [{}, {"idle_time_out": 0}])
def test_a_peer_without_an_idle_time_out_gets_no_empty_frames(none: dict[str, int]) -> None:
    """2.7.1, idle-time-out: a value of zero is the same as if it was not set."""
    peer = server(idle_timeout=0, partial_timeout=0).opened(**none)
    frames = [each for now in range(1, 10_000, 500) for each in peer.tick(now)]

    assert frames == []
    assert peer.engine.tick(10_000) == float("inf")


def test_half_of_the_threshold_is_announced() -> None:
    """2.4.5: the value in idle-time-out should be half the peer's actual timeout threshold."""
    peer = server(idle_timeout=60).opened()

    assert peer.frames[0].idle_time_out == 30_000


def test_a_peer_that_is_silent_for_too_long_is_told_so_in_a_close() -> None:
    """2.4.5: if the threshold is exceeded, a peer should close with an error explaining why."""
    peer = server(idle_timeout=10).opened()
    peer.tick(100)
    peer.tick(110.5)

    assert closed_with(peer) == "amqp:resource-limit-exceeded"


def test_each_frame_even_an_empty_one_counts_as_life() -> None:
    """2.4.5: the time-out starts from the time the last frame is received."""
    peer = server(idle_timeout=10).opened()
    for now in range(100, 200, 9):
        peer.tick(now)
        peer.say(EMPTY)
        peer.tick(now)

    assert peer.told(ConnectionClosed) == []


def test_an_idle_time_out_that_cannot_be_kept_is_refused_with_a_reason() -> None:
    """2.4.5: if a peer can't support a proposed idle time-out, it should close and say why."""
    peer = server()
    peer.say(AMQP_HEADER, frame("open", container_id="raw", idle_time_out=1))

    assert closed_with(peer) == "amqp:not-allowed"
