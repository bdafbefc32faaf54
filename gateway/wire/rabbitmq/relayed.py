"""
Frames of AMQP 0-9-1 on their way between a client and its broker: read as far as a relay must know
them, and kept as they came.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

import attrs
from pamqp import base, commands, frame

from gateway.domain.values import value
from gateway.wire.parts import add_part
from gateway.wire.rabbitmq.frames import (
    BODY,
    BODY_SIZE,
    FRAME_END,
    HEAD,
    HEADER,
    HEARTBEAT,
    LEAST_HEADER,
    METHOD,
    UNREADABLE,
    ProtocolError,
    UnexpectedFrame,
)

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"  # AMQP 0-9-1, 4.2.2
LARGEST_FRAME: Final = 128 * 1024  # bytes: RabbitMQ's default of `frame_max`
CONFIRMS: Final = frozenset({commands.Basic.Ack.index, commands.Basic.Nack.index})
SETTLEMENTS: Final = CONFIRMS | {commands.Basic.Reject.index}
_KINDS: Final = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
_MOST_READ: Final = 4096  # bytes of a frame whose arguments are read: some milliseconds
_RESERVED: Final = 2  # bytes of the first field, which has no use (AMQP 0-9-1, `reserved-1`)
_EMPTY: Final = bytes(4)  # a table without fields
_OBJECTS: Final = 640  # bytes that a small content takes besides those of its frames: measured
_BEFORE_BODY: Final = 2  # parts of a content: the method, and the header
# The methods of a broker that have a content.
CONTENTS: Final = frozenset(
    {commands.Basic.Deliver.index, commands.Basic.Return.index, commands.Basic.GetOk.index}
)
_METHOD: Final = struct.Struct(">I")  # class and method
_CLASS: Final = 2  # bytes of a class, at the begin of a method and of a content header
_TAG: Final = struct.Struct(">Q")
_DELIVER: Final = _METHOD.pack(commands.Basic.Deliver.index)
_STREAM_OFFSET: Final = b"\x0fx-stream-offset"  # a field's name in a table
_OFFSET: Final = struct.Struct(">cq")  # its type, and its value
_LONG: Final = b"l"


@value
class RelayedFrame:
    """A whole frame, as it came; or a delivery with its content (`joins` of `FrameReader`)."""

    kind: int
    channel: int
    data: bytes
    content_at: int = 0  # where the content begins in `data`; 0: it isn't there

    @property
    def content_header(self) -> bytes:
        """The header frame of the content that is in `data`."""
        _, _, size = HEAD.unpack_from(self.data, self.content_at)
        return self.data[self.content_at : self.content_at + HEAD.size + size]

    @property
    def payload(self) -> bytes:
        return self.data[HEAD.size : -1]

    @property
    def method_index(self) -> int:
        """Class and method, as pamqp's `index`; 0: the frame has no method."""
        if self.kind != METHOD or len(self.data) < HEAD.size + _METHOD.size + 1:
            return 0
        return int(_METHOD.unpack_from(self.data, HEAD.size)[0])

    def method(self) -> base.Frame:
        """
        The method of the frame. A large table at its end isn't read: it takes a tenth of a second.
        Then its arguments are a table that can't be written.

        Raises:
            UnexpectedFrame: the frame has none.
            ProtocolError: it is malformed.
        """
        if self.kind != METHOD:
            raise UnexpectedFrame(f"a frame of type {self.kind} where a method is expected")
        try:
            at = _arguments_at(self) if len(self.data) > _MOST_READ else 0
            _, _, method = frame.unmarshal(_without_arguments(self, at) if at else self.data)
        except UNREADABLE as error:
            raise ProtocolError(f"a malformed method: {error}") from error
        assert isinstance(method, base.Frame), "its type says so"
        if at:
            cut: Any = method
            cut.arguments = {"": _Unread()}
        return method


@attrs.frozen
class _Unread:
    """Stands for the fields of a table that wasn't read."""


