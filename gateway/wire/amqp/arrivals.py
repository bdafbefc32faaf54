"""
The peer's frames: each is checked against the protocol, answered as far as that needs no decision,
and reported as an event. Frames about deliveries are in `deliveries`.

An error ends the connection, or with `SessionError` the session in which it occurred. Frames of a
session or link that we have ended are skipped: the peer doesn't know of the end yet.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs

from gateway.domain.message import Described
from gateway.wire.amqp.deliveries import LIMIT_EXCEEDED, Deliveries, attached
from gateway.wire.amqp.dispositions import read_disposition, read_usual
from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    LinkAttached,
    LinkDetached,
    SessionClosed,
    SessionOpened,
)
from gateway.wire.amqp.flows import read_flow, read_usual_flow
from gateway.wire.amqp.frames import (
    AMQP_HEADER,
    DECODE_ERROR,
    LEAST_MAX_FRAME_SIZE,
    FrameError,
    SessionError,
    frame_head,
    read_descriptor,
)
from gateway.wire.amqp.links import detach, let_go
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.output import OUTGOING_WINDOW
from gateway.wire.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    MAX_UINT,
    OPEN,
    TRANSFER,
    by_name,
    field,
    read_error,
    read_settle_modes,
    read_terminus,
    uint,
    uint_in,
    ushort,
)
from gateway.wire.amqp.registry import Link, Session
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.amqp.states import (
    CONNECTION,
    FRAMING_ERROR,
    LINK,
    NOT_ALLOWED,
    SESSION,
    Machine,
    Side,
)
from gateway.wire.amqp.transfers import (
    INVALID_FIELD,
    KEY_SIZE,
    TransferShape,
    read_transfer,
    shape_of,
)
from gateway.wire.amqp.types import decode_at

HANDLE_MAX: Final = 0x7FFFFFFF  # the highest handle that we let the peer use

# Characters of a link's name, and of the addresses of its ends: they are kept while it lives.
MAX_NAME: Final = 4096

_STOLEN: Final = "amqp:link:stolen"
_LEAST_IDLE: Final = 1000  # milliseconds; we write a heartbeat at each half of the peer's timeout
_MAX_USHORT: Final = 0xFFFF  # the highest channel (part 2, 2.7.1)
_MOST_SHAPES: Final = 256  # of transfers: links times sizes of their tags
_KEY_AT, _KEY_END = 4, 4 + KEY_SIZE  # where the shape of a frame is recognized


@attrs.define(eq=False)
class Arrivals(Deliveries):
    """Reads the peer's bytes, and converts its frames to `events`."""

    options: EngineOptions
    credentials: Credentials | None = None  # with which SASL has authenticated the peer
    theirs: Side = Side.IDLE
    idle_timeout: int = 0  # the peer's, in milliseconds; 0: none
    over: bool = False  # ConnectionClosed is among the events, or has been taken
    _channel_max: int = attrs.field(init=False)  # the highest channel that we may use
    _rest: bytes = b""  # of a frame that has arrived in part
    _rests: int = 0  # how often there may have been such a frame
    _shapes: dict[bytes, TransferShape] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._channel_max = self.options.channel_max

    def feed(self, data: bytes) -> None:
        """
        Process bytes of the peer, split anywhere.

        Raises:
            FrameError: not AMQP, or the peer broke the protocol or exceeded one of our limits.
            MessageError: a value is malformed, or nested too deep.
        """
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if self.theirs is Side.IDLE:
            at = self._skip_header(data)
        shapes = self._shapes
        while end - at >= 8 and not self.over:
            shape = shapes.get(data[at + _KEY_AT : at + _KEY_END])
            size = 0 if shape is None else self._usual(shape, data, at, end)
            if size == 0:
                size = self._any(data, at, end)
                if size == 0:
                    break
            at += size
        self._rest = data[at:]
        if at:
            self._rests += 1

    @property
    def unfinished(self) -> tuple[tuple[object, ...], ...]:
        """Keys of what has arrived in part: a frame, and the messages of several frames."""
        messages = (
            (link.id, link.arriving.delivery_id, link.arriving.tag)
            for link in self.registry.links.values()
            if link.arriving is not None
        )
        return (*messages, (self._rests,)) if self._rest else (*messages,)

    def close(self, error: AmqpError | None, *, is_broken: bool = False) -> None:
        """End the connection: nothing of it is valid any more."""
        if not self.over:
            self.over = True
            for session in self.registry.sessions.values():
                self.output.forget(session)
            self.registry.clear()
            self.report(ConnectionClosed(error=error, is_broken=is_broken))

    # ------------------------------------------------------------------ frames

    def _skip_header(self, data: bytes) -> int:
        if not AMQP_HEADER.startswith(data[:8]):
            raise FrameError(FRAMING_ERROR, f"no AMQP 1.0: {data[:8]!r}")
        if len(data) < 8:
            return 0
        self.theirs = Side.GREETED
        self.output.greet()
        return 8

    def _usual(self, shape: TransferShape, data: bytes, at: int, end: int) -> int:
        """
        The fast way: process the frame at byte `at` and return its size, if it is a whole transfer
        of that shape, and nothing about its link is unusual. Otherwise return 0: the slow way
        checks the frame.
        """
        if end - at < shape.size:
            return 0
        size, prefix, delivery_id, tag_head, tag, suffix = shape.unpack(data, at)
        link = shape.link
        if (
            shape.size <= size <= end - at
            and size <= self.options.max_frame_size
            and prefix == shape.prefix
            and tag_head == shape.tag_head
            and suffix == shape.suffix
            and not link.void
            and link.arriving is None
            and link.session.incoming_window > 0
        ):
            self.usual_transfer(shape, delivery_id, tag, data[at + shape.size : at + size])
            return int(size)
        return 0

    def _any(self, data: bytes, at: int, end: int) -> int:
        """Process the frame at byte `at` and return its size; 0 if a part of it is missing."""
        size, words, kind, channel = frame_head.unpack_from(data, at)
        most = self.options.max_frame_size
        if not 8 <= 4 * words <= size <= most or kind != 0:
            text = f"a frame of type {kind} and {size} bytes, limit {most}"
            raise FrameError(FRAMING_ERROR, text)
        if end - at < size:
            return 0
        body = at + 4 * words
        if body < at + size:  # otherwise a heartbeat
            self._read(data, at, body, at + size, channel)
        return int(size)

    def _read(self, data: bytes, start: int, body: int, end: int, channel: int) -> None:
        """Process the frame that starts at `start`, with its performative at `body`."""
        code, list_at = read_descriptor(data, body)
        if self.output.failed and not self._counts_late(code, channel):
            return
        if code in _OF_CONNECTIONS:
            self.theirs = _step(CONNECTION, self.theirs, code)
            _OF_CONNECTIONS[code](self, _fields(data, body, end), channel)
            return
        session = self._session(code, channel)
        if session is None:
            return
        try:
            if code == TRANSFER:
                self._transfer(data, start, list_at, end, session)
            elif code in _BY_BYTES:
                _BY_BYTES[code](self, session, data, body, end)
            else:
                _OF_SESSIONS[code](self, session, _fields(data, body, end))
        except SessionError as error:
            if self.output.failed:
                return
            reason = AmqpError(condition=error.condition, description=str(error))
            self._end_session(session, told=reason, error=reason)

    def _counts_late(self, code: int, channel: int) -> bool:
        """
        True if a frame counts that arrives after we have closed with an error. Part 2, 2.4.6
        discards all until the peer's close. Messages and their outcomes that crossed our close
        count nevertheless: otherwise, whenever a gateway stops, messages that a client has settled
        would be delivered again, and messages that it has sent settled would be lost.
        """
        if code in (TRANSFER, DISPOSITION):
            return channel in self.registry.by_their_channel
        return code == CLOSE

    def _session(self, code: int, channel: int) -> Session | None:
        """The session of a frame; None if we have ended it, and the peer doesn't know yet."""
        if not OPEN < code < CLOSE:
            raise FrameError(FRAMING_ERROR, f"there is no performative {code:#x}")
        self.theirs = _step(CONNECTION, self.theirs, code)
        if channel > self.options.channel_max:
            text = f"channel {channel}, limit {self.options.channel_max}"
            raise FrameError(FRAMING_ERROR, text)
        session = self.registry.by_their_channel.get(channel)
        if session is None:
            raise FrameError(NOT_ALLOWED, f"channel {channel} has no session")
        session.theirs = _step(SESSION, session.theirs, code)
        if session.ours is Side.ENDED and code != END:
            return None
        return session

    # ------------------------------------------------------------------ connection

    def _open(self, fields: list[Any], _: int) -> None:
        idle = uint_in(fields, 4, 0)
        # part 2, 2.4.5: a peer that can't support it closes, and says why
        if 0 < idle < _LEAST_IDLE:
            text = f"idle-time-out: at least {_LEAST_IDLE} ms expected, got {idle}"
            raise FrameError(NOT_ALLOWED, text)
        opened = ConnectionOpened(
            container_id=field(fields, 0, str, ""),
            hostname=field(fields, 1, str),
            properties=by_name(field(fields, 9, dict, {})),
            mechanism=self.credentials.mechanism if self.credentials else None,
            user=self.credentials.user if self.credentials else None,
        )
        self.idle_timeout = idle
        self.output.max_frame_size = max(uint_in(fields, 2, MAX_UINT), LEAST_MAX_FRAME_SIZE)
        self._channel_max = min(uint_in(fields, 3, _MAX_USHORT), _MAX_USHORT)
        self.report(opened)

    def _close(self, fields: list[Any], _: int) -> None:
        error = read_error(field(fields, 0, Described))
        self.output.close(None)
        self.close(error)

    # ------------------------------------------------------------------ sessions

    @property
    def free_sessions(self) -> int:
        """The sessions that the peer allows beside those there are."""
        return self._channel_max + 1 - len(self.registry.by_channel)

    def begin(self) -> Session | None:
        """Begin a session; None if the peer allows no further one."""
        session = self.registry.add_session(self.options.session_window, self._channel_max)
        if session is not None:
            self._write_begin(session)
        return session

    def _write_begin(self, session: Session) -> None:
        session.ours = SESSION.after(session.ours, BEGIN)
        answered = session.their_channel
        fields = [
            None if answered is None else ushort(answered),
            uint(0),
            uint(session.window),
            uint(OUTGOING_WINDOW),
            uint(HANDLE_MAX),
        ]
        self.output.write_after(session, BEGIN, fields)

    def _begin(self, fields: list[Any], channel: int) -> None:
        if channel > self.options.channel_max:
            text = f"channel {channel}, limit {self.options.channel_max}"
            raise FrameError(FRAMING_ERROR, text)
        if channel in self.registry.by_their_channel:
            raise FrameError(SESSION.condition(BEGIN), f"channel {channel} is in use")
        ours = field(fields, 0, int)
        if ours is None:
            session = self._new_session()
        else:
            waiting = self.registry.by_channel.get(ours)
            if waiting is None or waiting.theirs is not Side.IDLE:
                raise FrameError(INVALID_FIELD, f"remote-channel {ours} waits for no begin")
            session = waiting
        session.theirs = _step(SESSION, session.theirs, BEGIN)
        session.their_channel = channel
        self.registry.by_their_channel[channel] = session
        session.next_incoming = uint_in(fields, 1)
        session.outgoing_window = uint_in(fields, 2)
        uint_in(fields, 3)
        session.handle_max = uint_in(fields, 4, MAX_UINT)
        if session.ours is Side.IDLE:
            self._write_begin(session)
        if session.ours is not Side.ENDED:
            self.report(SessionOpened(session=session.id))

    def _new_session(self) -> Session:
        """A session that the peer begins; those that wait for lingering links give way to it."""
        window, most = self.options.session_window, self._channel_max
        session = self.registry.add_session(window, most)
        if session is None:
            for link in list(self.registry.leaving.values()):
                if link.session.theirs is Side.ENDED:
                    let_go(self.registry, self.output, link)
            session = self.registry.add_session(window, most)
        if session is None:
            raise FrameError(NOT_ALLOWED, f"more sessions than channel-max {most} lets us have")
        return session

    def _end(self, session: Session, fields: list[Any]) -> None:
        error = read_error(field(fields, 0, Described))
        self.registry.drop_their_channel(session)
        lingering = self.registry.lingering_in(session)
        if session.ours is Side.ENDED:
            self.registry.forget_session(session)
        elif not lingering:
            self._end_session(session, told=None, error=error)
            self.registry.forget_session(session)
        else:
            # Java's retired SDK detaches and ends in one write. It waits for both answers, and then
            # accepts what the link had locked: our end comes behind the last detach.
            self.output.forget(session)
            self._void_session(session, error)
            for link in lingering:
                self.registry.leaving[link.id] = link

    def _end_session(
        self, session: Session, *, told: AmqpError | None, error: AmqpError | None
    ) -> None:
        """End our side of a session. The peer gets the error `told`; the events have `error`."""
        self.output.end(session, told)
        self._void_session(session, error)

    def _void_session(self, session: Session, error: AmqpError | None) -> None:
        """Void a session with its links, and report it."""
        leaving = self.registry.leaving_of(session)
        awaited = [each for each in leaving if each.theirs is not Side.ENDED]
        for link in (*session.links.values(), *awaited):
            self.report(LinkDetached(link=link.id, closed=True, error=error))
        self.registry.void_session(session)
        self.report(SessionClosed(session=session.id, error=error))

    # ------------------------------------------------------------------ links

    def _attach(self, session: Session, data: bytes, body: int, end: int) -> None:
        fields = _fields(data, body, end)
        handle = uint_in(fields, 1)
        if handle > HANDLE_MAX:
            raise FrameError(FRAMING_ERROR, f"handle {handle}, limit {HANDLE_MAX}")
        if handle in session.by_handle:
            raise FrameError(LINK.condition(ATTACH), f"handle {handle} is in use")
        name = field(fields, 0, str, "")
        we_send = field(fields, 2, bool, False)
        link = session.pop_unanswered(name, we_send=we_send)
        link = link or self._new_link(session, name, we_send=we_send)
        self.registry.set_attached(link, handle)
        if self.registry.attached > self.options.max_links:
            raise FrameError(LIMIT_EXCEEDED, f"more than {self.options.max_links} links")
        if not we_send:
            link.delivery_count = uint_in(fields, 9, 0)
        if link.ours is Side.IDLE:
            link.attach = data[body:end]
        told = _read_attach(link, fields)
        addresses = (terminus.address or "" for terminus in (told.source, told.target) if terminus)
        if max(map(len, (name, *addresses))) > MAX_NAME:
            text = f"a link's name or address of more than {MAX_NAME} characters"
            raise FrameError(LIMIT_EXCEEDED, text)
        if not link.void:
            self.report(told)

    def _new_link(self, session: Session, name: str, *, we_send: bool) -> Link:
        """A link that the peer attaches; lingering links give way to it."""
        namesake = session.by_name.get((name, we_send))
        if namesake is not None and namesake.theirs is Side.ENDED:
            let_go(self.registry, self.output, namesake)
        elif namesake is not None and not namesake.void:
            error = AmqpError(condition=_STOLEN, description="Another link has taken its name.")
            self.report(LinkDetached(link=namesake.id, closed=True, error=error))
            detach(self.registry, self.output, namesake, error, closed=True)
        link = self.registry.add_link(session, name, we_send=we_send)
        if link is None:
            for leaving in self.registry.lingering_in(session):
                let_go(self.registry, self.output, leaving)
            link = self.registry.add_link(session, name, we_send=we_send)
        if link is None:
            text = f"more links than handle-max {session.handle_max} lets us have"
            raise FrameError(NOT_ALLOWED, text)
        return link

    def _detach(self, session: Session, fields: list[Any]) -> None:
        link = attached(session, uint_in(fields, 0))
        link.closed = field(fields, 1, bool, False)
        error = read_error(field(fields, 2, Described))
        self.registry.set_detached(link)
        told = LinkDetached(link=link.id, closed=link.closed, error=error)
        if link.ours is Side.ENDED:
            self.registry.forget_name(link)
            if self.registry.leaving.pop(link.id, None) is not None:
                self.report(told)
            return
        self.report(told)
        if link.lingers:
            self.registry.void_link(link)
            self.output.forget_link(link)
            self.registry.leaving[link.id] = link
        else:
            detach(self.registry, self.output, link, None, closed=link.closed)

    # ------------------------------------------------------------------ deliveries

    def _transfer(self, data: bytes, start: int, list_at: int, end: int, session: Session) -> None:
        transfer, payload_at = read_transfer(data, list_at)
        if payload_at > end:
            raise FrameError(DECODE_ERROR, "a transfer that is cut off")
        link = self.transfer(session, transfer, data[payload_at:end])
        if link is not None:
            shape = shape_of(data, start, payload_at, transfer, link)
            if shape is not None:
                if len(self._shapes) >= _MOST_SHAPES:
                    self._shapes.clear()
                self._shapes[data[start + _KEY_AT : start + _KEY_END]] = shape

    def _disposition(self, session: Session, data: bytes, body: int, end: int) -> None:
        told = read_usual(data, body, end)
        self.disposition(session, told or read_disposition(_fields(data, body, end)))

    def _flow(self, session: Session, data: bytes, body: int, end: int) -> None:
        told = read_usual_flow(data, body, end)
        self.flow(session, told or read_flow(_fields(data, body, end)))


