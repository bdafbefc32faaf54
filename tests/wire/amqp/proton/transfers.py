"""
The fixed part of a transfer frame (AMQP 1.0, part 2, 2.7.5), read as fast as Python can: it is read
once more for each message, only because Proton doesn't report its fields.
"""

import struct
from typing import Final, NamedTuple

from gateway.wire.amqp.types import decode_at

SMALL: Final = 64  # bytes: what is no longer can't nest deep

_NULL, _FALSE = 0x40, 0x42
_NOTHING = bytes((_NULL, _FALSE))
_ABORTED = 9  # the place of the state among the fields

_u32 = struct.Struct(">I")
_size_and_count = struct.Struct(">II")


class TransferHead(NamedTuple):
    """
    The fields of a transfer frame before its payload, and the position of its delivery id.

        handle, delivery-id, delivery-tag, message-format, settled, more, rcv-settle-mode, state,
        resume, aborted, batchable
    """

    field_count: int
    fields_at: int
    fields_end: int
    handle: int
    delivery_id: int | None
    id_at: int
    id_end: int
    message_format: int
    more: bool  # frames of this delivery are to come


def read_transfer(data: bytes, at: int) -> TransferHead:
    """
    The head of the transfer whose list starts at byte `at`.

    Raises:
        IndexError, struct.error, ValueError: it is none, or cut off.
        MessageError: its state is no value, or nested too deep.
    """
    code = data[at]
    if code == 0xC0:
        fields_at, fields_end, count = at + 3, at + 2 + data[at + 1], data[at + 2]
    elif code == 0xD0:
        size, count = _size_and_count.unpack_from(data, at + 1)
        fields_at, fields_end = at + 9, at + 5 + size
    else:
        raise ValueError(f"{code:#x} starts no list of fields")
    if fields_end - at > SMALL:
        decode_at(data, at)
    handle, id_at = _uint(data, fields_at)
    delivery_id, id_end = _uint(data, id_at) if count > 1 else (None, id_at)
    message_format, more = 0, False
    if count > 3:
        found, position = _uint(data, _skip_tag(data, id_end))
        message_format = found or 0
        if count > 5:
            _, position = _flag(data, position)
            more, position = _flag(data, position)
            # The rest is null or false, but for strange peers; there it may abort the delivery.
            if more and count > _ABORTED and data[position:fields_end].strip(_NOTHING):
                fields, _ = decode_at(data, at)
                more = not fields[_ABORTED]
    if handle is None:
        raise ValueError("a transfer without a handle")
    return TransferHead(
        count, fields_at, fields_end, handle, delivery_id, id_at, id_end, message_format, more
    )


def _uint(data: bytes, at: int) -> tuple[int | None, int]:
    code = data[at]
    if code == 0x52:
        return data[at + 1], at + 2
    if code == 0x43:
        return 0, at + 1
    if code == 0x70:
        return _u32.unpack_from(data, at + 1)[0], at + 5
    if code == _NULL:
        return None, at + 1
    raise ValueError(f"{code:#x} starts no uint")


def _flag(data: bytes, at: int) -> tuple[bool, int]:
    code = data[at]
    if code == 0x56:
        return data[at + 1] == 1, at + 2
    return code == 0x41, at + 1


def _skip_tag(data: bytes, at: int) -> int:
    code = data[at]
    if code == 0xA0:
        return at + 2 + data[at + 1]
    if code == 0xB0:
        return at + 5 + int(_u32.unpack_from(data, at + 1)[0])
    if code == _NULL:
        return at + 1
    raise ValueError(f"{code:#x} starts no tag")
