"""The sessions, links and deliveries of one connection."""

from collections import deque
from collections.abc import Callable
from itertools import count

import attrs

from gateway.wire.amqp.dispositions import Range
from gateway.wire.amqp.events import DeliveryId, DeliveryState, LinkId, SessionId
from gateway.wire.amqp.performatives import ATTACH, DETACH, MAX_UINT
from gateway.wire.amqp.states import LINK, Side
from gateway.wire.amqp.transfers import Transfer, TransferWriter
from gateway.wire.parts import add_part

Waiting = tuple[bytes | memoryview, ...] | bytes | Callable[[], None]
"""A transfer, in its pieces; another frame; or a function that writes when it is its turn."""


@attrs.define(eq=False)
class Session:
    """
    A session, with its windows (part 2, 2.5.6).

    A transfer that our peer's window has no room for waits in `waiting`, with everything that must
    not overtake it.
    """

    id: SessionId
    channel: int  # ours
    window: int  # transfers that we allow the peer at once
    their_channel: int | None = None
    ours: Side = Side.IDLE
    theirs: Side = Side.IDLE
    links: "dict[LinkId, Link]" = attrs.field(factory=dict)  # the links that aren't void
    by_handle: "dict[int, Link]" = attrs.field(factory=dict)  # the peer's handles, in use
    by_name: "dict[tuple[str, bool], Link]" = attrs.field(factory=dict)  # attached by the peer
    # Attached by us, and the answer is still to come; by (name, we send), as above.
    unanswered: "dict[tuple[str, bool], deque[Link]]" = attrs.field(factory=dict)
    handles: set[int] = attrs.field(factory=set)  # ours, in use
    handle_max: int = MAX_UINT  # the highest handle that the peer lets us use
    next_incoming: int = 0  # the number of the peer's next transfer
    incoming_window: int = 0  # transfers that the peer may still send
    next_outgoing: int = 0  # the number of our next transfer
    outgoing_window: int = 0  # transfers that we may still send
    next_delivery: int = 0  # the delivery-id of our next message
    sent: "dict[int, LinkDelivery]" = attrs.field(factory=dict)  # unsettled, by delivery-id
    received: "dict[int, LinkDelivery]" = attrs.field(factory=dict)  # unsettled, by delivery-id
    waiting: "deque[Waiting] | tuple[()]" = ()
    due: Range | None = None  # a disposition that isn't written yet

    def wait(self, part: Waiting) -> None:
        """Add to `waiting`. The deque is made here, because an empty one takes 760 bytes."""
        if not isinstance(self.waiting, deque):
            self.waiting = deque()
        self.waiting.append(part)

    def pop_unanswered(self, name: str, *, we_send: bool) -> "Link | None":
        """
        Remove and return the first link of that name whose attach the peer hasn't answered; or
        None.
        """
        waiting = self.unanswered.get((name, we_send))
        if waiting is None:
            return None
        link = waiting.popleft()
        if not waiting:
            del self.unanswered[name, we_send]
        return link


