"""Maps ids to Proton's sessions, links and deliveries."""

from itertools import count
from typing import Any

import attrs

from gateway.wire.amqp.events import DeliveryId, LinkId, SessionId
from tests.wire.amqp.proton.frames import Incoming

Pointer = Any  # into Proton's memory; equal and hashed by address


@attrs.define(eq=False)
class Session:
    id: SessionId
    pointer: Pointer
    links: "dict[LinkId, Link]" = attrs.field(factory=dict)


@attrs.define(eq=False)
class Link:
    id: LinkId
    pointer: Pointer
    session: Session
    we_send: bool
    incoming: Incoming | None = None  # set once the peer has attached as a sender
    partial: list[bytes] = attrs.field(factory=list)  # of a message whose last frame is missing
    arrived: int = 0  # bytes of that message; if it is too large, they aren't kept
    max_message_size: int = 0  # 0: no limit
    draining: bool = False  # we have asked the peer to use up its credit
    lingers: bool = False  # the link's owner answers the peer's detach
    detached: bool | None = None  # by the peer; True: it has closed the link
    deliveries: "dict[DeliveryId, Delivery]" = attrs.field(factory=dict)


@attrs.define(eq=False)
class Delivery:
    id: DeliveryId
    pointer: Pointer
    link: Link
    size: int  # in bytes, for a received message


@attrs.define(eq=False)
class Registry:
    """
    All sessions, links and deliveries that aren't void.

    A pointer is valid as long as its entry here: after the entry is removed, Proton may free it.
    Links that one side has detached and the other hasn't are void, except for the second detach.
    """

    sessions: dict[SessionId, Session] = attrs.field(factory=dict)
    links: dict[LinkId, Link] = attrs.field(factory=dict)
    deliveries: dict[DeliveryId, Delivery] = attrs.field(factory=dict)
    by_pointer: dict[Pointer, Any] = attrs.field(factory=dict)  # Session, Link or Delivery
    leaving: dict[LinkId, Link] = attrs.field(factory=dict)  # detached by one side
    leaving_by_pointer: dict[Pointer, Link] = attrs.field(factory=dict)
    unsettled: int = 0  # bytes of whole messages that were received and that we haven't settled
    partial: int = 0  # bytes of messages whose last frame is missing
    _ids: count = attrs.field(factory=lambda: count(1))  # type: ignore[type-arg]

    def add_session(self, pointer: Pointer) -> Session:
        session = Session(SessionId(next(self._ids)), pointer)
        self.sessions[session.id] = self.by_pointer[pointer] = session
        return session

    def add_link(self, pointer: Pointer, session: Session, *, we_send: bool) -> Link:
        link = Link(LinkId(next(self._ids)), pointer, session, we_send)
        self.links[link.id] = session.links[link.id] = self.by_pointer[pointer] = link
        return link

    def add_delivery(self, pointer: Pointer, link: Link, size: int = 0) -> Delivery:
        delivery = Delivery(self.next_delivery_id(), pointer, link, size)
        self.deliveries[delivery.id] = link.deliveries[delivery.id] = delivery
        self.by_pointer[pointer] = delivery
        self.unsettled += size
        return delivery

    def next_delivery_id(self) -> DeliveryId:
        return DeliveryId(next(self._ids))

    def drop_delivery(self, delivery: Delivery) -> None:
        del self.deliveries[delivery.id]
        del delivery.link.deliveries[delivery.id]
        del self.by_pointer[delivery.pointer]
        self.unsettled -= delivery.size

    def drop_link(self, link: Link) -> None:
        for delivery in list(link.deliveries.values()):
            self.drop_delivery(delivery)
        self._discard(link)
        if link.incoming is not None:
            link.incoming.void = True
        del self.links[link.id]
        del link.session.links[link.id]
        del self.by_pointer[link.pointer]

    def leave(self, link: Link) -> None:
        """Keep a link that one side has detached, until the other side's detach arrives."""
        self.drop_link(link)
        self.leaving[link.id] = self.leaving_by_pointer[link.pointer] = link

    def drop_leaving(self, link: Link) -> None:
        del self.leaving[link.id]
        del self.leaving_by_pointer[link.pointer]

    def leaving_of(self, session: Session) -> list[Link]:
        return [link for link in self.leaving.values() if link.session is session]

    def add_partial(self, link: Link, data: bytes) -> None:
        """Keep a part of a message; of a message that is too large, only its size."""
        link.arrived += len(data)
        if link.max_message_size and link.arrived > link.max_message_size:
            self._discard(link)
        else:
            link.partial.append(data)
            self.partial += len(data)

    def take_partial(self, link: Link) -> bytes | None:
        """The kept parts of a message; None if the message was too large."""
        too_large = link.max_message_size and link.arrived > link.max_message_size
        message = b"".join(link.partial)
        self._discard(link)
        link.arrived = 0
        return None if too_large else message

    def _discard(self, link: Link) -> None:
        self.partial -= sum(map(len, link.partial))
        link.partial.clear()

    def drop_session(self, session: Session) -> None:
        for link in list(session.links.values()):
            self.drop_link(link)
        for link in self.leaving_of(session):
            self.drop_leaving(link)
        del self.sessions[session.id]
        del self.by_pointer[session.pointer]

    def clear(self) -> None:
        for session in list(self.sessions.values()):
            self.drop_session(session)
