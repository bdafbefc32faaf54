"""The engine's methods for the links of its connection, and for their deliveries."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gateway.domain.message import Described, Kind, Typed, Value
from gateway.wire.amqp.dispositions import encode_state
from gateway.wire.amqp.events import (
    NOTHING,
    AmqpError,
    DeliveryId,
    DeliveryState,
    LinkId,
    NewLink,
    ReceiverSettles,
    SenderSettles,
    SessionId,
)
from gateway.wire.amqp.output import Output
from gateway.wire.amqp.performatives import (
    ADDRESS,
    ATTACH,
    CAPABILITIES,
    FILTERS,
    MAX_UINT,
    SOURCE,
    TARGET,
    echo_terminus,
    field,
    fields_of,
    read_settle_modes,
    symbols,
    symbols_or_null,
    ubyte,
    uint,
    write_terminus,
)
from gateway.wire.amqp.registry import Link, LinkDelivery, Queued, Registry
from gateway.wire.amqp.states import LINK, Side
from gateway.wire.amqp.types import decode_at


class Links:
    """The part of an `Engine` that handles no bytes. With a void id, a method does nothing."""

    def __init__(self, registry: Registry, output: Output, wake: Callable[[], object]) -> None:
        self._registry = registry
        self._output = output
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
        if record is None or record.ours is not Side.IDLE:
            return
        attach = _asked(record)
        record.max_message_size = max_message_size
        record.lingers = lingers
        named = {} if address is None else {ADDRESS: address}
        of_source, of_target = (named, {}) if record.we_send else ({}, named)
        if filters is not None:
            of_source = of_source | {FILTERS: symbols_or_null(filters)}
        _write_attach(
            self._output,
            record,
            termini=(
                echo_terminus(field(attach, 5, Described), of_source),
                echo_terminus(field(attach, 6, Described), of_target),
            ),
            settles=read_settle_modes(attach),
            properties=properties,
        )
        send_queued(self._output, record)
        self._wake()

    def accept_coordinator(
        self, link: LinkId, capabilities: tuple[str, ...], max_message_size: int
    ) -> None:
        """As `accept`, where the target is our coordinator, with these capabilities."""
        record = self._registry.links.get(link)
        if record is None or record.ours is not Side.IDLE:
            return
        attach = _asked(record)
        record.max_message_size = max_message_size
        target = field(attach, 6, Described)
        _write_attach(
            self._output,
            record,
            termini=(
                field(attach, 5, Described),
                echo_terminus(target, {CAPABILITIES: symbols(capabilities)}),
            ),
            settles=read_settle_modes(attach),
        )
        self._wake()

    def refuse(self, link: LinkId, error: AmqpError) -> None:
        """
        Answer an attach with neither source nor target, and close the link with `error` (2.6.3).
        """
        self.detach(link, error)

    def attach(self, session: SessionId, new: NewLink) -> LinkId | None:
        """
        Attach a link (client). `LinkAttached` is the answer. None if the session has ended, or the
        peer allows no further link on it.
        """
        record = self._registry.sessions.get(session)
        if record is None or record.ours is not Side.OPEN:
            return None
        link = self._registry.add_link(record, new.name, we_send=new.we_send)
        if link is None:
            return None
        link.max_message_size = new.max_message_size
        record.unanswered.setdefault((new.name, new.we_send), deque()).append(link)
        _write_attach(
            self._output,
            link,
            termini=(write_terminus(new.source, SOURCE), write_terminus(new.target, TARGET)),
            settles=(new.sender_settles, new.receiver_settles),
            properties=new.properties,
        )
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

        The gateway always closes its links. After a detach that doesn't close, and that crosses a
        close of the peer's, the specification wants another attach and a close (2.6.6): the engine
        sends neither.

        If the answer is `awaited`, `LinkDetached` reports it.
        """
        record = self._registry.links.get(link)
        if record is None:
            return
        record.awaited = awaited
        if awaited:
            self._registry.leaving[link] = record
        detach(self._registry, self._output, record, error, closed=closed)
        self._wake()

    def answer_detach(self, link: LinkId) -> None:
        """
        Detach a lingering link that the peer has detached, and forget it. If the peer has ended its
        session meanwhile, our end follows the last of these detaches.
        """
        record = self._registry.leaving.get(link)
        if record is None or record.theirs is not Side.ENDED:
            return
        let_go(self._registry, self._output, record)
        self._wake()

    def grant(self, link: LinkId, credit: int) -> None:
        """Let the peer send `credit` more messages than it already may."""
        record = self._registry.links.get(link)
        if record is not None and not record.we_send:
            record.credit += credit
            record.drain = False
            self._output.flow(record)
            self._wake()

    def drain(self, link: LinkId) -> None:
        """Ask the peer to use up its credit or to give it back: `LinkDrained` follows."""
        record = self._registry.links.get(link)
        if record is not None and not record.we_send:
            record.drain = record.draining = True
            self._output.flow(record)
            self._wake()

    def drained(self, link: LinkId) -> None:
        """Give back the remaining credit, because we have nothing to send (2.6.7)."""
        record = self._registry.links.get(link)
        if record is not None and record.we_send and record.drain:
            given_back = max(0, record.credit)
            record.delivery_count += given_back
            record.credit -= given_back
            record.draining = False
            self._output.flow(record)
            self._wake()

    def credit(self, link: LinkId) -> int:
        """Messages that the link's sending end may still send."""
        record = self._registry.links.get(link)
        return record.credit if record else 0

    # ------------------------------------------------------------------ deliveries

    def send(
        self,
        link: LinkId,
        tag: bytes,
        payload: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
        state: DeliveryState | None = None,
    ) -> DeliveryId | None:
        """
        Send a message: encoded sections, of any size. None if the link is void: nothing was sent.

        `state` is the state of the delivery at its sender (part 4, 4.4.1): the transaction that it
        belongs to.

        Unless it is `settled`, `DispositionReceived` follows, or the end of the link: then the
        outcome is unknown. Without credit the message waits in memory for the peer's next flow.
        """
        record = self._registry.links.get(link)
        if record is None or not record.we_send:
            return None
        registry = self._registry
        id_ = DeliveryId(next(registry.ids))
        delivery = None
        encoded = b"" if state is None else encode_state(state)
        if not settled:
            delivery = LinkDelivery(id_, record, None)
            registry.deliveries[id_] = record.deliveries[id_] = delivery
        record.credit -= 1
        if record.credit < 0 or record.ours is not Side.OPEN:
            record.wait(Queued(tag, payload, message_format, delivery, encoded))
            self._output.queued += len(payload)
        else:
            number = self._output.transfer(
                record, tag, payload, message_format, settled=settled, state=encoded
            )
            if delivery is not None:
                delivery.number = number
                record.session.sent[number] = delivery
        self._wake()
        return id_

    def settle(self, delivery: DeliveryId, state: DeliveryState | None = None) -> None:
        """
        Tell the peer the outcome of a delivery that it has not settled itself, and forget the
        delivery.

        On a link on which we send, this confirms the outcome that the receiver has asked for.
        """
        record = self._registry.deliveries.get(delivery)
        if record is None:
            return
        self._registry.drop_delivery(record)
        if record.number is not None:
            self._output.dispose(
                record.link.session,
                record.number,
                receiver=not record.link.we_send,
                settled=True,
                state=record.state if state is None else state,
            )
        self._wake()

    def update(self, delivery: DeliveryId, state: DeliveryState) -> None:
        """Tell the peer an outcome and wait for it to settle (`ReceiverSettles.SECOND`)."""
        record = self._registry.deliveries.get(delivery)
        if record is None:
            return
        record.state = state
        if record.number is not None:
            self._output.dispose(
                record.link.session,
                record.number,
                receiver=not record.link.we_send,
                settled=False,
                state=state,
            )
        self._wake()