def _fields(data: bytes, body: int, end: int) -> list[Any]:
    """
    The fields of the performative that starts at byte `body`.

    Raises:
        FrameError: it is no list, or the frame doesn't end with it.
        MessageError: it is malformed.
    """
    performative, fields_end = decode_at(data, body)
    fields = performative.value if isinstance(performative, Described) else None
    if fields_end != end or not isinstance(fields, list):
        raise FrameError(DECODE_ERROR, "the performative is no list, or bytes follow it")
    return fields


def _step(machine: Machine, side: Side, code: int) -> Side:
    """
    The peer's next state.

    Raises:
        FrameError: the peer may not send the frame now.
    """
    after = machine.step(side, code)
    if after is None:
        text = f"performative {code:#x} isn't allowed: the peer's side is {side.value}"
        raise FrameError(machine.condition(code), text)
    return after


def _read_attach(link: Link, fields: list[Any]) -> LinkAttached:
    sender_settles, receiver_settles = read_settle_modes(fields)
    return LinkAttached(
        link=link.id,
        session=link.session.id,
        name=link.name,
        we_send=link.we_send,
        source=read_terminus(field(fields, 5, Described)),
        target=read_terminus(field(fields, 6, Described)),
        sender_settles=sender_settles,
        receiver_settles=receiver_settles,
        max_message_size=field(fields, 10, int, 0),
        properties=by_name(field(fields, 13, dict, {})),
    )


_OF_CONNECTIONS: Final[dict[int, Callable[[Arrivals, list[Any], int], None]]] = {
    OPEN: Arrivals._open,
    BEGIN: Arrivals._begin,
    CLOSE: Arrivals._close,
}
# Frames that have a fast way, or whose bytes are kept.
_BY_BYTES: Final[dict[int, Callable[[Arrivals, Session, bytes, int, int], None]]] = {
    DISPOSITION: Arrivals._disposition,
    FLOW: Arrivals._flow,
    ATTACH: Arrivals._attach,
}
_OF_SESSIONS: Final[dict[int, Callable[[Arrivals, Session, list[Any]], None]]] = {
    END: Arrivals._end,
    DETACH: Arrivals._detach,
}
