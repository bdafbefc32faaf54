"""
Features that Proton lacks, added to the bytes of its frames (AMQP 1.0, part 2, 2.3): `Inbound`
before Proton reads them, and `Outbound` in `rewriting` after Proton wrote them. Both pass on whole
frames only.

- Proton drops the message format of a transfer, and writes 0. Nothing else marks a batch.
- Proton requires consecutive delivery ids. Threads of azure-servicebus for Python may use one
  twice.
- Proton omits trailing nulls of a frame. azure-servicebus before 7.15 needs them.
- Proton ends connections with errors that have no info. azure-servicebus then waits for ever.
- Proton decodes as deep as a peer nests, on the C stack.
- Proton takes credit beyond 2**31 for negative.
- Proton keeps what a peer sends on a link where the peer receives, and may send it back as ours.
- Proton stops answering if the peer attaches more links than it allows us handles.

    frame         size(4) data-offset(1) type(1) channel(2), performative, payload
    performative  00 53 code, then a list: 45 | C0 size(1) count(1) | D0 size(4) count(4)
"""

import re
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

from gateway.domain.bounded import Bounded
from gateway.domain.errors import MessageError
from gateway.domain.message import Described
from gateway.wire.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    code_of,
    described,
    field,
    number,
    uint,
)
from gateway.wire.amqp.types import decode_at, encode
from tests.wire.amqp.proton.transfers import SMALL, TransferHead, read_transfer

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"

# Bytes by which rewriting may enlarge a frame. Proton is told a maximum frame size for the peer
# that is smaller by this, and may itself receive frames that are larger by this.
ROOM: Final = 32
_MIN_MAX_FRAME_SIZE = 512  # part 2, 2.8.19: the minimum that a peer may set
_MAX_FRAME_SIZE = 2  # index among the fields of an open frame
_IDLE_TIME_OUT = 4  # index among the fields of an open frame
_LEAST_IDLE = 1000  # milliseconds; Proton writes a heartbeat at each half of the peer's timeout
_LINK_CREDIT = 6  # index among the fields of a flow frame
_MOST_CREDIT = 0x7FFFFFFF
_LARGE = re.compile(rb"\x70[\x80-\xff]", re.DOTALL)  # where a uint beyond that may be

frame_head: Final = struct.Struct(">IBBH")
list32: Final = struct.Struct(">BII")
_u32 = struct.Struct(">I")


class FrameError(Exception):
    """The peer broke the protocol: the connection ends with this condition."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


@contextmanager
def decoding() -> Iterator[None]:
    """
    A context in which a peer's bytes are decoded.

    Raises:
        FrameError: the bytes aren't valid values.
    """
    try:
        yield
    except MessageError as error:
        raise FrameError("amqp:decode-error", str(error)) from error


@attrs.define(eq=False)
class Incoming:
    """A link on which the peer sends, as its frames show."""

    formats: deque[int] = attrs.field(factory=deque)  # of deliveries that have started, in order
    void: bool = False  # we have detached the link: the formats aren't needed any more
    unfinished: bool = False  # further frames of the last delivery follow
    given: int | None = None  # the peer's id of the last delivery
    wanted: int | None = None  # the id that Proton gets instead


@attrs.frozen
class Attach:
    """An attach frame that has arrived."""

    fields: list[Any]
    incoming: Incoming | None  # None: the peer receives on this link
    room: int  # free handles in its session, at least


@attrs.define(eq=False)
class Renumbering:
    """Maps Proton's delivery ids to those that the peer has used."""

    used: dict[int, dict[int, int]] = attrs.field(factory=dict)  # the peer's channel -> ids
    theirs: dict[int, int] = attrs.field(factory=dict)  # our channel -> the peer's