def send_queued(output: Output, link: Link) -> None:
    """Send messages that have waited, as far as the link has credit."""
    while link.queue and link.credit + len(link.queue) > 0:
        waited = link.queue.popleft()
        output.queued -= len(waited.payload)
        delivery = waited.delivery
        # We settled the delivery in the meantime, so the peer's state of it has no effect.
        settled = delivery is None or delivery.id not in link.deliveries
        number = output.transfer(
            link,
            waited.tag,
            waited.payload,
            waited.message_format,
            settled=settled,
            state=waited.state,
        )
        if delivery is not None and not settled:
            delivery.number = number
            link.session.sent[number] = delivery


def detach(
    registry: Registry, output: Output, link: Link, error: AmqpError | None, *, closed: bool
) -> None:
    """Void a link and detach our side of it; an attach that is unanswered is refused."""
    registry.void_link(link)
    if link.ours is Side.IDLE:
        _write_attach(output, link, termini=(None, None))
    output.detach(link, error, closed=closed)
    if link.theirs is Side.ENDED:
        registry.forget_name(link)


def let_go(registry: Registry, output: Output, link: Link) -> None:
    """Answer the detach of a lingering link, and then the end that has waited for it."""
    session = link.session
    registry.leaving.pop(link.id, None)
    detach(registry, output, link, None, closed=link.closed)
    if session.theirs is Side.ENDED and not registry.lingering_in(session):
        output.end(session, None)
        registry.forget_session(session)


def _asked(link: Link) -> list[Any]:
    """The fields of the peer's attach, which isn't answered yet."""
    return fields_of(decode_at(link.attach, 0)[0])


def _write_attach(
    output: Output,
    link: Link,
    *,
    termini: tuple[Value, Value],  # source and target
    settles: tuple[int, int] = (SenderSettles.MIXED, ReceiverSettles.FIRST),
    properties: Mapping[str, Any] = NOTHING,
) -> None:
    """Write our attach: a request of ours, or the answer to the peer's."""
    link.ours = LINK.after(link.ours, ATTACH)
    link.attach = b""
    count = link.delivery_count & MAX_UINT
    most = link.max_message_size
    fields = [
        link.name,
        uint(link.handle),
        not link.we_send,
        *(ubyte(each) for each in settles),
        *termini,
        None,
        None,
        uint(count) if link.we_send else None,
        Typed(Kind.ULONG, most) if most else None,
        None,
        None,
        symbols_or_null(properties),
    ]
    output.write_after(link.session, ATTACH, fields)
