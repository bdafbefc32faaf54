"""The engine's methods for the links of its connection, and for their deliveries."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.wire.amqp.events import (
    NOTHING,
    AmqpError,
    DeliveryId,
    DeliveryState,
    LinkId,
    NewLink,
    SessionId,
)
from tests.wire.amqp.proton import library
from tests.wire.amqp.proton.library import lib
from tests.wire.amqp.proton.registry import Registry
from tests.wire.amqp.proton.rewriting import Outbound


class Links:
    """The part of an `Engine` that handles no bytes. With a void id, a method does nothing."""

    def __init__(self, registry: Registry, outbound: Outbound, wake: Callable[[], object]) -> None:
        self._registry = registry
        self._outbound = outbound
        self._wake = wake

    def accept(
        self,
        link: LinkId,
        *,
        address: str | None = None,
        filters: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] = NOTHING,
        max_message_size: int = 0,
        lingers: bool = False,
    ) -> None:
        """
        Answer an attach with its own source, target and settle modes.

        `address` names the node that was created for a dynamic terminus; `filters` are the source's
        filters in the answer (None: all that were asked for). Messages larger than
        `max_message_size` bytes (0: no limit) are rejected as they arrive, without an event.

        If the link `lingers`, the peer's detach is answered by `answer_detach` instead of at once.
        """
        record = self._registry.links.get(link)
        if record is None:
            return
        record.max_message_size = max_message_size
        record.lingers = lingers
        library.echo(record.pointer, address=address, filters=filters)
        library.put_symbols(lib.pn_link_properties(record.pointer), properties)
        lib.pn_link_set_max_message_size(record.pointer, max_message_size)
        lib.pn_link_open(record.pointer)
        self._wake()

    def refuse(self, link: LinkId, error: AmqpError) -> None:
        """
        Answer an attach with neither source nor target, and close the link with `error` (2.6.3).
        """
        record = self._registry.links.get(link)
        if record is None:
            return
        lib.pn_terminus_set_type(lib.pn_link_source(record.pointer), lib.PN_UNSPECIFIED)
        lib.pn_terminus_set_type(lib.pn_link_target(record.pointer), lib.PN_UNSPECIFIED)
        lib.pn_link_open(record.pointer)
        self.detach(link, error)

    def attach(self, session: SessionId, new: NewLink) -> LinkId | None:
        """Attach a link (client); None if the session has ended. `LinkAttached` is the answer."""
        record = self._registry.sessions.get(session)
        if record is None:
            return None
        pointer = library.new_link(record.pointer, new)
        link = self._registry.add_link(pointer, record, we_send=new.we_send)
        link.max_message_size = new.max_message_size
        self._wake()
        return link.id

    def detach(
        self,
        link: LinkId,
        error: AmqpError | None = None,
        *,
        closed: bool = True,
        awaited: bool = False,
    ) -> None:
        """
        Detach a link: its id and its deliveries become void, without an event.

        If the answer is `awaited`, `LinkDetached` reports it.
        """
        record = self._registry.links.get(link)
        if record is None:
            return
        library.put_error(lib.pn_link_condition(record.pointer), error)
        if closed:
            lib.pn_link_close(record.pointer)
        else:
            lib.pn_link_detach(record.pointer)
        if awaited:
            self._registry.leave(record)
        else:
            self._registry.drop_link(record)
        self._wake()

    def answer_detach(self, link: LinkId) -> None:
        """Detach a lingering link that the peer has detached, and forget it."""
        record = self._registry.leaving.get(link)
        if record is None or record.detached is None:
            return
        self._registry.drop_leaving(record)
        library.answer_detach(record.pointer, closed=record.detached)
        self._wake()

    def grant(self, link: LinkId, credit: int) -> None:
        """Let the peer send `credit` more messages than it already may."""
        if record := self._registry.links.get(link):
            lib.pn_link_flow(record.pointer, credit)
            self._wake()

    def drain(self, link: LinkId) -> None:
        """Ask the peer to use up its credit or to give it back: `LinkDrained` follows."""
        if record := self._registry.links.get(link):
            record.draining = True
            lib.pn_link_drain(record.pointer, 0)
            self._wake()

    def drained(self, link: LinkId) -> None:
        """Give back the remaining credit, because we have nothing to send (2.6.7)."""
        if record := self._registry.links.get(link):
            lib.pn_link_drained(record.pointer)
            self._wake()

    def credit(self, link: LinkId) -> int:
        """Messages that the link's sending end may still send."""
        record = self._registry.links.get(link)
        return int(lib.pn_link_credit(record.pointer)) if record else 0

    # ------------------------------------------------------------------ deliveries

    def send(
        self,
        link: LinkId,
        tag: bytes,
        payload: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
    ) -> DeliveryId | None:
        """
        Send a message: encoded sections, of any size. None if the link is void: nothing was sent.

        Unless it is `settled`, `DispositionReceived` follows, or the end of the link: then the
        outcome is unknown. Without credit the message waits in memory for the peer's next flow.
        """
        record = self._registry.links.get(link)
        if record is None:
            return None
        if message_format:
            self._outbound.formats[tag] = message_format
        pointer = library.send(record.pointer, tag, payload)
        self._wake()
        if settled:
            lib.pn_delivery_settle(pointer)
            return self._registry.next_delivery_id()
        return self._registry.add_delivery(pointer, record).id

    def settle(self, delivery: DeliveryId, state: DeliveryState | None = None) -> None:
        """
        Tell the peer the outcome of a delivery that it has not settled itself, and forget the
        delivery.

        On a link on which we send, this confirms the outcome that the receiver has asked for.
        """
        record = self._registry.deliveries.get(delivery)
        if record is None:
            return
        if state is not None:
            library.put_state(record.pointer, state)
        self._registry.drop_delivery(record)
        lib.pn_delivery_settle(record.pointer)
        self._wake()

    def update(self, delivery: DeliveryId, state: DeliveryState) -> None:
        """Tell the peer an outcome and wait for it to settle (`ReceiverSettles.SECOND`)."""
        if record := self._registry.deliveries.get(delivery):
            library.put_state(record.pointer, state)
            self._wake()