# The theory. The sides' progress is in `states`. A link has more, because the end of a link has an
# owner, who may need to do something between the two detaches:
#
#     void       one side has detached it: its deliveries are gone, only its handles are in use
#     lingers    the peer detached first. The owner answers later, when the settlements under way
#                have their outcomes: the answer tells the peer that there is no further one, and
#                that what the link had locked is free. Our answer to an end waits for it
#     awaited    we detached first. The owner waits for the answer: what the peer wrote before it
#                counts, and what didn't arrive by then never will
#
# A link that is void, and lingers or is awaited, is in `Registry.leaving`.
@attrs.define(eq=False)
class Link:
    """
    A link, which is void as soon as one side has detached it. It stays known until both sides have,
    because the peer's frames for it may still come.
    """

    id: LinkId
    session: Session
    name: str
    we_send: bool
    handle: int  # ours
    their_handle: int | None = None
    ours: Side = Side.IDLE
    theirs: Side = Side.IDLE
    void: bool = False
    # The peer's attach, until answered: encoded, since its values may take 64 times its bytes.
    attach: bytes = b""
    lingers: bool = False  # the link's owner answers the peer's detach
    awaited: bool = False  # the link's owner is told of the peer's answer to our detach
    closed: bool = False  # by the peer's detach, rather than suspended
    deliveries: "dict[DeliveryId, LinkDelivery]" = attrs.field(factory=dict)
    max_message_size: int = 0  # 0: no limit

    # Flow control (part 2, 2.6.7). The credit of a sender is reduced by each message that it was
    # passed, that of a receiver by each that has arrived whole.
    credit: int = 0
    delivery_count: int = 0
    drain: bool = False  # the receiver asks the sender to use up its credit
    draining: bool = False  # we have asked, and `LinkDrained` hasn't been reported

    # Where we send: messages without credit, and how a transfer is written.
    queue: "deque[Queued] | tuple[()]" = ()
    writer: TransferWriter | None = None

    # Where we receive: the delivery that is arriving in several frames.
    arriving: Transfer | None = None
    pieces: list[bytes] = attrs.field(factory=list)
    arrived: int = 0  # bytes; those of a message that is too large aren't kept

    def wait(self, message: "Queued") -> None:
        """Add to `queue`, which is made here."""
        if not isinstance(self.queue, deque):
            self.queue = deque()
        self.queue.append(message)


@attrs.define(eq=False)
class LinkDelivery:
    """A delivery that one side hasn't settled."""

    id: DeliveryId
    link: Link
    number: int | None  # its delivery-id; None: it waits for credit
    size: int = 0  # in bytes, for a received message
    state: DeliveryState | None = None  # the last one that we have sent
    their_state: DeliveryState | None = None  # the last one that the peer has sent


@attrs.define(eq=False)
class Queued:
    """A message that waits for credit; without `delivery` it is sent settled."""

    tag: bytes
    payload: bytes
    message_format: int
    delivery: LinkDelivery | None
    state: bytes = b""  # encoded


