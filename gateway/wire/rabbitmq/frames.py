"""
AMQP 0-9-1, the client's side: bytes in, events out. RabbitMQ's extensions follow its manual.

Methods are pamqp's objects. A conversation itself answers methods that need no decision, the
handshake (2.2.4) and the peer's closes; `data_to_send` returns the bytes to write.
"""

import struct
from typing import Any, ClassVar, Final

import attrs
from pamqp import base, commands, exceptions, frame, header

from gateway.domain.errors import MessageError, MessageTooLarge
from gateway.domain.values import value
from gateway.wire.parts import add_part
from gateway.wire.rabbitmq.errors import FRAME_ERROR, UNEXPECTED_FRAME

# Types of frames (AMQP 0-9-1, 2.3.5).
METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
HEAD: Final = struct.Struct(">BHI")  # of a frame: type, channel, bytes of the payload
FRAME_END: Final = 0xCE  # the octet after each frame
BODY_SIZE: Final = struct.Struct(">Q")
_TAG_AND_BITS: Final = struct.Struct(">QB")
_DELIVER: Final = commands.Basic.Deliver.index
_DELIVER_START: Final = _DELIVER.to_bytes(4)
LEAST_HEADER: Final = 14  # bytes: class, weight, the body's size, flags
_ACK: Final = commands.Basic.Ack.index
_END_OCTET: Final = bytes((FRAME_END,))
OVERHEAD: Final = 8  # bytes of a frame besides its payload
_LEAST_FRAME: Final = 4096  # bytes: `frame-min-size` of AMQP 0-9-1
_MAX_FRAME: Final = 131_072  # bytes: RabbitMQ's default of `frame_max`
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
# Exceptions that pamqp raises for malformed bytes.
UNREADABLE: Final = (
    exceptions.UnmarshalingException,
    struct.error,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    OSError,
    RecursionError,
)

CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class ProtocolError(Exception):
    """The peer violated AMQP 0-9-1: the connection is unusable, and is closed with `code`."""

    code: ClassVar[int] = FRAME_ERROR


class UnexpectedFrame(ProtocolError):
    """A frame has come where it can't be (AMQP 0-9-1, 1.1)."""

    code = UNEXPECTED_FRAME


@attrs.frozen(kw_only=True)
class Login:
    """
    Credentials and settings of the client. An empty user leaves authentication to the client's
    certificate.
    """

    user: str
    password: str = attrs.field(repr=False)
    vhost: str
    heartbeat: int  # seconds
    name: str = "pairgate"  # shown to operators of the broker


@attrs.frozen(kw_only=True)
class HandshakeDone:
    """
    The handshake is done; `heartbeat` is the timeout of the login, in seconds, which both sides
    apply.
    """

    product: str
    version: str
    cluster: str  # the cluster's name; empty: it has none
    heartbeat: int
    max_channels: int


@attrs.frozen
class Blocked:
    """The broker accepts no messages on this connection until `Unblocked`."""

    reason: str


@attrs.frozen
class Unblocked:
    pass


@attrs.frozen
class BrokerClosed:
    """The broker closed the connection: no event follows."""

    code: int
    text: str


@value
class MethodArrived:
    channel: int
    method: base.Frame


@value
class Deliver:
    """`basic.deliver` without its exchange and routing key, which aren't needed."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool


@value
class ContentArrived:
    """A delivery or a returned message; `header` is the payload of its content header frame."""

    channel: int
    method: Deliver | commands.Basic.Return
    header: bytes
    body: bytes


_CONTENT: Final = (Deliver, commands.Basic.Return)

Event = HandshakeDone | Blocked | Unblocked | BrokerClosed | MethodArrived | ContentArrived


@attrs.define(eq=False)
class _IncomingContent:
    """A message whose frames haven't all arrived."""

    method: Deliver | commands.Basic.Return
    header: bytes = b""
    missing: int = 0
    body: bytes = b""
    parts: list[bytes] | None = None  # of a body in several frames

    def add(self, kind: int, payload: bytes, max_body: int) -> None:
        if kind == HEADER:
            self.header = payload
            (self.missing,) = struct.unpack_from(">Q", payload, 4)
        elif kind == BODY and self.header:
            self.missing -= len(payload)
            self._add_part(payload)
        else:
            raise ProtocolError(f"the broker sent a frame of the unexpected type {kind}")
        if not 0 <= self.missing <= max_body:
            raise ProtocolError(
                f"the broker sent a body with {self.missing} more bytes;"
                f" 0 to {max_body} are allowed"
            )

    def _add_part(self, payload: bytes) -> None:
        if self.parts is None and not self.missing:
            self.body = payload  # as nearly all bodies: not copied
            return
        self.parts = self.parts or []
        add_part(self.parts, payload)
        if not self.missing:
            self.body = b"".join(self.parts)


def method_frame(channel: int, method: base.Frame) -> bytes:
    """
    A frame with that method.

    Raises:
        MessageError: the method can't express a value.
    """
    try:
        return frame.marshal(method, channel)
    except (TypeError, ValueError) as error:
        raise MessageError(f"{method.name}: {error}") from error


