"""
Reads the bytes that an engine writes and reads, and checks the written ones against AMQP 1.0, part
2.

It knows only what the engine itself can know by then, and asserts what must be true of each frame.
"""

from collections.abc import Iterator

import attrs

from tests.wire.amqp.performative_fields import (
    AMQP_HEADER,
    MIN_MAX_FRAME_SIZE,
    SASL_HEADER,
    Frame,
    parse,
)

MOST = 2**32
HALF = 2**31


def ahead(later: int, earlier: int) -> int:
    """Return how far a serial number is ahead of another (RFC 1982); negative: it is behind."""
    return (later - earlier + HALF) % MOST - HALF


@attrs.define(eq=False)
class Stream:
    """A direction of a connection: bytes become frames, after the headers."""

    headers: list[bytes] = attrs.field(factory=list)
    size: int = 0
    _rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        self.size += len(data)
        self._rest += data
        while self._rest[:4] == b"AMQP" and len(self._rest) >= 8:
            self.headers.append(self._rest[:8])
            self._rest = self._rest[8:]
        if not self._rest or b"AMQP".startswith(self._rest[:4]):
            return
        frames, self._rest = _frames_up_to_a_header(self._rest)
        yield from frames
        if self._rest[:4] == b"AMQP":
            yield from self.feed(b"")

    @property
    def whole(self) -> bool:
        return not self._rest


def _frames_up_to_a_header(data: bytes) -> tuple[list[Frame], bytes]:
    """Frames of SASL are followed by a header of AMQP."""
    at = 0
    while len(data) - at >= 8 and data[at : at + 4] != b"AMQP":
        size = int.from_bytes(data[at : at + 4])
        if len(data) - at < size:
            break
        at += max(size, 8)
    frames, rest = parse(data[:at])
    assert rest == b""
    return frames, data[at:]


@attrs.define(eq=False)
class Link:
    name: str
    handle: int
    we_send: bool
    count: int | None = None  # delivery-count as this end knows it
    limit: int | None = None  # the delivery-count that must not be reached, on which we send
    partial: int | None = None  # the id of the delivery that is being transferred
    tags: set[bytes] = attrs.field(factory=set)  # of our unsettled deliveries


@attrs.define(eq=False)
class Session:
    channel: int
    first: int  # our initial-outgoing-id
    next_outgoing: int
    window: int | None = None  # the transfer-id that must not be reached
    theirs: int | None = None  # the peer's channel
    next_incoming: int | None = None
    handle_max: int = MOST - 1
    by_handle: dict[int, Link] = attrs.field(factory=dict)
    by_their_handle: dict[int, Link | None] = attrs.field(factory=dict)
    unanswered: dict[tuple[str, bool], int] = attrs.field(factory=dict)  # the peer's attaches
    next_delivery: int | None = None
    sent: dict[int, tuple[Link, bytes]] = attrs.field(factory=dict)  # unsettled, by delivery-id
    ended: bool = False  # the peer has ended it