@attrs.define(eq=False)
class Inbound:
    """The peer's frames on their way to Proton."""

    max_frame_size: int
    renumbering: Renumbering = attrs.field(factory=Renumbering)
    opened: list[Any] = attrs.field(factory=list)  # the fields of the open frame
    attaches: deque[Attach] = attrs.field(factory=deque)  # in the order of Proton's events
    _rest: bytes = b""
    _header_due: bool = True
    _channels: set[int] = attrs.field(factory=set)  # in use
    # channel -> the highest handle that we may use there
    _handle_max: dict[int, int] = attrs.field(factory=dict)
    # The peer's (channel, handle) pairs in use; None: the peer receives there.
    _incoming: dict[tuple[int, int], Incoming | None] = attrs.field(factory=dict)
    _next_id: dict[int, int] = attrs.field(factory=dict)  # channel -> the id that Proton expects

    def feed(self, data: bytes) -> bytes:
        """
        The bytes for Proton: all whole frames that have arrived.

        Raises:
            FrameError: not AMQP, too large, or malformed. The connection has to end.
            MessageError: a value is malformed, or nested too deep.
        """
        data = self._rest + data
        at = self._skip_header(data) if self._header_due else 0
        pieces, copied, end = [], 0, len(data)
        while end - at >= 8:
            size, words, kind, channel = frame_head.unpack_from(data, at)
            if not 8 <= 4 * words <= size <= self.max_frame_size or kind != 0:
                raise FrameError(
                    "amqp:connection:framing-error",
                    f"a frame of type {kind} and {size} bytes, limit {self.max_frame_size}",
                )
            if end - at < size:
                break
            if size > 4 * words:  # otherwise a heartbeat
                changed = self._read(data, at, at + 4 * words, at + size, channel)
                if changed is not None:
                    pieces += [data[copied:at], changed]
                    copied = at + size
            at += size
        self._rest = data[at:]
        if not pieces:
            return data if at == end else data[:at]
        pieces.append(data[copied:at])
        return b"".join(pieces)

    @property
    def links(self) -> int:
        """The number of links that the peer has attached and not detached, even if we have."""
        return len(self._incoming)

    def _skip_header(self, data: bytes) -> int:
        if not AMQP_HEADER.startswith(data[:8]):
            raise FrameError("amqp:connection:framing-error", f"no AMQP 1.0: {data[:8]!r}")
        if len(data) < 8:
            return 0
        self._header_due = False
        return 8

    def _read(self, data: bytes, start: int, body: int, end: int, channel: int) -> bytes | None:
        """Process a frame; return the bytes that Proton gets instead of it."""
        code, list_at = _descriptor(data, body)
        if code == TRANSFER:
            return self._transfer(data, start, list_at, end, channel)
        if (
            code in (FLOW, DISPOSITION)
            and end - body <= SMALL
            and not _LARGE.search(data, body, end)
        ):
            return None
        fields, fields_end = decode_at(data, list_at)
        if fields_end != end or not isinstance(fields, list):
            raise FrameError("amqp:decode-error", f"performative {code:#x} is no list")
        if code == OPEN:
            return self._open(fields)
        if not OPEN < code <= CLOSE:
            raise FrameError("amqp:connection:framing-error", f"there is no performative {code:#x}")
        if code == FLOW:
            return _flow(fields, data[start:body])
        if learn := _LEARN.get(code):
            learn(self, fields, channel)
        return None

    def _open(self, fields: list[Any]) -> bytes:
        if self.opened:
            raise FrameError("amqp:not-allowed", "the connection is open already")
        idle = field(fields, _IDLE_TIME_OUT, int, 0)
        # part 2, 2.4.5: a peer that can't support it closes, and says why
        if 0 < idle < _LEAST_IDLE:
            raise FrameError(
                "amqp:not-allowed", f"idle-time-out: at least {_LEAST_IDLE} ms expected, got {idle}"
            )
        self.opened = fields
        most = field(fields, _MAX_FRAME_SIZE, int, 0xFFFFFFFF)
        told = [*fields, None, None, None]
        told[_MAX_FRAME_SIZE] = uint(max(most - ROOM, _MIN_MAX_FRAME_SIZE))
        body = encode(described(OPEN, told[: max(len(fields), _MAX_FRAME_SIZE + 1)]))
        return frame_head.pack(frame_head.size + len(body), 2, 0, 0) + body

    def _begin(self, fields: list[Any], channel: int) -> None:
        if channel in self._channels:  # Proton would begin a second session there
            raise FrameError("amqp:connection:framing-error", f"channel {channel} is in use")
        self._channels.add(channel)
        self._handle_max[channel] = field(fields, 4, int, 0xFFFFFFFF)
        if (ours := field(fields, 0, int)) is not None:
            self.renumbering.theirs[ours] = channel

    def _attach(self, fields: list[Any], channel: int) -> None:
        key = channel, number(fields, 1)
        if key in self._incoming:  # Proton would give it to the new link
            raise FrameError("amqp:session:handle-in-use", f"handle {key[1]} is in use")
        room = self._room(channel)
        incoming = None if field(fields, 2, bool, False) else Incoming()
        self._incoming[key] = incoming
        self.attaches.append(Attach(fields, incoming, room))

    def _room(self, channel: int) -> int:
        """
        Return how many of the handles that the peer allows us are left; our answer to an attach
        needs one.
        """
        most = self._handle_max.get(channel, 0xFFFFFFFF) + 1
        room = most - len(self._incoming)
        if room <= 0:
            room = most - sum(each == channel for each, _ in self._incoming)
        if room <= 0:
            raise FrameError(
                "amqp:not-allowed", f"more links than handle-max {most - 1} lets us have"
            )
        return room

    def _detach(self, fields: list[Any], channel: int) -> None:
        self._incoming.pop((channel, number(fields, 0)), None)

    def _end(self, _: list[Any], channel: int) -> None:
        self._channels.discard(channel)
        self._handle_max.pop(channel, None)
        self.renumbering.used.pop(channel, None)
        self._next_id.pop(channel, None)
        for key in [key for key in self._incoming if key[0] == channel]:
            del self._incoming[key]

    def _transfer(
        self, data: bytes, start: int, list_at: int, end: int, channel: int
    ) -> bytes | None:
        try:
            head = read_transfer(data, list_at)
        except (IndexError, struct.error, ValueError) as error:
            raise FrameError("amqp:decode-error", f"no transfer: {error}") from error
        if head.fields_end > end:
            raise FrameError("amqp:decode-error", "a transfer that is cut off")
        key = channel, head.handle
        incoming = self._incoming.get(key)
        if incoming is None and key in self._incoming:
            raise FrameError("amqp:not-allowed", f"a transfer on handle {key[1]}, which receives")
        if incoming is None:
            return None  # Proton ends the connection
        if not incoming.unfinished:
            self._begin_delivery(incoming, head, channel)
        incoming.unfinished = head.more
        given, wanted = head.delivery_id, incoming.wanted
        if given == wanted or given is None or wanted is None or given != incoming.given:
            return None
        fields = (
            b"".join(
                (data[head.fields_at : head.id_at], b"\x70", _u32.pack(wanted)),
            )
            + data[head.id_end : head.fields_end]
        )
        fields_head = list32.pack(0xD0, len(fields) + 4, head.field_count)
        frame = data[start + 4 : list_at] + fields_head + fields + data[head.fields_end : end]
        return _u32.pack(len(frame) + 4) + frame

    def _begin_delivery(self, incoming: Incoming, head: TransferHead, channel: int) -> None:
        given = head.delivery_id
        wanted = self._next_id.get(channel, given)
        if not incoming.void:
            incoming.formats.append(head.message_format)
        incoming.given, incoming.wanted = given, wanted
        if wanted is None:
            return
        self._next_id[channel] = (wanted + 1) & 0xFFFFFFFF
        if given is not None and given != wanted:
            used = self.renumbering.used.setdefault(channel, Bounded(_MOST_RENUMBERED))
            used[wanted] = given


# Deliveries of one session whose ids were changed; the oldest are answered already, or never will
# be.
_MOST_RENUMBERED: Final = 65_536
_LEARN: Final = {
    BEGIN: Inbound._begin,
    ATTACH: Inbound._attach,
    DETACH: Inbound._detach,
    END: Inbound._end,
}


def _flow(fields: list[Any], head: bytes) -> bytes | None:
    """The frame with at most as much credit as Proton can count."""
    if field(fields, _LINK_CREDIT, int, 0) <= _MOST_CREDIT:
        return None
    fields[_LINK_CREDIT] = uint(_MOST_CREDIT)
    body = encode(described(FLOW, fields))
    return _u32.pack(len(head) + len(body)) + head[4:] + body


def _descriptor(data: bytes, at: int) -> tuple[int, int]:
    """The performative's code, and the start of its list."""
    if data[at : at + 2] == b"\x00\x53" and at + 2 < len(data):  # smallulong: the usual encoding
        return data[at + 2], at + 3
    if data[at] == 0:
        descriptor, list_at = decode_at(data, at + 1)
        return code_of(Described(descriptor, None)), list_at
    raise FrameError("amqp:decode-error", f"{data[at]:#x} starts no performative")