def with_any_name(method: base.Frame) -> base.Frame:
    """The method for `method_frame`, with any name: pamqp allows those that AMQP 0-9-1 lists."""
    kind: Any = type(method)
    unchecked_kind: Any = type(kind.__name__, (kind,), {"validate": lambda _: None})
    unchecked: base.Frame = unchecked_kind.__new__(unchecked_kind)
    for name, each in method:
        setattr(unchecked, name, each)
    return unchecked


def payload_frame(channel: int, payload: bytes) -> bytes:
    """A frame with a method that is encoded already."""
    return HEAD.pack(METHOD, channel, len(payload)) + payload + _END_OCTET


def content_frames(channel: int, head: bytes, body: bytes, max_frame: int) -> list[bytes]:
    """
    The frames that follow a publish, in pieces: the header's payload, and the body split to fit.

    Raises:
        MessageTooLarge: the header doesn't fit, and can't be split.
    """
    most = max_frame - OVERHEAD
    if len(head) > most:
        raise MessageTooLarge(
            f"the message's properties have {len(head)} bytes; the broker allows {most} (frame_max)"
        )
    frames = [HEAD.pack(HEADER, channel, len(head)), head, _END_OCTET]
    for start in range(0, len(body), most):
        part = body[start : start + most]
        frames += (HEAD.pack(BODY, channel, len(part)), part, _END_OCTET)
    return frames


