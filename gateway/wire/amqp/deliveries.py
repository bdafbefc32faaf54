"""
The peer's frames about deliveries: transfers, dispositions and flows (AMQP 1.0, part 2, 2.6.7 and
2.6.12).

A message that comes in several transfers becomes one event, after its last one.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from gateway.wire.amqp.dispositions import Disposition
from gateway.wire.amqp.events import (
    AmqpError,
    DeliveryId,
    DispositionReceived,
    Event,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    Rejected,
    TransferReceived,
)
from gateway.wire.amqp.flows import Flow
from gateway.wire.amqp.frames import FrameError, SessionError
from gateway.wire.amqp.links import detach, send_queued
from gateway.wire.amqp.output import Output
from gateway.wire.amqp.performatives import MAX_UINT
from gateway.wire.amqp.registry import Link, LinkDelivery, Registry, Session
from gateway.wire.amqp.states import LINK, NOT_ALLOWED, Side
from gateway.wire.amqp.transfers import INVALID_FIELD, Transfer, TransferShape

LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"

# Beyond it the sum with a delivery count isn't one of serial numbers (RFC 1982).
_MOST_CREDIT: Final = 0x7FFFFFFF
# Messages beyond its credit that a peer may send. azure-servicebus for Python ignores its credit:
# it assumes a credit of 10,000, and 10,000 more each time that it has used them up.
_MOST_BEYOND: Final = 20_000
_SIZE: Final = "amqp:link:message-size-exceeded"
_BEYOND: Final = "amqp:link:transfer-limit-exceeded"


@attrs.define(eq=False)
class Deliveries:
    """Converts frames about deliveries to `events`."""

    registry: Registry
    output: Output
    max_partial: int
    events: deque[Event] | tuple[()] = attrs.field(default=(), kw_only=True)

    def report(self, event: Event) -> None:
        """Add to `events`. The deque is made here, because an empty one takes 760 bytes."""
        if not self.events:
            self.events = deque()
        self.events.append(event)

    def pop_events(self) -> Iterator[Event]:
        """The events in order; each is removed when it is returned."""
        while self.events:
            yield self.events.popleft()
        self.events = ()

    # ------------------------------------------------------------------ transfers

    def usual_transfer(
        self, shape: TransferShape, delivery_id: int, tag: bytes, payload: bytes
    ) -> None:
        """A whole message in a frame like those before it, on a link that isn't void."""
        link: Link = shape.link
        self._count_transfer(link.session)
        self._whole(link, shape, delivery_id, tag, payload, settled=shape.settled)

    def transfer(self, session: Session, transfer: Transfer, payload: bytes) -> Link | None:
        """
        Any transfer. Returns the link if it isn't void.

        Raises:
            SessionError, FrameError: the frame isn't allowed, or exceeds a limit.
        """
        if session.incoming_window <= 0:
            raise SessionError("amqp:session:window-violation", "a transfer beyond the window")
        self._count_transfer(session)
        link = attached(session, transfer.handle)
        if link.we_send:
            text = f"a transfer on handle {transfer.handle}, where the peer receives"
            raise FrameError(NOT_ALLOWED, text)
        if link.void:
            return None  # we have detached the link, and the peer doesn't know yet
        first = link.arriving or transfer
        if first.delivery_id is None or first.tag is None:
            text = "the first transfer of a delivery without delivery-id or delivery-tag"
            raise SessionError(INVALID_FIELD, text)
        if link.arriving is not None:
            transfer.check_follows(first)
        settled, state = transfer.settled or first.settled, transfer.state or first.state
        if transfer.aborted or first.resume:
            self._drop(link, first, transfer)
        elif transfer.more or link.arriving is not None:
            link.arriving = attrs.evolve(first, settled=settled, state=state)
            self._add_partial(link, payload, more=transfer.more)
        else:
            self._whole(link, first, first.delivery_id, first.tag, payload, settled=settled)
        return link

    def _drop(self, link: Link, first: Transfer, transfer: Transfer) -> None:
        """Drop an aborted delivery, or one that resumes a delivery of a former link (2.7.5)."""
        self.registry.discard_partial(link)
        if transfer.more and not transfer.aborted:
            link.arriving = first
        else:
            self._count_message(link)

    def _count_transfer(self, session: Session) -> None:
        session.next_incoming += 1
        session.incoming_window -= 1
        if session.incoming_window <= session.window >> 1:
            self.output.flow(session)

    def _count_message(self, link: Link) -> None:
        link.credit -= 1
        link.delivery_count += 1
        if link.credit < -_MOST_BEYOND:
            self._detach_beyond(link)

    def _detach_beyond(self, link: Link) -> None:
        error = AmqpError(condition=_BEYOND, description="More messages than the link's credit.")
        self.report(LinkDetached(link=link.id, closed=True, error=error))
        detach(self.registry, self.output, link, error, closed=True)

    def _add_partial(self, link: Link, data: bytes, *, more: bool) -> None:
        """Keep the bytes of a message until its last frame."""
        registry, first = self.registry, link.arriving
        assert first is not None, "a delivery is arriving"
        assert first.delivery_id is not None, "its first frame was checked"
        assert first.tag is not None, "its first frame was checked"
        registry.add_partial(link, data)
        if registry.partial > self.max_partial:
            text = f"{registry.partial} bytes of unfinished messages"
            raise FrameError(LIMIT_EXCEEDED, text)
        if more:
            return
        payload = registry.pop_partial(link)
        if payload is None:
            self._count_message(link)
            self._refuse_size(link, first.delivery_id, settled=first.settled)
        else:
            self._whole(link, first, first.delivery_id, first.tag, payload, settled=first.settled)

    def _whole(
        self,
        link: Link,
        first: Transfer | TransferShape,
        delivery_id: int,
        tag: bytes,
        payload: bytes,
        *,
        settled: bool,
    ) -> None:
        """Report a message."""
        self._count_message(link)
        if link.void:
            return
        size = len(payload)
        if 0 < link.max_message_size < size:
            self._refuse_size(link, delivery_id, settled=settled)
            return
        registry = self.registry
        id_ = DeliveryId(next(registry.ids))
        if not settled:
            delivery = LinkDelivery(id_, link, delivery_id, size)
            registry.deliveries[id_] = link.deliveries[id_] = delivery
            # azure-servicebus for Python may use an id twice: then the peer means the last one.
            link.session.received[delivery_id] = delivery
            registry.unsettled += size
        kind = first.message_format or 0
        self.report(TransferReceived(link.id, id_, tag, kind, payload, settled, first.state))

    def _refuse_size(self, link: Link, delivery_id: int, *, settled: bool) -> None:
        if not settled:
            text = f"The message is larger than {link.max_message_size} bytes."
            state = Rejected(error=AmqpError(condition=_SIZE, description=text))
            self.output.dispose(link.session, delivery_id, receiver=True, settled=True, state=state)

    # ------------------------------------------------------------------ dispositions

    def disposition(self, session: Session, told: Disposition) -> None:
        """The peer's states of deliveries. Deliveries that are settled or void are skipped."""
        numbers = session.sent if told.receiver else session.received
        for delivery in _within(numbers, told.first, told.last):
            state = delivery.their_state if told.state is None else told.state
            self.report(DispositionReceived(delivery.link.id, delivery.id, state, told.settled))
            if told.settled:
                self.registry.drop_delivery(delivery)
            else:
                delivery.their_state = state

    # ------------------------------------------------------------------ flows

    def flow(self, session: Session, told: Flow) -> None:
        """
        The peer's windows, and its state of a link.

        Raises:
            SessionError: the link isn't attached.
        """
        session.next_incoming = told.next_outgoing
        sent = session.next_outgoing - (told.next_incoming or 0)
        session.outgoing_window = told.incoming_window - _signed(sent)
        self.output.write_waiting(session)
        if told.handle is None:
            if told.echo:
                self.output.flow(session)
            return
        link = attached(session, told.handle)
        if link.void:
            return
        if link.we_send:
            self._flow_to_sender(link, told)
        else:
            self._flow_to_receiver(link, told)
        if told.echo:
            self.output.flow(link)

    def _flow_to_sender(self, link: Link, told: Flow) -> None:
        """The receiver's credit, counted from the deliveries that it has seen (2.6.7)."""
        seen = told.delivery_count or 0  # null: it doesn't know our count, which began at 0
        left = _signed(seen - link.delivery_count) + told.credit
        link.credit = min(max(left, 0), _MOST_CREDIT) - len(link.queue)
        link.drain = told.drain
        if link.ours is Side.OPEN:
            send_queued(self.output, link)
        self.report(LinkFlow(link=link.id, credit=link.credit, drain=link.drain))

    def _flow_to_receiver(self, link: Link, told: Flow) -> None:
        """The sender's count, which it raises when it gives credit back."""
        begun = 1 if link.arriving is not None else 0
        known = link.delivery_count + begun
        count = known if told.delivery_count is None else told.delivery_count
        given_back = _signed(count - known)
        if given_back > 0:
            link.delivery_count += given_back
            link.credit -= given_back
        if link.draining and not (link.drain and link.credit > begun):
            link.draining = link.drain = False
            self.report(LinkDrained(link=link.id))


def attached(session: Session, handle: int) -> Link:
    """
    The link with that handle of the peer.

    Raises:
        SessionError: no link has that handle.
    """
    link = session.by_handle.get(handle)
    if link is None:
        raise SessionError(LINK.otherwise, f"handle {handle} isn't attached")
    return link


def _within(numbers: dict[int, LinkDelivery], first: int, last: int) -> Iterable[LinkDelivery]:
    """
    The deliveries of a range, whose bounds the peer chooses. The range is empty if `last` comes
    before `first` (RFC 1982): otherwise a mistake of the peer would settle nearly all deliveries.
    """
    if first == last:
        delivery = numbers.get(first)
        return () if delivery is None else (delivery,)
    if _signed(last - first) < 0:
        return ()
    count = ((last - first) & MAX_UINT) + 1
    if count <= len(numbers):
        ids = range(first, first + count)
        return [numbers[each & MAX_UINT] for each in ids if each & MAX_UINT in numbers]
    return [each for number, each in numbers.items() if (number - first) & MAX_UINT < count]


def _signed(difference: int) -> int:
    """The difference of two sequence numbers (RFC 1982): at most 2**31 either way."""
    return ((difference + 0x80000000) & MAX_UINT) - 0x80000000
