"""
Frames (AMQP 1.0, part 2, 2.3), and the errors of a peer that breaks the protocol.

    frame         size(4) data-offset(1) type(1) channel(2), performative, payload
    performative  00 53 code, then a list: 45 | C0 size(1) count(1) | D0 size(4) count(4)
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from gateway.domain.errors import MessageError
from gateway.domain.message import Described
from gateway.wire.amqp.performatives import FIELDS, code_of, described
from gateway.wire.amqp.types import decode_at, encode

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
HEARTBEAT: Final = b"\0\0\0\x08\x02\0\0\0"
LEAST_MAX_FRAME_SIZE: Final = 512  # part 2, 2.8.19: each peer must accept frames of this many bytes

DECODE_ERROR: Final = "amqp:decode-error"

frame_head: Final = struct.Struct(">IBBH")


class FrameError(Exception):
    """The peer broke the protocol: the connection ends with this condition."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class SessionError(FrameError):
    """The peer broke the protocol within a session, which ends; the connection continues."""


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
        raise FrameError(DECODE_ERROR, str(error)) from error


def write_frame(code: int, fields: list[Any], channel: int, *, pads: bool) -> bytes:
    """A frame without payload. `pads` writes trailing nulls (see `Engine.open`)."""
    if pads:
        fields = fields + [None] * (FIELDS[code] - len(fields))
    else:
        while fields and fields[-1] is None:
            fields = fields[:-1]
    body = encode(described(code, fields))
    return frame_head.pack(frame_head.size + len(body), 2, 0, channel) + body


def read_descriptor(data: bytes, at: int) -> tuple[int, int]:
    """
    The performative's code, and the position of its list.

    Raises:
        FrameError: no performative starts at byte `at`.
        MessageError: its descriptor is malformed.
    """
    if data[at : at + 2] == b"\x00\x53" and at + 2 < len(data):  # smallulong: the usual encoding
        return data[at + 2], at + 3
    if data[at] == 0:
        descriptor, list_at = decode_at(data, at + 1)
        return code_of(Described(descriptor, None)), list_at
    raise FrameError(DECODE_ERROR, f"{data[at]:#x} starts no performative")