@attrs.define(eq=False)
class Registry:
    """
    The sessions that haven't ended, and the links and deliveries that aren't void, by their ids.
    `leaving` has the detached links whose owner still awaits the peer's detach, or has to answer
    it.
    """

    sessions: dict[SessionId, Session] = attrs.field(factory=dict)
    links: dict[LinkId, Link] = attrs.field(factory=dict)
    deliveries: dict[DeliveryId, LinkDelivery] = attrs.field(factory=dict)
    leaving: dict[LinkId, Link] = attrs.field(factory=dict)
    by_channel: dict[int, Session] = attrs.field(factory=dict)  # ours
    by_their_channel: dict[int, Session] = attrs.field(factory=dict)
    attached: int = 0  # links that the peer has attached and not detached, even if we have
    unsettled: int = 0  # bytes of whole messages that were received and that we haven't settled
    partial: int = 0  # bytes of messages whose last frame is missing
    ids: "count[int]" = attrs.field(factory=lambda: count(1))

    # ------------------------------------------------------------------ sessions

    def add_session(self, window: int, channel_max: int) -> Session | None:
        """A session on the lowest free channel; None if all are in use."""
        channel = _lowest_free(self.by_channel, channel_max)
        if channel is None:
            return None
        session = Session(self.new_session_id(), channel, window, incoming_window=window)
        self.sessions[session.id] = self.by_channel[channel] = session
        return session

    def new_session_id(self) -> SessionId:
        return SessionId(next(self.ids))

    def void_session(self, session: Session) -> None:
        """Void a session with its links; its channels stay in use."""
        for link in list(session.links.values()):
            self.void_link(link)
        for link in self.leaving_of(session):
            del self.leaving[link.id]
        self.sessions.pop(session.id, None)

    def forget_session(self, session: Session) -> None:
        """Free our channel of a session that both sides have ended."""
        del self.by_channel[session.channel]

    def drop_their_channel(self, session: Session) -> None:
        """The peer has ended the session: its channel and its handles are free."""
        assert session.their_channel is not None, "the peer has begun the session"
        del self.by_their_channel[session.their_channel]
        self.attached -= len(session.by_handle)
        session.by_handle.clear()
        session.by_name.clear()
        session.unanswered.clear()

    # ------------------------------------------------------------------ links

    def add_link(self, session: Session, name: str, *, we_send: bool) -> Link | None:
        """A link on the lowest free handle; None if the peer allows no further one."""
        handle = _lowest_free(session.handles, session.handle_max)
        if handle is None:
            return None
        link = Link(LinkId(next(self.ids)), session, name, we_send, handle)
        session.handles.add(handle)
        self.links[link.id] = session.links[link.id] = link
        return link

    def void_link(self, link: Link) -> None:
        """Void a link with its deliveries."""
        if link.void:
            return
        link.void = True
        session = link.session
        numbers = session.sent if link.we_send else session.received
        for delivery in link.deliveries.values():
            del self.deliveries[delivery.id]
            self.unsettled -= delivery.size
            if delivery.number is not None and numbers.get(delivery.number) is delivery:
                del numbers[delivery.number]
        link.deliveries.clear()
        self.discard_partial(link)
        del self.links[link.id]
        del session.links[link.id]

    def set_attached(self, link: Link, handle: int) -> None:
        """The peer has attached the link."""
        session = link.session
        self.attached += 1
        link.theirs, link.their_handle = LINK.after(link.theirs, ATTACH), handle
        session.by_handle[handle] = session.by_name[link.name, link.we_send] = link

    def set_detached(self, link: Link) -> None:
        """The peer has detached the link: its handle is free."""
        assert link.their_handle is not None, "the peer has attached the link"
        self.attached -= 1
        link.theirs = LINK.after(link.theirs, DETACH)
        del link.session.by_handle[link.their_handle]

    def forget_name(self, link: Link) -> None:
        """Both sides have detached the link."""
        key = link.name, link.we_send
        if link.session.by_name.get(key) is link:
            del link.session.by_name[key]

    def leaving_of(self, session: Session) -> list[Link]:
        return [link for link in self.leaving.values() if link.session is session]

    def lingering_in(self, session: Session) -> list[Link]:
        """The session's links whose detach by the peer isn't answered yet."""
        return [link for link in self.leaving_of(session) if link.theirs is Side.ENDED]

    # ------------------------------------------------------------------ deliveries

    def drop_delivery(self, delivery: LinkDelivery) -> None:
        """Forget a delivery that is settled."""
        link = delivery.link
        del self.deliveries[delivery.id]
        del link.deliveries[delivery.id]
        self.unsettled -= delivery.size
        numbers = link.session.sent if link.we_send else link.session.received
        if delivery.number is not None and numbers.get(delivery.number) is delivery:
            del numbers[delivery.number]

    def add_partial(self, link: Link, data: bytes) -> None:
        """Keep a part of a message; of a message that is too large, only its size."""
        link.arrived += len(data)
        if link.max_message_size and link.arrived > link.max_message_size:
            self._discard(link)
        else:
            add_part(link.pieces, data)
            self.partial += len(data)

    def pop_partial(self, link: Link) -> bytes | None:
        """The kept parts of a message; None if the message was too large."""
        too_large = link.max_message_size and link.arrived > link.max_message_size
        message = b"".join(link.pieces)
        self.discard_partial(link)
        return None if too_large else message

    def discard_partial(self, link: Link) -> None:
        """Forget the message that is arriving."""
        self._discard(link)
        link.arrived = 0
        link.arriving = None

    def _discard(self, link: Link) -> None:
        self.partial -= sum(map(len, link.pieces))
        link.pieces.clear()

    def clear(self) -> None:
        """Void everything."""
        for session in list(self.sessions.values()):
            self.void_session(session)
        self.leaving.clear()
        self.by_channel.clear()
        self.by_their_channel.clear()


def _lowest_free(used: "set[int] | dict[int, Session]", most: int) -> int | None:
    if len(used) > most:
        return None
    if len(used) not in used:  # mostly those in use are the lowest ones
        return len(used)
    return next(each for each in range(most + 1) if each not in used)
