"""
Converts Proton's events to ours: actions of the peer that Proton has checked against the protocol.

A message that comes in several transfer frames becomes one event, after its last frame. `registry`
keeps the bytes until then.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from gateway.domain.message import Described
from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    ReceiverSettles,
    Rejected,
    SenderSettles,
    SessionClosed,
    SessionOpened,
    TransferReceived,
)
from gateway.wire.amqp.performatives import by_name, field, read_terminus
from gateway.wire.amqp.sasl import Credentials
from tests.wire.amqp.proton import library
from tests.wire.amqp.proton.frames import Attach, FrameError, Inbound
from tests.wire.amqp.proton.library import Pointer, lib
from tests.wire.amqp.proton.registry import Delivery, Link, Registry, Session

_LIMIT: Final = "amqp:resource-limit-exceeded"
_SIZE: Final = "amqp:link:message-size-exceeded"


@attrs.define(eq=False)
class Arrivals:
    """
    Converts the events in Proton's collector to `events`, and answers those that need no decision.
    """

    connection: Pointer
    transport: Pointer
    collector: Pointer
    registry: Registry
    inbound: Inbound
    max_links: int
    max_partial: int
    credentials: Credentials | None = None
    events: deque[Event] = attrs.field(factory=deque)
    over: bool = False  # ConnectionClosed is among the events, or has been taken

    def process(self) -> None:
        """
        Convert all waiting events.

        Raises:
            FrameError: the peer exceeded one of our limits.
            MessageError: a value in a frame is malformed.
        """
        collector = self.collector
        while event := lib.pn_collector_peek(collector):
            handler = _HANDLERS.get(lib.pn_event_type(event))
            if handler is not None and not self.over:
                handler(self, event)
            lib.pn_collector_pop(collector)

    def end(self, error: AmqpError | None) -> None:
        """End the connection: nothing of it is valid any more."""
        if not self.over:
            self.over = True
            self.registry.clear()
            self.events.append(ConnectionClosed(error=error))

    # ------------------------------------------------------------------ connection, sessions

    def _connection_opened(self, _: Pointer) -> None:
        fields = self.inbound.opened
        self.events.append(
            ConnectionOpened(
                container_id=field(fields, 0, str, ""),
                hostname=field(fields, 1, str),
                properties=by_name(field(fields, 9, dict, {})),
                mechanism=self.credentials.mechanism if self.credentials else None,
                user=self.credentials.user if self.credentials else None,
            )
        )

    def _connection_closed(self, _: Pointer) -> None:
        error = library.get_error(lib.pn_connection_remote_condition(self.connection))
        lib.pn_connection_close(self.connection)
        self.end(error)

    def _failed(self, _: Pointer) -> None:
        """Proton found that the peer broke the protocol, was silent for too long, or has gone."""
        self.end(library.get_error(lib.pn_transport_condition(self.transport)))

    def _session_opened(self, event: Pointer) -> None:
        pointer = lib.pn_event_session(event)
        session = self.registry.by_pointer.get(pointer)
        if session is None:
            session = self.registry.add_session(pointer)
            lib.pn_session_open(pointer)
        self.events.append(SessionOpened(session=session.id))

    def _session_closed(self, event: Pointer) -> None:
        pointer = lib.pn_event_session(event)
        lib.pn_session_close(pointer)
        session: Session | None = self.registry.by_pointer.get(pointer)
        if session is not None:
            error = library.get_error(lib.pn_session_remote_condition(pointer))
            awaited = [each for each in self.registry.leaving_of(session) if each.detached is None]
            for link in (*session.links.values(), *awaited):
                self.events.append(LinkDetached(link=link.id, closed=True, error=error))
            self.registry.drop_session(session)
            self.events.append(SessionClosed(session=session.id, error=error))
        lib.pn_session_free(pointer)

    # ------------------------------------------------------------------ links

    def _link_attached(self, event: Pointer) -> None:
        pointer = lib.pn_event_link(event)
        attach = self.inbound.attaches.popleft()
        if self.inbound.links > self.max_links:
            raise FrameError(_LIMIT, f"more than {self.max_links} links")
        link: Link | None = self.registry.by_pointer.get(pointer)
        if link is None:
            session = self.registry.by_pointer.get(lib.pn_link_session(pointer))
            left = (
                lib.pn_link_state(pointer) & lib.PN_LOCAL_CLOSED
                or pointer in self.registry.leaving_by_pointer
            )
            if session is None or left:
                if attach.incoming is not None:
                    attach.incoming.void = True
                return  # we have ended the session, and the peer doesn't know yet
            if self.registry.leaving:
                self._make_room(session, lib.pn_link_name(pointer), attach.room)
            we_send = bool(lib.pn_link_is_sender(pointer))
            link = self.registry.add_link(pointer, session, we_send=we_send)
        link.incoming = attach.incoming
        self.events.append(_read_attach(link, attach))

    def _make_room(self, session: Session, name: Pointer, handles: int) -> None:
        """Detach lingering links whose name, or whose handle on our side, a new link needs."""
        leaving = [each for each in self.registry.leaving_of(session) if each.detached is not None]
        for link in leaving:
            same = library.text(lib.pn_link_name(link.pointer)) == library.text(name)
            if same or handles <= len(leaving):
                self.registry.drop_leaving(link)
                library.answer_detach(link.pointer, closed=bool(link.detached))

    def _link_detached(self, event: Pointer) -> None:
        self._detach(lib.pn_event_link(event), closed=False)

    def _link_closed(self, event: Pointer) -> None:
        self._detach(lib.pn_event_link(event), closed=True)

    def _detach(self, pointer: Pointer, *, closed: bool) -> None:
        link: Link | None = self.registry.by_pointer.get(pointer)
        if link is None:
            self._detach_left(pointer, closed=closed)
            return
        error = library.get_error(lib.pn_link_remote_condition(pointer))
        self.events.append(LinkDetached(link=link.id, closed=closed, error=error))
        link.detached = closed
        if link.lingers:
            self.registry.leave(link)
        else:
            self.registry.drop_link(link)
            library.answer_detach(pointer, closed=closed)

    def _detach_left(self, pointer: Pointer, *, closed: bool) -> None:
        link = self.registry.leaving_by_pointer.get(pointer)
        if link is not None:
            error = library.get_error(lib.pn_link_remote_condition(pointer))
            self.registry.drop_leaving(link)
            self.events.append(LinkDetached(link=link.id, closed=closed, error=error))
        library.free_link(pointer)

    def _flow(self, event: Pointer) -> None:
        pointer = lib.pn_event_link(event)
        link: Link | None = self.registry.by_pointer.get(pointer)
        if link is None:
            return
        if link.we_send:
            credit = lib.pn_link_credit(pointer)
            drain = bool(lib.pn_link_get_drain(pointer))
            self.events.append(LinkFlow(link=link.id, credit=credit, drain=drain))
        elif link.draining and not lib.pn_link_draining(pointer):
            link.draining = False
            lib.pn_link_set_drain(pointer, False)
            self.events.append(LinkDrained(link=link.id))

    # ------------------------------------------------------------------ deliveries

    def _delivery(self, event: Pointer) -> None:
        pointer = lib.pn_event_delivery(event)
        known = self.registry.by_pointer.get(pointer)
        if known is not None:
            if lib.pn_delivery_updated(pointer):
                self._disposition(pointer, known)
            return
        link_pointer = lib.pn_delivery_link(pointer)
        link: Link | None = self.registry.by_pointer.get(link_pointer)
        if not lib.pn_delivery_readable(pointer):
            return
        if link is None:
            self._drop_errant(link_pointer, pointer)
            return
        if link.we_send:
            return
        self._transfer(link, link_pointer, pointer)

    def _drop_errant(self, link_pointer: Pointer, pointer: Pointer) -> None:
        """Drop transfers on a link that we have detached and the peer hasn't yet."""
        library.receive(link_pointer, pointer)
        if not lib.pn_delivery_partial(pointer):
            lib.pn_link_advance(link_pointer)
            lib.pn_delivery_settle(pointer)

    def _transfer(self, link: Link, link_pointer: Pointer, pointer: Pointer) -> None:
        """Process one or several frames of the delivery that is arriving."""
        registry = self.registry
        if lib.pn_delivery_aborted(pointer):
            self._format(link)
            registry.take_partial(link)
            lib.pn_delivery_settle(pointer)
            return
        data = library.receive(link_pointer, pointer)
        unfinished = lib.pn_delivery_partial(pointer)
        if unfinished or link.arrived or 0 < link.max_message_size < len(data):
            registry.add_partial(link, data)
            if registry.partial > self.max_partial:
                raise FrameError(_LIMIT, f"{registry.partial} bytes of unfinished messages")
            if not unfinished:
                self._message(link, link_pointer, pointer, registry.take_partial(link))
        else:
            self._message(link, link_pointer, pointer, data)

    def _message(
        self, link: Link, link_pointer: Pointer, pointer: Pointer, payload: bytes | None
    ) -> None:
        message_format = self._format(link)
        tag = library.tag_of(pointer)
        settled = bool(lib.pn_delivery_settled(pointer))
        lib.pn_link_advance(link_pointer)
        if payload is None:
            self._refuse_size(link, pointer)
            return
        if settled:
            lib.pn_delivery_settle(pointer)
            delivery = self.registry.next_delivery_id()
        else:
            delivery = self.registry.add_delivery(pointer, link, len(payload)).id
        self.events.append(
            TransferReceived(link.id, delivery, tag, message_format, payload, settled)
        )

    def _format(self, link: Link) -> int:
        if link.incoming is None or not link.incoming.formats:
            raise FrameError("amqp:connection:framing-error", "a transfer that begins nothing")
        return link.incoming.formats.popleft()

    def _refuse_size(self, link: Link, pointer: Pointer) -> None:
        text = f"The message is larger than {link.max_message_size} bytes."
        library.put_state(pointer, Rejected(error=AmqpError(condition=_SIZE, description=text)))
        lib.pn_delivery_settle(pointer)

    def _disposition(self, pointer: Pointer, delivery: Delivery) -> None:
        settled = bool(lib.pn_delivery_settled(pointer))
        state = library.get_state(pointer)
        self.events.append(DispositionReceived(delivery.link.id, delivery.id, state, settled))
        if settled:
            self.registry.drop_delivery(delivery)
            lib.pn_delivery_settle(pointer)