def _arguments_at(arrived: RelayedFrame) -> int:
    """Where the arguments are in a method that ends with them; 0: it doesn't."""
    kind: type[base.Frame] | None = commands.INDEX_MAPPING.get(arrived.method_index)
    types = [] if kind is None else list(map(kind.amqp_type, kind.attributes()))
    if types[-1:] != ["table"]:
        return 0
    # Before them are a reserved field, names, and bits in one octet (AMQP 0-9-1, 4.2.5).
    at = HEAD.size + _METHOD.size + _RESERVED
    for _ in range(types.count("shortstr")):
        at += 1 + arrived.data[at]
    return at + ("bit" in types)


def _without_arguments(arrived: RelayedFrame, at: int) -> bytes:
    """The frame with an empty table at its end."""
    head = HEAD.pack(arrived.kind, arrived.channel, at + len(_EMPTY) - HEAD.size)
    return head + arrived.data[HEAD.size : at] + _EMPTY + bytes([FRAME_END])


def check_heartbeat(frame: RelayedFrame) -> None:
    """Raises UnexpectedFrame: a heartbeat is on a channel (AMQP 0-9-1, 4.2.7)."""
    if frame.channel:
        raise UnexpectedFrame(f"a heartbeat on channel {frame.channel}")


def _tag_at(frame: RelayedFrame) -> int:
    at = HEAD.size + _METHOD.size
    if frame.method_index == commands.Basic.Deliver.index:
        at += 1 + frame.data[at]  # the consumer's tag comes before
    if at + _TAG.size + 1 >= (frame.content_at or len(frame.data)):
        raise ProtocolError("a method without its delivery tag")
    return at


def delivery_tag(frame: RelayedFrame) -> int:
    """
    The delivery tag of a delivery or a settlement.

    Raises:
        ProtocolError: the frame is too short.
    """
    return int(_TAG.unpack_from(frame.data, _tag_at(frame))[0])


def with_delivery_tag(frame: RelayedFrame, tag: int) -> bytes:
    """The frame with that tag instead. Raises as `delivery_tag`."""
    at = _tag_at(frame)
    return frame.data[:at] + _TAG.pack(tag) + frame.data[at + _TAG.size :]


def is_multiple(settlement: RelayedFrame) -> bool:
    """True if an ack or nack is for all deliveries up to its tag. Raises as `delivery_tag`."""
    if settlement.method_index == commands.Basic.Reject.index:
        return False
    return bool(settlement.data[_tag_at(settlement) + _TAG.size] & 1)


def stream_offset(header: bytes) -> int | None:
    """The place in its stream of a message with that content header."""
    at = header.find(_STREAM_OFFSET)
    if at < 0 or at + len(_STREAM_OFFSET) + _OFFSET.size > len(header):
        return None
    kind, offset = _OFFSET.unpack_from(header, at + len(_STREAM_OFFSET))
    return int(offset) if kind == _LONG else None


