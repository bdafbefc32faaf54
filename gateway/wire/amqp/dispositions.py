"""
Disposition frames (AMQP 1.0, part 2, 2.7.6) and delivery states (part 3, 3.4; part 4, 4.5).

    size 02 00 channel 00 53 15 C0 size count role first last settled state

Most dispositions say "accepted". They are read by one regular expression, and written by one
`Struct`; the slow way reads and writes all others.
"""

import re
import struct
from typing import Any, Final

import attrs

from gateway.domain.errors import MessageError
from gateway.domain.message import Described
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Declared,
    DeliveryState,
    Modified,
    OtherState,
    Outcome,
    Rejected,
    Released,
    TransactionalState,
)
from gateway.wire.amqp.performatives import (
    DECLARED,
    DISPOSITION,
    FIELDS,
    TRANSACTIONAL_STATE,
    by_name,
    code_of,
    described,
    field,
    fields_of,
    read_error,
    symbols_or_null,
    uint_in,
    write_error,
)
from gateway.wire.amqp.types import encode

_ACCEPTED, _REJECTED, _RELEASED, _MODIFIED = 0x24, 0x25, 0x26, 0x27

_NULL: Final = b"\x40"
_ENCODED: Final[dict[type, bytes]] = {
    Accepted: b"\0\x53\x24\x45",
    Released: b"\0\x53\x26\x45",
    type(None): _NULL,
}
_USUAL: Final = re.compile(
    rb"\0\x53\x15\xc0.[\x05\x06]"
    rb"([\x41\x42])"  # role
    rb"(\x43|\x52.|\x70....)"  # first
    rb"(\x40|\x43|\x52.|\x70....)"  # last
    rb"([\x41\x42])"  # settled
    rb"\0\x53\x24(?:\x45|\xc0\1\0)"
    rb"[\x40\x42]?",  # batchable
    re.DOTALL,
)
_TRUE: Final = b"\x41"

_FIXED: Final = 12  # bytes of a disposition's fields before its state
# A frame up to its state, with a short list or a long one.
_short = struct.Struct(">IBBH3sBBBBBIBIB")
_long = struct.Struct(">IBBH3sBIIBBIBIB")


@attrs.frozen
class Disposition:
    """The fields of the peer's disposition that we use."""

    receiver: bool  # the sender of the frame is the receiver of the deliveries
    first: int
    last: int
    settled: bool
    state: DeliveryState | None


def read_usual(data: bytes, body: int, end: int) -> Disposition | None:
    """The disposition between these positions, if it is the usual one; otherwise None."""
    found = _USUAL.fullmatch(data, body, end)
    if found is None or data[body + 4] != end - body - 5:
        return None
    role, first, last, settled = found.groups()
    number = int.from_bytes(first[1:])
    return Disposition(
        receiver=role == _TRUE,
        first=number,
        last=number if last == _NULL else int.from_bytes(last[1:]),
        settled=settled == _TRUE,
        state=ACCEPTED,
    )


def read_disposition(fields: list[Any]) -> Disposition:
    """
    The disposition with these fields.

    Raises:
        MessageError: a field is malformed or missing.
    """
    first = uint_in(fields, 1)
    return Disposition(
        receiver=field(fields, 0, bool, False),
        first=first,
        last=uint_in(fields, 2, first),
        settled=field(fields, 3, bool, False),
        state=read_state(field(fields, 4, Described)),
    )


@attrs.define(eq=False)
class Range:
    """A disposition that we write, for consecutive deliveries; further ones may be added."""

    receiver: bool  # our role on the deliveries' links
    first: int
    last: int
    settled: bool
    state: bytes  # encoded


def encode_state(state: DeliveryState | None) -> bytes:
    """
    The encoded state.

    Raises:
        MessageError: AMQP can't express it.
    """
    return _ENCODED.get(type(state)) or encode(_write_state(state))


def write_disposition(channel: int, told: Range, *, pads: bool) -> bytes:
    """A disposition frame."""
    state = told.state + _NULL * (FIELDS[DISPOSITION] - 5) if pads else told.state
    size = _FIXED + len(state)
    layout, code = (_short, 0xC0) if size < 255 else (_long, 0xD0)
    size_of_count = 1 if size < 255 else 4
    return (
        layout.pack(
            layout.size + len(state),
            2,
            0,
            channel,
            b"\0\x53\x15",
            code,
            size_of_count + size,
            FIELDS[DISPOSITION] if pads else 5,
            0x41 if told.receiver else 0x42,
            0x70,
            told.first,
            0x70,
            told.last,
            0x41 if told.settled else 0x42,
        )
        + state
    )


def _write_state(state: DeliveryState | None) -> Described | None:
    match state:
        case None:
            return None
        case Declared(txn_id=txn_id):
            return described(DECLARED, [txn_id])
        case TransactionalState(txn_id=txn_id, outcome=outcome):
            return described(TRANSACTIONAL_STATE, [txn_id, _write_state(outcome)])
        case OtherState(code=code):
            return described(code, [])
    return _write_outcome(state)


def _write_outcome(outcome: Outcome) -> Described:
    match outcome:
        case Accepted():
            return described(_ACCEPTED, [])
        case Released():
            return described(_RELEASED, [])
        case Rejected(error=error):
            return described(_REJECTED, [] if error is None else [write_error(error)])
        case Modified():
            annotations = symbols_or_null(outcome.annotations)
            flags = [outcome.delivery_failed, outcome.undeliverable_here]
            return described(_MODIFIED, [*flags, annotations] if annotations else flags)


def read_state(value: Described | None) -> DeliveryState | None:
    """
    The delivery state in a field.

    Raises:
        MessageError: the state is malformed.
    """
    if value is None:
        return None
    code, fields = code_of(value), fields_of(value)
    if code == DECLARED:
        return Declared(txn_id=field(fields, 0, bytes, b""))
    if code == TRANSACTIONAL_STATE:
        inner = field(fields, 1, Described)
        outcome = None if inner is None else _read_outcome(code_of(inner), fields_of(inner))
        if inner is not None and outcome is None:
            raise MessageError(f"{code_of(inner):#x} is no outcome")
        return TransactionalState(txn_id=field(fields, 0, bytes, b""), outcome=outcome)
    return _read_outcome(code, fields) or OtherState(code=code)


def _read_outcome(code: int, fields: list[Any]) -> Outcome | None:
    match code:
        case 0x24:
            return ACCEPTED
        case 0x26:
            return RELEASED
        case 0x25:
            return Rejected(error=read_error(field(fields, 0, Described)))
        case 0x27:
            return Modified(
                delivery_failed=field(fields, 0, bool, False),
                undeliverable_here=field(fields, 1, bool, False),
                annotations=by_name(field(fields, 2, dict, {})),
            )
    return None