def _read_attach(link: Link, attach: Attach) -> LinkAttached:
    fields = attach.fields
    return LinkAttached(
        link=link.id,
        session=link.session.id,
        name=field(fields, 0, str, ""),
        we_send=link.we_send,
        source=read_terminus(field(fields, 5, Described)),
        target=read_terminus(field(fields, 6, Described)),
        sender_settles=SenderSettles(max(0, min(field(fields, 3, int, SenderSettles.MIXED), 2))),
        receiver_settles=ReceiverSettles(max(0, min(field(fields, 4, int, 0), 1))),
        max_message_size=field(fields, 10, int, 0),
        properties=by_name(field(fields, 13, dict, {})),
    )


_HANDLERS: Final[dict[int, Callable[[Arrivals, Pointer], None]]] = {
    lib.PN_CONNECTION_REMOTE_OPEN: Arrivals._connection_opened,
    lib.PN_CONNECTION_REMOTE_CLOSE: Arrivals._connection_closed,
    lib.PN_TRANSPORT_ERROR: Arrivals._failed,
    lib.PN_SESSION_REMOTE_OPEN: Arrivals._session_opened,
    lib.PN_SESSION_REMOTE_CLOSE: Arrivals._session_closed,
    lib.PN_LINK_REMOTE_OPEN: Arrivals._link_attached,
    lib.PN_LINK_REMOTE_DETACH: Arrivals._link_detached,
    lib.PN_LINK_REMOTE_CLOSE: Arrivals._link_closed,
    lib.PN_LINK_FLOW: Arrivals._flow,
    lib.PN_DELIVERY: Arrivals._delivery,
}