@attrs.define(eq=False)
class FrameReader:
    """
    Cuts the bytes of one side into frames. With `joins` a delivery whose content has arrived with
    it stays in one piece: nothing else need be known of most.
    """

    max_frame: int = LARGEST_FRAME  # bytes of a payload
    joins: bool = False
    _rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[RelayedFrame]:
        """
        Yield the frames that these bytes have completed. A frame is cut when it is asked for, as
        thousands of small ones take many times their bytes; one that isn't comes with the next.

        Raises:
            ProtocolError: a frame is too large, or has no end octet, or no type that there is.
        """
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        try:
            while end - at >= HEAD.size:
                begin = at
                kind, channel, size = HEAD.unpack_from(data, begin)
                if kind not in _KINDS:
                    raise ProtocolError(f"a frame of type {kind}")
                if size > self.max_frame:
                    raise ProtocolError(
                        f"a frame of {size} bytes; at most {self.max_frame} allowed"
                    )
                stop = begin + HEAD.size + size
                if stop >= end:
                    break
                if data[stop] != FRAME_END:
                    raise ProtocolError("a frame without its end octet")
                at, content_at = stop + 1, 0
                is_delivery = kind == METHOD and data.startswith(_DELIVER, begin + HEAD.size)
                if self.joins and is_delivery and (last := self._content_end(data, at, channel)):
                    at, content_at = last, at - begin
                yield RelayedFrame(kind, channel, data[begin:at], content_at)
        finally:
            self._rest = data[at:]

    def _content_end(self, data: bytes, at: int, channel: int) -> int:
        """Where the content ends that begins there; 0: it isn't whole, or isn't right."""
        missing, expected = 1, HEADER  # the header tells how much is missing
        while missing:
            if len(data) - at < HEAD.size:
                return 0
            kind, number, size = HEAD.unpack_from(data, at)
            stop = at + HEAD.size + size
            if kind != expected or number != channel or size > self.max_frame or stop >= len(data):
                return 0
            if data[stop] != FRAME_END or (kind == HEADER and size < LEAST_HEADER):
                return 0
            if kind == HEADER:
                (missing,) = BODY_SIZE.unpack_from(data, at + HEAD.size + 4)
                expected = BODY
            elif size > missing:
                return 0
            else:
                missing -= size
            at = stop + 1
        return at


@attrs.define(eq=False)
class RelayedContent:
    """A method with its content, whose frames arrive one after the other (4.2.6)."""

    method: RelayedFrame
    header: bytes = b""  # the payload of the header frame
    # The method, the header, and the body's frames, of which small ones are joined.
    frames: list[bytes] = attrs.field(init=False)
    _missing: int | None = None  # bytes of the body; None: the header hasn't arrived

    def __attrs_post_init__(self) -> None:
        self.frames = [self.method.data]

    @property
    def is_whole(self) -> bool:
        return self._missing == 0

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, with all its frames."""
        return _OBJECTS + sum(map(len, self.frames))

    def add(self, arrived: RelayedFrame, max_body: int) -> None:
        """
        Add the next frame.

        Raises:
            ProtocolError: it isn't a frame of this content, or the body is too large.
        """
        if arrived.kind == HEADER and self._missing is None:
            self.header = arrived.payload
            if len(self.header) < LEAST_HEADER:
                raise ProtocolError("a content header that ends too early")
            if self.header[:_CLASS] != self.method.data[HEAD.size : HEAD.size + _CLASS]:
                raise UnexpectedFrame("a content header of another class than its method")
            (self._missing,) = BODY_SIZE.unpack_from(self.header, 4)
        elif arrived.kind == BODY and self._missing is not None:
            self._missing -= len(arrived.payload)
        else:
            raise UnexpectedFrame(f"a frame of type {arrived.kind} inside of a message")
        if not 0 <= self._missing <= max_body:
            raise ProtocolError(
                f"a body with {self._missing} more bytes; 0 to {max_body} are allowed"
            )
        if len(self.frames) <= _BEFORE_BODY:
            self.frames.append(arrived.data)
        else:
            add_part(self.frames, arrived.data)

    def body(self) -> bytes:
        reader = FrameReader(max_frame=self.size)
        frames = reader.feed(b"".join(self.frames[_BEFORE_BODY:]))
        return b"".join([each.payload for each in frames])


def mandatory(publish: bytes) -> bytes:
    """
    The payload of a `basic.publish` that asks for the message's return if no queue gets it. Its
    last octet has the bits `mandatory` and `immediate` (AMQP 0-9-1, 4.2.5.2).
    """
    return publish[:-1] + bytes([publish[-1] | 1])


def read_publish(frame: RelayedFrame) -> commands.Basic.Publish:
    """
    The publish in that frame.

    Raises:
        ProtocolError: it is malformed.
    """
    method = frame.method()
    assert isinstance(method, commands.Basic.Publish), "its index says so"
    return method
