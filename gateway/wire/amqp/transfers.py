"""
Transfer frames (AMQP 1.0, part 2, 2.7.5): the frames of the hot path, in two ways each.

The slow way reads any frame that the specification allows. Most senders encode all their transfers
alike, so that a frame differs from the one before only in its delivery-id, its tag and its payload:

    size  02 00 channel 00 53 14 C0 size count handle 70  delivery-id  A0 size  tag  flags  payload
          `---------------- prefix ------------------'                `-----'        `---'

A `TransferShape` remembers the rest. A frame of that shape is read by one `Struct` and three
comparisons. `TransferWriter` writes frames of such a shape.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

import attrs

from gateway.domain.message import Described
from gateway.wire.amqp.dispositions import read_state
from gateway.wire.amqp.events import DeliveryState
from gateway.wire.amqp.frames import SessionError
from gateway.wire.amqp.performatives import FIELDS, MAX_UINT, TRANSFER, field, uint_in
from gateway.wire.amqp.types import decode_at

# Bytes after a frame's size that show its shape: channel, descriptor, size of the list, handle.
KEY_SIZE: Final = 12

_HEAD = 8  # bytes of a frame before its body
INVALID_FIELD: Final = "amqp:invalid-field"
_DESCRIPTOR: Final = b"\0\x53" + bytes((TRANSFER,))
_FALSE, _TRUE = b"\x42", b"\x41"
_ID_LAYOUTS: Final = {0x52: "B", 0x70: "I"}  # smalluint, uint

_u32 = struct.Struct(">I")


@attrs.frozen
class Transfer:
    """The fields of a transfer that we use. Nulls are None; flags are false then."""

    handle: int
    delivery_id: int | None
    tag: bytes | None
    message_format: int | None
    settled: bool
    more: bool
    aborted: bool
    resume: bool
    state: DeliveryState | None = None

    def check_follows(self, first: "Transfer") -> None:
        """
        Return if this transfer can go on with the delivery that `first` began.

        Raises:
            SessionError: it names another delivery.
        """
        for name, mine, its in (
            ("delivery-id", self.delivery_id, first.delivery_id),
            ("delivery-tag", self.tag, first.tag),
            ("message-format", self.message_format, first.message_format),
        ):
            if mine is not None and mine != its:
                text = f"{name} {mine!r} in the middle of delivery {first.delivery_id}"
                raise SessionError(INVALID_FIELD, text)


def read_transfer(data: bytes, at: int) -> tuple[Transfer, int]:
    """
    The transfer whose list starts at byte `at`, and the position of its payload.

    Raises:
        MessageError: it is malformed.
    """
    fields, end = decode_at(data, at)
    if not isinstance(fields, list):
        fields = []
    transfer = Transfer(
        handle=uint_in(fields, 0),
        delivery_id=_uint_or_null(fields, 1),
        tag=field(fields, 2, bytes),
        message_format=_uint_or_null(fields, 3),
        settled=field(fields, 4, bool, False),
        more=field(fields, 5, bool, False),
        aborted=field(fields, 9, bool, False),
        resume=field(fields, 8, bool, False),
        state=read_state(field(fields, 7, Described)),
    )
    return transfer, end


def _uint_or_null(fields: list[Any], index: int) -> int | None:
    value = field(fields, index, int)
    return None if value is None else int(value) & MAX_UINT


@attrs.frozen
class TransferShape:
    """The bytes that frames of one sender have in common, and their meaning."""

    unpack: Callable[[bytes, int], tuple[Any, ...]]  # (data, position of the frame)
    prefix: bytes
    tag_head: bytes
    suffix: bytes
    size: int  # of a frame without payload
    link: Any  # `registry.Link`
    message_format: int
    settled: bool
    state: None = None  # a transfer with a state has no shape


def shape_of(data: bytes, at: int, end: int, transfer: Transfer, link: Any) -> TransferShape | None:
    """
    The shape of the whole transfer whose frame starts at byte `at` and whose payload at `end`; None
    if the frame is rare: its tag or its delivery-id is encoded unusually, it is one of several, or
    it has a state.
    """
    if transfer.more or transfer.aborted or transfer.resume or transfer.tag is None:
        return None
    if transfer.state is not None:
        return None
    if data[at + 4] != 2 or data[at + _HEAD : at + _HEAD + 3] != _DESCRIPTOR:
        return None
    list_at = at + _HEAD + len(_DESCRIPTOR)
    handle_at = list_at + (3 if data[list_at] == 0xC0 else 9)
    _, id_at = decode_at(data, handle_at)
    layout = _ID_LAYOUTS.get(data[id_at])
    tag_head_at = id_at + (2 if layout == "B" else 5)
    if layout is None or id_at + 1 - at - 4 < KEY_SIZE or data[tag_head_at] != 0xA0:
        return None
    tag_at = tag_head_at + 2
    prefix = data[at + 4 : id_at + 1]
    suffix = data[tag_at + len(transfer.tag) : end]
    return TransferShape(
        struct.Struct(f">I{len(prefix)}s{layout}2s{len(transfer.tag)}s{len(suffix)}s").unpack_from,
        prefix,
        data[tag_head_at:tag_at],
        suffix,
        end - at,
        link,
        transfer.message_format or 0,
        transfer.settled,
    )


TransferKey = tuple[int, int, bool, bytes]
"""Size of the tag, message format, settled, and the encoded delivery state (empty: none)."""


class TransferWriter:
    """Writes the heads of a link's frames, for messages that have the key in common."""

    def __init__(self, *, channel: int, handle: int, key: TransferKey, pads: bool) -> None:
        self.key = key
        tag_size, message_format, settled, state = key
        before = _uint(handle) + b"\x70"
        tag_head = bytes((0xA0, tag_size)) if tag_size < 256 else b"\xb0" + _u32.pack(tag_size)
        flags = _uint(message_format) + (_TRUE if settled else _FALSE)
        rest, count = (b"\x40" + state, 8) if state else (b"", 6)
        if pads:
            rest += b"\x40" * (FIELDS[TRANSFER] - count)
            count = FIELDS[TRANSFER]
        size = len(before) + 4 + len(tag_head) + tag_size + len(flags) + 1 + len(rest)
        if size < 255:
            list_head = bytes((0xC0, size + 1, count))
        else:
            list_head = b"\xd0" + _u32.pack(size + 4) + _u32.pack(count)
        self._prefix = struct.pack(">BBH", 2, 0, channel) + _DESCRIPTOR + list_head + before
        self._tag_head = tag_head
        self._last, self._earlier = flags + _FALSE + rest, flags + _TRUE + rest
        self._layout = struct.Struct(
            f">I{len(self._prefix)}sI{len(tag_head)}s{tag_size}s{len(self._last)}s"
        )
        self.size = self._layout.size  # of a frame without payload

    def head(self, payload_size: int, delivery_id: int, tag: bytes, *, more: bool = False) -> bytes:
        """A frame up to its payload."""
        return self._layout.pack(
            self.size + payload_size,
            self._prefix,
            delivery_id,
            self._tag_head,
            tag,
            self._earlier if more else self._last,
        )


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else b"\x70" + _u32.pack(value)