@attrs.define(eq=False)
class Watcher:
    """Watches one engine: `writes` takes its bytes, and `hears` those that it is fed."""

    # Proton writes a count that it can't know yet, and may leave out a next-incoming-id.
    lenient: bool = False
    out: Stream = attrs.field(factory=Stream)
    into: Stream = attrs.field(factory=Stream)
    by_channel: dict[int, Session] = attrs.field(factory=dict)
    by_their_channel: dict[int, Session] = attrs.field(factory=dict)
    # The peer's frames in sessions that the engine hasn't answered yet; first the begin.
    begun_there: dict[int, list[Frame]] = attrs.field(factory=dict)
    opened: Frame | None = None
    told: Frame | None = None  # the peer's open
    closed: bool = False
    _counts: dict[tuple[int, int], int] = attrs.field(factory=dict)  # of attaches not answered yet
    _early: dict[tuple[int, int], Frame] = attrs.field(factory=dict)  # flows of those

    def writes(self, data: bytes) -> None:
        """
        Raises:
            AssertionError: the engine breaks the protocol.
        """
        assert not (data and self.closed), "bytes after the close"
        for frame in self.out.feed(data):
            try:
                self._check(frame)
            except AssertionError as error:
                error.add_note(str(frame)[:2000])
                raise
        assert all(each in (AMQP_HEADER, SASL_HEADER) for each in self.out.headers)

    def hears(self, data: bytes) -> None:
        for frame in self.into.feed(data):
            if frame.kind in ("open", "begin", "close", "") or frame.kind.startswith("sasl"):
                self._hear(frame)
            elif frame.channel in self.begun_there:
                self.begun_there[frame.channel].append(frame)
            else:
                self._hear(frame)

    # ------------------------------------------------------------------ what it writes

    def _check(self, frame: Frame) -> None:
        if frame.kind.startswith("sasl"):
            assert self.opened is None
            assert frame.size <= MIN_MAX_FRAME_SIZE
            return
        assert not self.closed, "a frame after the close"
        assert self.out.headers[-1:] == [AMQP_HEADER], "a frame before the header"
        assert (self.opened is None) == (frame.kind == "open"), "the open is the first frame"
        self._check_limits(frame)
        if check := getattr(self, f"_write_{frame.kind}", None):
            check(frame)

    def _check_limits(self, frame: Frame) -> None:
        limit = MIN_MAX_FRAME_SIZE
        if self.told is not None:
            limit = self.told.max_frame_size or MOST
            most = self.told.channel_max
            assert most is None or frame.channel <= most, "a channel that the peer doesn't handle"
        assert frame.size <= limit, f"a frame of {frame.size} bytes, the limit is {limit}"

    def _write_open(self, frame: Frame) -> None:
        assert frame.channel == 0
        assert frame.max_frame_size is None or frame.max_frame_size >= MIN_MAX_FRAME_SIZE
        self.opened = frame

    def _write_begin(self, frame: Frame) -> None:
        assert frame.channel not in self.by_channel, "the channel is in use"
        first = frame.next_outgoing_id
        session = Session(frame.channel, first, first)
        self.by_channel[frame.channel] = session
        if frame.remote_channel is not None:
            theirs = self.begun_there.pop(frame.remote_channel, None)
            assert theirs is not None, "an answer to no begin"
            begin, *others = theirs
            self._map(session, begin)
            for each in others:
                self._hear(each)

    def _session(self, frame: Frame) -> Session:
        session = self.by_channel.get(frame.channel)
        assert session is not None, "a frame outside of a session"
        return session

    def _write_attach(self, frame: Frame) -> None:
        session = self._session(frame)
        assert frame.handle not in session.by_handle, "the handle is in use"
        assert frame.handle <= session.handle_max, "a handle that the peer doesn't handle"
        we_send = not frame.role
        if we_send:
            assert frame.initial_delivery_count is not None, "a sender without a count"
        count = frame.initial_delivery_count if we_send else None
        link = Link(frame.fields["name"], frame.handle, we_send, count)
        session.by_handle[frame.handle] = link
        theirs = session.unanswered.pop((link.name, we_send), None)
        if theirs is not None:
            session.by_their_handle[theirs] = link
            if not we_send:
                link.count = self._counts.pop((session.channel, theirs), 0)
        self._waiting_credit(session, link)

    def _waiting_credit(self, session: Session, link: Link) -> None:
        for handle, each in session.by_their_handle.items():
            flow = self._early.pop((session.channel, handle), None) if each is link else None
            if flow is not None:
                self._credit(link, flow)

    def _write_flow(self, frame: Frame) -> None:
        session = self._session(frame)
        if session.next_incoming is None:
            assert frame.next_incoming_id is None, "a next-incoming-id before the peer's begin"
        elif frame.next_incoming_id is None:
            assert self.lenient, "no next-incoming-id"
        else:
            behind = ahead(session.next_incoming, frame.next_incoming_id)
            assert behind >= 0, "a next-incoming-id of the future"
        assert frame.next_outgoing_id == session.next_outgoing
        if frame.handle is None:
            names = ("delivery_count", "link_credit", "available")
            assert all(frame.fields[each] is None for each in names)
            assert not frame.drain
            return
        link = session.by_handle.get(frame.handle)
        assert link is not None, "the flow of a link that isn't attached"
        if link.we_send:
            self._check_senders_flow(link, frame)
        elif link.count is None:
            assert self.lenient or frame.delivery_count is None, "a count before the attach"
        else:
            assert ahead(link.count, frame.delivery_count) >= 0, "a count of the future"

    def _check_senders_flow(self, link: Link, frame: Frame) -> None:
        assert link.count is not None
        advanced = ahead(frame.delivery_count, link.count)
        assert advanced >= 0, "a sender's count goes back"
        if advanced:  # the flow gives back the remaining credit
            assert link.limit is not None
            assert ahead(link.limit, frame.delivery_count) >= 0, "more given back than there was"
            link.count = frame.delivery_count

    def _write_transfer(self, frame: Frame) -> None:
        session = self._session(frame)
        link = session.by_handle.get(frame.handle)
        assert link is not None, "a transfer on a link that isn't attached"
        assert link.we_send, "a transfer on a link on which we receive"
        assert session.window is not None, "a transfer before the peer has begun"
        assert ahead(session.window, session.next_outgoing) > 0, "beyond the session's window"
        session.next_outgoing = (session.next_outgoing + 1) % MOST
        if link.partial is None:
            self._check_first(session, link, frame)
        else:
            assert frame.delivery_id in (None, link.partial), "messages are interleaved"
        number = link.partial if link.partial is not None else frame.delivery_id
        if frame.settled and number in session.sent:
            link.tags.discard(session.sent.pop(number)[1])
        link.partial = number if frame.more and not frame.aborted else None

    def _check_first(self, session: Session, link: Link, frame: Frame) -> None:
        assert link.limit is not None, "a transfer without credit"
        assert link.count is not None
        assert ahead(link.limit, link.count) > 0, "more transfers than credit"
        link.count = (link.count + 1) % MOST
        assert frame.delivery_id is not None
        assert session.next_delivery in (None, frame.delivery_id), "ids aren't consecutive"
        session.next_delivery = (frame.delivery_id + 1) % MOST
        assert frame.delivery_tag is not None
        assert len(frame.delivery_tag) <= 32
        assert frame.message_format is not None
        assert frame.delivery_tag not in link.tags, "a tag that is in use"
        if not frame.settled:
            link.tags.add(frame.delivery_tag)
            session.sent[frame.delivery_id] = link, frame.delivery_tag

    def _write_disposition(self, frame: Frame) -> None:
        session = self._session(frame)
        last = frame.first if frame.last is None else frame.last
        assert ahead(last, frame.first) >= 0
        if not frame.role:
            assert session.next_delivery is not None
            assert ahead(session.next_delivery, last) > 0, "a delivery that wasn't sent"
            if frame.settled:
                _settle(session, frame.first, last)

    def _write_detach(self, frame: Frame) -> None:
        session = self._session(frame)
        link = session.by_handle.pop(frame.handle, None)
        assert link is not None, "a detach of a link that isn't attached"

    def _write_end(self, frame: Frame) -> None:
        session = self._session(frame)
        del self.by_channel[frame.channel]
        if session.ended and session.theirs is not None:
            self.by_their_channel.pop(session.theirs, None)

    def _write_close(self, _: Frame) -> None:
        self.closed = True

    # ------------------------------------------------------------------ what it is told

    def _hear(self, frame: Frame) -> None:
        if heard := getattr(self, f"_hear_{frame.kind}", None):
            heard(frame)

    def _hear_open(self, frame: Frame) -> None:
        self.told = frame

    def _hear_begin(self, frame: Frame) -> None:
        if frame.remote_channel is None:
            self.begun_there[frame.channel] = [frame]
            return
        session = self.by_channel.get(frame.remote_channel)
        if session is not None and session.theirs is None:
            self._map(session, frame)

    def _map(self, session: Session, begin: Frame) -> None:
        session.theirs = begin.channel
        self.by_their_channel[begin.channel] = session
        session.next_incoming = begin.next_outgoing_id
        session.window = (session.first + begin.incoming_window) % MOST
        if begin.handle_max is not None:
            session.handle_max = begin.handle_max

    def _theirs(self, frame: Frame) -> Session | None:
        return self.by_their_channel.get(frame.channel)

    def _hear_attach(self, frame: Frame) -> None:
        session = self._theirs(frame)
        if session is None:
            return
        name, we_send = frame.fields["name"], bool(frame.role)
        answered = [
            each
            for each in session.by_handle.values()
            if (each.name, each.we_send) == (name, we_send)
            and each not in session.by_their_handle.values()
        ]
        link = answered[-1] if answered else None
        session.by_their_handle[frame.handle] = link
        start = frame.initial_delivery_count or 0
        if link is None:
            session.unanswered[name, we_send] = frame.handle
            self._counts[session.channel, frame.handle] = start
        elif not we_send:
            link.count = start

    def _hear_flow(self, frame: Frame) -> None:
        session = self._theirs(frame)
        if session is None:
            return
        base = session.first if frame.next_incoming_id is None else frame.next_incoming_id
        session.window = (base + frame.incoming_window) % MOST
        session.next_incoming = frame.next_outgoing_id
        if frame.handle is None:
            return
        link = session.by_their_handle.get(frame.handle)
        if link is None:
            self._early[session.channel, frame.handle] = frame
        else:
            self._credit(link, frame)

    def _credit(self, link: Link, frame: Frame) -> None:
        if link.we_send:
            count = frame.delivery_count if frame.delivery_count is not None else link.count
            link.limit = ((count or 0) + (frame.link_credit or 0)) % MOST
        elif frame.delivery_count is not None:
            link.count = frame.delivery_count

    def _hear_transfer(self, frame: Frame) -> None:
        session = self._theirs(frame)
        if session is None or session.next_incoming is None:
            return
        session.next_incoming = (session.next_incoming + 1) % MOST
        link = session.by_their_handle.get(frame.handle)
        if link is not None and link.partial is None and link.count is not None:
            link.count = (link.count + 1) % MOST
        if link is not None:
            link.partial = 0 if frame.more and not frame.aborted else None

    def _hear_disposition(self, frame: Frame) -> None:
        session = self._theirs(frame)
        if session is not None and frame.role and frame.settled:
            _settle(session, frame.first, frame.first if frame.last is None else frame.last)

    def _hear_detach(self, frame: Frame) -> None:
        session = self._theirs(frame)
        if session is not None:
            session.by_their_handle.pop(frame.handle, None)
            self._early.pop((session.channel, frame.handle), None)
            for key, handle in list(session.unanswered.items()):
                if handle == frame.handle:
                    del session.unanswered[key]

    def _hear_end(self, frame: Frame) -> None:
        session = self.by_their_channel.get(frame.channel)
        if session is None or session.channel not in self.by_channel:
            self.by_their_channel.pop(frame.channel, None)
        else:
            session.ended = True


def _settle(session: Session, first: int, last: int) -> None:
    for number in [each for each in session.sent if 0 <= ahead(each, first) <= ahead(last, first)]:
        link, tag = session.sent.pop(number)
        link.tags.discard(tag)
