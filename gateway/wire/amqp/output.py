"""
The frames that one side writes, in the order of the calls, except for frames that wait:

- A disposition waits until all bytes are taken, or another frame must not overtake it: settling 100
  messages in turn writes one frame (part 2, 2.7.6).
- A flow waits likewise, and has the current state when it is written: granting credit 100 times
  writes one frame.
- A transfer waits while the peer's session window is closed (2.5.6), and so do all frames that must
  not overtake it. A message without credit waits in its link's queue (2.6.7).
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from gateway.wire.amqp.dispositions import Range, encode_state, write_disposition
from gateway.wire.amqp.events import AmqpError, DeliveryState, TransactionalState
from gateway.wire.amqp.frames import AMQP_HEADER, HEARTBEAT, LEAST_MAX_FRAME_SIZE, write_frame
from gateway.wire.amqp.performatives import (
    CLOSE,
    DETACH,
    END,
    FLOW,
    MAX_UINT,
    OPEN,
    uint,
    write_error,
)
from gateway.wire.amqp.registry import Link, Session, Waiting
from gateway.wire.amqp.states import CONNECTION, HEADER, LINK, SESSION, Side
from gateway.wire.amqp.transfers import TransferWriter

OUTGOING_WINDOW: Final = 0x7FFFFFFF  # transfers that we say we may send: as many as allowed

_FLOW_HEAD: Final = b"\0\x53\x13\xc0"
_TRUE, _FALSE, _NULL = 0x41, 0x42, 0x40
_flow = struct.Struct(">IBBH4sBBBIBIBIBIBIBIBIBBB")

_IN_MEMORY: Final = 256  # bytes, at most, that a waiting frame or function takes besides its own

Pieces = tuple[bytes | memoryview, ...]


@attrs.define(eq=False)
class Output:
    """The frames that one side writes. It writes nothing before its open, or after its close."""

    opening: list[Any]  # of the open that `close` writes if there was none
    ours: Side = Side.IDLE
    failed: bool = False  # we have closed with an error
    pads: bool = False  # whether trailing nulls of each frame are written
    max_frame_size: int = LEAST_MAX_FRAME_SIZE  # the peer's limit
    size: int = 0  # bytes that wait to be taken
    queued: int = 0  # bytes that wait for credit or for a session's window
    _greeting: bytes = b""
    _pieces: list[bytes | memoryview] = attrs.field(factory=list)
    _due: dict[Session, None] = attrs.field(factory=dict)  # sessions with a disposition due
    _flows: dict[Link | Session, None] = attrs.field(factory=dict)  # those whose flow is due

    # ------------------------------------------------------------------ the connection

    def greet(self) -> None:
        """Write the protocol header, unless it was written before."""
        if self.ours is Side.IDLE:
            self.ours = CONNECTION.after(self.ours, HEADER)
            self._greeting = AMQP_HEADER

    def pop_header(self) -> bytes:
        """The protocol header, unless it was taken before."""
        self.greet()
        header, self._greeting = self._greeting, b""
        return header

    def open(self, fields: list[Any]) -> None:
        """Write our open, before the frames that were written earlier."""
        self.greet()
        self.ours = CONNECTION.after(self.ours, OPEN)
        self.opening = []
        frame = write_frame(OPEN, fields, 0, pads=self.pads)
        self._pieces.insert(0, frame)
        self.size += len(frame)

    def close_after(self, sessions: Iterable[Session], error: AmqpError | None) -> None:
        """Write our close as soon as no transfer of the sessions waits for a window any more."""
        waiting = [session for session in sessions if session.waiting]
        if not waiting:
            self.close(error)
        for session in waiting:
            self._wait(session, lambda: self._close_if_last(waiting, error))

    def _close_if_last(self, sessions: list[Session], error: AmqpError | None) -> None:
        if self.ours is Side.OPEN and not any(session.waiting for session in sessions):
            self.close(error)

    def close(self, error: AmqpError | None) -> None:
        """Write our close, and nothing after it."""
        if self.ours is Side.ENDED:
            return
        if self.ours is not Side.OPEN:
            self.open(self.opening)
        self._flush()
        self.write(write_frame(CLOSE, [write_error(error)], 0, pads=self.pads))
        self.ours, self.failed = CONNECTION.after(self.ours, CLOSE), error is not None
        self._due.clear()
        self._flows.clear()

    def heartbeat(self) -> None:
        """Write an empty frame, if nothing else waits to be taken."""
        if self.ours is Side.OPEN and not self.size:
            self.write(HEARTBEAT)

    @property
    def pending(self) -> bool:
        """True if there is anything to take."""
        if self._greeting:
            return True
        return self.ours in (Side.OPEN, Side.ENDED) and bool(
            self._pieces or self._due or self._flows
        )

    def data_to_send(self, most: int) -> bytes:
        """About `most` bytes, in whole pieces; empty if nothing is to be written now."""
        if self._due or self._flows:
            self._flush()
        pieces = self._pieces
        if self.ours is Side.GREETED or self.ours is Side.IDLE:
            data, self._greeting = self._greeting, b""
            return data
        if self._greeting:
            pieces.insert(0, self._greeting)
            self.size += len(self._greeting)
            self._greeting = b""
        if self.size <= most:
            data = b"".join(pieces)
            pieces.clear()
            self.size = 0
            return data
        size = taken = 0
        for piece in pieces:
            size += len(piece)
            if taken and size > most:
                size -= len(piece)
                break
            taken += 1
        data = b"".join(pieces[:taken])
        del pieces[:taken]
        self.size -= size
        return data

    def discard(self) -> None:
        """Forget what waits to be taken."""
        self._pieces.clear()
        self.size = 0

    # ------------------------------------------------------------------ frames

    def write(self, frame: bytes) -> None:
        """Write a frame that nothing delays."""
        if self.ours is not Side.ENDED:
            self._pieces.append(frame)
            self.size += len(frame)

    def write_after(self, session: Session, code: int, fields: list[Any]) -> None:
        """Write a frame of a session after its transfers and dispositions."""
        frame = write_frame(code, fields, session.channel, pads=self.pads)
        if session.due is not None:
            self._write_due(session)
        if session.waiting:
            self._wait(session, frame)
        else:
            self.write(frame)

    def _wait(self, session: Session, part: Waiting) -> None:
        session.wait(part)
        self.queued += _weight(part)

    def detach(self, link: Link, error: AmqpError | None, *, closed: bool) -> None:
        """Write the detach of a link, and forget the messages that waited for credit."""
        link.ours = LINK.after(link.ours, DETACH)
        self.forget_link(link)
        fields = [uint(link.handle), closed or None, write_error(error)]
        self.write_after(link.session, DETACH, fields)
        link.session.handles.discard(link.handle)

    def end(self, session: Session, error: AmqpError | None) -> None:
        """Write the end of a session; transfers that still wait are dropped."""
        self._drop_waiting(session)
        self.write_after(session, END, [write_error(error)])
        session.ours = SESSION.after(session.ours, END)
        self.forget(session)

    def forget(self, session: Session) -> None:
        """Forget the due frames of a session that has ended, and of its links."""
        self._drop_waiting(session)
        self._due.pop(session, None)
        self._flows.pop(session, None)
        for link in session.links.values():
            self.forget_link(link)

    def _drop_waiting(self, session: Session) -> None:
        self.queued -= sum(map(_weight, session.waiting))
        session.waiting = ()

    def forget_link(self, link: Link) -> None:
        """Forget the flow that is due, and the messages that wait for the link's credit."""
        self._flows.pop(link, None)
        self.queued -= sum(len(each.payload) for each in link.queue)
        link.queue = ()

    # ------------------------------------------------------------------ dispositions

    def dispose(
        self,
        session: Session,
        delivery_id: int,
        *,
        receiver: bool,
        settled: bool,
        state: DeliveryState | None,
    ) -> None:
        """
        Write a delivery's state, in one frame with that of the delivery before it if equal.

        Raises:
            MessageError: AMQP can't express the state.
        """
        encoded = encode_state(state)
        due = session.due
        if due is not None:
            if (
                due.last + 1 == delivery_id
                and due.settled is settled
                and due.receiver is receiver
                and due.state == encoded
            ):
                due.last = delivery_id
                return
            self._write_due(session)
        session.due = Range(receiver, delivery_id, delivery_id, settled, encoded)
        if isinstance(state, TransactionalState):
            self._write_due(session)  # the discharge, a transfer, must not overtake it
        else:
            self._due[session] = None

    def _write_due(self, session: Session) -> None:
        due, session.due = session.due, None
        if due is not None:
            self.write(write_disposition(session.channel, due, pads=self.pads))

    # ------------------------------------------------------------------ flows

    def flow(self, of: Link | Session) -> None:
        """Write the state of a link or a session, when the bytes are taken."""
        self._flows[of] = None

    def _flush(self) -> None:
        """Write the dispositions and flows that are due."""
        for session in self._due:
            self._write_due(session)
        self._due.clear()
        for of in list(self._flows):
            if isinstance(of, Session):
                self._write_flow(of, None)
            elif of.ours is not Side.OPEN:
                continue  # the link's attach comes first
            elif of.we_send and of.session.waiting:
                self._wait(of.session, self._flow_of(of))  # it counts the transfers before it
            else:
                self._write_flow(of.session, of)
            del self._flows[of]

    def _flow_of(self, link: Link) -> Callable[[], None]:
        return lambda: self._write_flow(link.session, link)

    def _write_flow(self, session: Session, link: Link | None) -> None:
        """Write a flow (part 2, 2.7.4)."""
        session.incoming_window = session.window
        windows = (
            session.next_incoming & MAX_UINT,
            session.incoming_window,
            session.next_outgoing & MAX_UINT,
            OUTGOING_WINDOW,
        )
        if link is None or link.theirs is Side.IDLE or self.pads:
            self._write_rare_flow(session, windows, link)
            return
        # A message that has arrived in part was sent, as its sender counts.
        begun = 1 if link.arriving is not None else 0
        self.write(
            _flow.pack(
                _flow.size,
                2,
                0,
                session.channel,
                _FLOW_HEAD,
                _flow.size - 13,
                10,
                0x70,
                windows[0],
                0x70,
                windows[1],
                0x70,
                windows[2],
                0x70,
                windows[3],
                0x70,
                link.handle,
                0x70,
                (link.delivery_count + begun) & MAX_UINT,
                0x70,
                credit_on_the_wire(link),
                _NULL,
                _TRUE if link.drain else _FALSE,
                _FALSE,
            )
        )

    def _write_rare_flow(
        self, session: Session, windows: tuple[int, int, int, int], link: Link | None
    ) -> None:
        fields: list[Any] = [uint(each) for each in windows]
        if session.theirs is Side.IDLE:
            fields[0] = None  # the peer's begin, which has its first number, hasn't arrived
        if link is not None:
            begun = 1 if link.arriving is not None else 0
            fields.append(uint(link.handle))
            # A receiver learns the count from the sender's attach.
            known = link.we_send or link.theirs is not Side.IDLE
            fields.append(uint((link.delivery_count + begun) & MAX_UINT) if known else None)
            fields.append(uint(credit_on_the_wire(link)))
            fields += [None, link.drain, False]
        self.write(write_frame(FLOW, fields, session.channel, pads=self.pads))

    # ------------------------------------------------------------------ transfers

    def transfer(
        self,
        link: Link,
        tag: bytes,
        payload: bytes,
        message_format: int,
        *,
        settled: bool,
        state: bytes = b"",
    ) -> int:
        """
        Write a message, in as many frames as the peer needs, with an encoded delivery state if
        there is one; return its delivery-id.
        """
        session = link.session
        delivery_id = session.next_delivery
        session.next_delivery = (delivery_id + 1) & MAX_UINT
        link.delivery_count += 1
        writer, key = link.writer, (len(tag), message_format, settled, state)
        if writer is None or writer.key != key:
            writer = link.writer = TransferWriter(
                channel=session.channel, handle=link.handle, key=key, pads=self.pads
            )
        size = len(payload)
        room = self.max_frame_size - writer.size
        if size <= room:
            self._write_transfer(session, (writer.head(size, delivery_id, tag), payload))
            return delivery_id
        view = memoryview(payload)
        for start in range(0, size, room):
            piece = view[start : start + room]
            head = writer.head(len(piece), delivery_id, tag, more=start + room < size)
            self._write_transfer(session, (head, piece))
        return delivery_id

    def _write_transfer(self, session: Session, pieces: Pieces) -> None:
        if session.waiting or session.outgoing_window <= 0:
            self._wait(session, pieces)
            return
        session.outgoing_window -= 1
        session.next_outgoing += 1
        if self.ours is not Side.ENDED:
            self._pieces += pieces
            self.size += len(pieces[0]) + len(pieces[1])

    def write_waiting(self, session: Session) -> None:
        """Write the frames that have waited for the session's window, as far as it has room now."""
        waiting = session.waiting
        while waiting:
            first = waiting[0]
            if isinstance(first, tuple) and session.outgoing_window <= 0:
                break
            waiting.popleft()
            self.queued -= _weight(first)
            if isinstance(first, bytes):
                self.write(first)
            elif isinstance(first, tuple):
                session.outgoing_window -= 1
                session.next_outgoing += 1
                for piece in first:
                    self.write(bytes(piece))
            else:
                first()


def _weight(part: Waiting) -> int:
    """
    The bytes for which a part counts while it waits. A peer may have any number of small frames
    wait, by attaching links while its window is closed, so that they count for their memory, too.
    """
    if isinstance(part, tuple):
        return sum(map(len, part))
    return _IN_MEMORY + (len(part) if isinstance(part, bytes) else 0)


def credit_on_the_wire(link: Link) -> int:
    """
    The link's credit as the peer counts it: without the message that is arriving in part, and with
    those that wait in our queue. Never negative: a peer may have sent more than it may.
    """
    begun = 1 if link.arriving is not None else 0
    return max(0, link.credit - begun + len(link.queue)) & MAX_UINT