class Conversation:
    """The client's side of one connection."""

    def __init__(self, login: Login, *, max_body: int) -> None:
        """Messages of more than `max_body` bytes end the connection."""
        self.max_frame = _LEAST_FRAME
        self._login = login
        self._max_body = max_body
        self._outbox: list[bytes] = [header.ProtocolHeader().marshal()]
        self._rest = b""  # of a frame that hasn't arrived completely
        self._contents: dict[int, _IncomingContent] = {}
        self._server: dict[str, str] = {}
        self._tune: commands.Connection.TuneOk | None = None

    @property
    def has_own(self) -> bool:
        """True if `data_to_send` has bytes."""
        return bool(self._outbox)

    def data_to_send(self) -> bytes:
        """Return the bytes that this object writes on its own."""
        data, self._outbox = b"".join(self._outbox), []
        return data

    def heartbeat(self) -> bytes:
        """The heartbeat, to be written if nothing else was for half of the heartbeat interval."""
        return HEARTBEAT_FRAME

    def feed(self, data: bytes) -> list[Event]:
        """
        The events that these bytes have completed, in order.

        Raises:
            ProtocolError: the bytes violate the protocol or a limit.
        """
        data = self._rest + data if self._rest else data
        if data[:4] == b"AMQP":
            raise ProtocolError("the broker speaks another version of AMQP than 0-9-1")
        events: list[Event] = []
        at, end = 0, len(data)
        try:
            while end - at >= HEAD.size:
                event, after = self._next(data, at)
                if after == at:
                    break
                if event is not None:
                    events.append(event)
                at = after
        except UNREADABLE as error:
            raise ProtocolError(f"the broker sent a malformed frame: {error}") from error
        self._rest = data[at:]
        return events

    def _next(self, data: bytes, at: int) -> tuple[Event | None, int]:
        """
        The event of the frame at that position, if any, and the position after the frame; the same
        position: the frame hasn't arrived completely.
        """
        kind, channel, size = HEAD.unpack_from(data, at)
        start = at + HEAD.size
        stop = start + size
        if size > self.max_frame:
            raise ProtocolError(
                f"the broker sent a frame of {size} bytes; at most {self.max_frame} are allowed"
            )
        if stop >= len(data):
            return None, at
        if data[stop] != FRAME_END:
            raise ProtocolError("the broker sent a frame without its end octet")
        if kind == METHOD and data.startswith(_DELIVER_START, start):
            whole = self._whole_delivery(data, channel, start, stop)
            if whole is not None:
                return whole, stop + 1 + len(whole.header) + len(whole.body) + 2 * OVERHEAD
        return self._handle(kind, channel, data[start:stop]), stop + 1

    def _whole_delivery(
        self, data: bytes, channel: int, start: int, stop: int
    ) -> ContentArrived | None:
        """
        The delivery whose method is from `start` to `stop`, if its header and its body follow in
        one frame each, as nearly always. None: they don't, or haven't arrived, or are malformed.
        """
        end = len(data)
        header_at = stop + OVERHEAD
        if channel in self._contents or header_at + LEAST_HEADER >= end:
            return None
        kind, other, header_size = HEAD.unpack_from(data, stop + 1)
        header_end = header_at + header_size
        body_at = header_end + OVERHEAD
        if kind != HEADER or other != channel or header_size < LEAST_HEADER or body_at >= end:
            return None
        (size,) = BODY_SIZE.unpack_from(data, header_at + 4)
        kind, other, body_size = HEAD.unpack_from(data, header_end + 1)
        body_end = body_at + body_size
        tag_end = start + 5 + data[start + 4]
        if (
            kind != BODY
            or other != channel
            or not size  # no body frame belongs to an empty body
            or body_size != size
            or body_end >= end
            or tag_end + _TAG_AND_BITS.size > stop
            or max(header_size, body_size) > self.max_frame
            or size > self._max_body
            or data[header_end] != FRAME_END
            or data[body_end] != FRAME_END
        ):
            return None
        tag, bits = _TAG_AND_BITS.unpack_from(data, tag_end)
        method = Deliver(data[start + 5 : tag_end].decode(), tag, bool(bits & 1))
        header = data[header_at:header_end]
        return ContentArrived(channel, method, header, data[body_at:body_end])

    def _handle(self, kind: int, channel: int, payload: bytes) -> Event | None:
        if kind == METHOD:
            return self._on_method(channel, payload)
        if kind == HEARTBEAT:
            return None
        content = self._contents.get(channel)
        if content is None:
            raise ProtocolError(f"the broker sent content without a method on channel {channel}")
        content.add(kind, payload, self._max_body)
        if content.missing:
            return None
        del self._contents[channel]
        return ContentArrived(channel, content.method, content.header, content.body)

    def _on_method(self, channel: int, payload: bytes) -> Event | None:
        method = _read_method(payload)
        if isinstance(method, _CONTENT):
            self._contents[channel] = _IncomingContent(method)
            return None
        if isinstance(method, commands.Channel.Close):
            self._contents.pop(channel, None)
            self._answer(channel, commands.Channel.CloseOk())
        if channel == 0:
            return self._on_connection(method)
        return MethodArrived(channel, method)

    def _on_connection(self, method: base.Frame) -> Event | None:
        match method:
            case commands.Connection.Start():
                self._on_start(method)
            case commands.Connection.Tune():
                self._on_tune(method)
            case commands.Connection.OpenOk():
                return self._on_opened()
            case commands.Connection.Blocked():
                return Blocked(method.reason)
            case commands.Connection.Unblocked():
                return Unblocked()
            case commands.Connection.Close():
                self._answer(0, commands.Connection.CloseOk())
                return BrokerClosed(method.reply_code or 0, method.reply_text)
            case _:
                return MethodArrived(0, method)
        return None

    def _on_start(self, method: commands.Connection.Start) -> None:
        self._server = {key: str(each) for key, each in method.server_properties.items()}
        login = self._login
        mechanism = "PLAIN" if login.user else "EXTERNAL"
        if mechanism not in str(method.mechanisms).split():
            raise ProtocolError(
                f"the broker doesn't offer the SASL mechanism {mechanism}, only {method.mechanisms}"
            )
        answer = commands.Connection.StartOk(
            client_properties={
                "product": "Pairgate",
                "connection_name": login.name,
                "capabilities": dict(CAPABILITIES),
            },
            mechanism=mechanism,
            response=f"\0{login.user}\0{login.password}" if login.user else "",
        )
        self._answer(0, answer)

    def _on_tune(self, method: commands.Connection.Tune) -> None:
        # Zero stands for "no limit".
        self.max_frame = min(method.frame_max or _MAX_FRAME, _MAX_FRAME)
        if self.max_frame < _LEAST_FRAME:
            raise ProtocolError(
                f"the broker allows frames of {self.max_frame} bytes; AMQP requires {_LEAST_FRAME}"
            )
        self._tune = tune = commands.Connection.TuneOk(
            channel_max=method.channel_max or 65_535,
            frame_max=self.max_frame,
            heartbeat=self._login.heartbeat,
        )
        self._answer(0, tune)
        self._answer(0, commands.Connection.Open(virtual_host=self._login.vhost))

    def _on_opened(self) -> HandshakeDone:
        if self._tune is None:
            raise ProtocolError("the broker sent connection.open-ok before connection.tune")
        return HandshakeDone(
            product=self._server.get("product", ""),
            version=self._server.get("version", ""),
            cluster=self._server.get("cluster_name", ""),
            heartbeat=self._login.heartbeat,
            max_channels=self._tune.channel_max,
        )

    def _answer(self, channel: int, method: base.Frame) -> None:
        self._outbox.append(method_frame(channel, method))


def _read_method(payload: bytes) -> base.Frame | Deliver:
    (index,) = struct.unpack_from(">I", payload)
    # These two are a thousand times as frequent as the others.
    if index == _DELIVER:
        end = 5 + payload[4]
        tag, bits = struct.unpack_from(">QB", payload, end)
        return Deliver(payload[5:end].decode(), tag, bool(bits & 1))
    if index == _ACK:
        tag, bits = struct.unpack_from(">QB", payload, 4)
        return commands.Basic.Ack(delivery_tag=tag, multiple=bool(bits & 1))
    kind = commands.INDEX_MAPPING.get(index)
    if kind is None:
        raise ProtocolError(f"the broker sent the unknown method {index:#010x}")
    method: base.Frame = kind()
    method.unmarshal(payload[4:])
    return method
