"""
Flow frames (AMQP 1.0, part 2, 2.7.4).

    size 02 00 channel 00 53 13 C0 size count  next-incoming-id incoming-window next-outgoing-id
    outgoing-window  handle delivery-count link-credit available drain echo  properties

Nearly all flows consist of short numbers and booleans, and are read in one pass; the slow way reads
all others.
"""

from typing import Any, Final

import attrs

from gateway.wire.amqp.performatives import field, uint_in

_HEAD: Final = 6  # bytes of the body before the first field
_FIELDS: Final = 11  # of a flow (part 2, 2.7.4)
_FIRST_FLAG: Final = 8  # the place of `drain`; those before are numbers
_NULL, _TRUE, _FALSE, _ZERO, _SMALL, _UINT = 0x40, 0x41, 0x42, 0x43, 0x52, 0x70


@attrs.define
class Flow:
    """The fields of the peer's flow that we use. Without a handle it is about the session alone."""

    next_incoming: int | None  # None: the peer has received no begin, and no transfer
    incoming_window: int
    next_outgoing: int
    handle: int | None
    delivery_count: int | None
    credit: int
    drain: bool
    echo: bool


def read_usual_flow(data: bytes, body: int, end: int) -> Flow | None:
    """The flow between these positions, if it is encoded as most are; otherwise None."""
    if end - body < _HEAD or data[body + 3] != 0xC0 or data[body + 4] != end - body - 5:
        return None
    values: list[Any] = []
    at, last = body + _HEAD, end - 4  # behind `last`, no number of four bytes has room
    for _ in range(min(data[body + 5], _FIELDS + 1)):
        code = data[at] if at < end else 0
        if code == _UINT and at < last:
            values.append(int.from_bytes(data[at + 1 : at + 5]))
            at += 5
        elif code == _SMALL and at + 1 < end:
            values.append(data[at + 1])
            at += 2
        elif code in _CONSTANTS:
            values.append(_CONSTANTS[code])
            at += 1
        else:
            return None
    count = len(values)
    if at != end or count > _FIELDS:
        return None
    values += [None] * (_FIELDS - count)
    before, window, number, outgoing, handle, seen, credit, _, drain, echo, properties = values
    if (
        window is None
        or number is None
        or outgoing is None
        or properties is not None
        or not {type(drain), type(echo)} <= _FLAGS
        or bool in map(type, values[:_FIRST_FLAG])
    ):
        return None
    return Flow(before, window, number, handle, seen, credit or 0, bool(drain), bool(echo))


_CONSTANTS: Final = {_NULL: None, _TRUE: True, _FALSE: False, _ZERO: 0}
_FLAGS: Final = {bool, type(None)}


def read_flow(fields: list[Any]) -> Flow:
    """
    The flow with these fields.

    Raises:
        MessageError: a field is malformed or missing.
    """
    uint_in(fields, 3)  # the outgoing window, which doesn't concern us
    return Flow(
        next_incoming=_uint_or_null(fields, 0),
        incoming_window=uint_in(fields, 1),
        next_outgoing=uint_in(fields, 2),
        handle=_uint_or_null(fields, 4),
        delivery_count=_uint_or_null(fields, 5),
        credit=uint_in(fields, 6, 0),
        drain=field(fields, 8, bool, False),
        echo=field(fields, 9, bool, False),
    )


def _uint_or_null(fields: list[Any], index: int) -> int | None:
    return None if field(fields, index, int) is None else uint_in(fields, index)
