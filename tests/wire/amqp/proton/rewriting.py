"""Features that Proton lacks, added to the bytes that it wrote: see `frames` for the list."""

from typing import Any, Final

import attrs

from gateway.domain.message import symbol
from gateway.wire.amqp.performatives import (
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FIELDS,
    OPEN,
    TRANSFER,
    described,
    field,
    fields_of,
    number,
    uint,
)
from gateway.wire.amqp.types import decode_at, encode
from tests.wire.amqp.proton.frames import AMQP_HEADER, Renumbering, frame_head

# azure-servicebus reads an error's info by position, and one of its callbacks swallows the
# IndexError.
SOME_INFO: Final = {"server": "pairgate"}

_MAX_FRAME_SIZE = 2  # index among the fields of an open frame
_TAG, _FORMAT = 2, 3  # indexes among the fields of a transfer
_ERROR_AT: Final = {DETACH: 2, END: 0, CLOSE: 0}
_ALWAYS: Final = {OPEN, BEGIN, DETACH, END, CLOSE}


@attrs.define(eq=False)
class Outbound:
    """Proton's frames on their way to the peer."""

    renumbering: Renumbering
    max_frame_size: int  # told to the peer; Proton accepts `ROOM` more
    pads: bool = False  # whether trailing nulls of each frame are written
    formats: dict[bytes, int] = attrs.field(factory=dict)  # delivery tag -> format, unless it is 0
    _rest: bytes = b""
    _header_due: bool = True

    def feed(self, data: bytes) -> bytes:
        """The bytes for the peer: all whole frames that Proton has written."""
        data = self._rest + data
        at = 0
        if self._header_due and len(data) >= len(AMQP_HEADER):
            self._header_due = False
            at = len(AMQP_HEADER)
        pieces, copied, end = [], 0, len(data)
        while end - at >= frame_head.size:
            size, words, _, channel = frame_head.unpack_from(data, at)
            if end - at < size:
                break
            body = at + 4 * words
            if size > 4 * words and self._concerns(data[body + 2]):
                pieces += [data[copied:at], self._rewrite(data, body, at + size, channel)]
                copied = at + size
            at += size
        self._rest = data[at:]
        if not pieces:
            return data if at == end else data[:at]
        pieces.append(data[copied:at])
        return b"".join(pieces)

    def _concerns(self, code: int) -> bool:
        return (
            self.pads
            or code in _ALWAYS
            or (code == TRANSFER and bool(self.formats))
            or (code == DISPOSITION and bool(self.renumbering.used))
        )

    def _rewrite(self, data: bytes, body: int, end: int, channel: int) -> bytes:
        code = data[body + 2]
        fields, payload_at = decode_at(data, body + 3)
        performatives = [fields]
        if code == OPEN:
            fields.extend([None] * (_MAX_FRAME_SIZE + 1 - len(fields)))
            fields[_MAX_FRAME_SIZE] = uint(self.max_frame_size)
        elif code == BEGIN:
            if (theirs := field(fields, 0, int)) is not None:
                self.renumbering.theirs[channel] = theirs
        elif code == TRANSFER:
            self._mark(fields)
        elif code == DISPOSITION:
            performatives = self._renumber(fields, channel)
        elif code in _ERROR_AT:
            _inform(fields, _ERROR_AT[code])
        payload = data[payload_at:end]
        return b"".join(self._frame(code, each, payload, channel) for each in performatives)

    def _frame(self, code: int, fields: list[Any], payload: bytes, channel: int) -> bytes:
        if self.pads:
            fields = fields + [None] * (FIELDS[code] - len(fields))
        body = encode(described(code, fields)) + payload
        return frame_head.pack(frame_head.size + len(body), 2, 0, channel) + body

    def _mark(self, fields: list[Any]) -> None:
        """Write the format into a message's first transfer."""
        tag = field(fields, _TAG, bytes)
        if tag in self.formats:
            fields.extend([None] * (_FORMAT + 1 - len(fields)))
            fields[_FORMAT] = uint(self.formats.pop(tag))

    def _renumber(self, fields: list[Any], channel: int) -> list[list[Any]]:
        """The same disposition, for the delivery ids that the peer has used."""
        used = self.renumbering.used.get(self.renumbering.theirs.get(channel, -1), {})
        first = number(fields, 1)
        last = field(fields, 2, int, first)
        if not fields[0] or not any(each in used for each in range(first, last + 1)):
            return [fields]
        return [
            [fields[0], uint(used.pop(each, each)), None, *fields[3:]]
            for each in range(first, last + 1)
        ]


def _inform(fields: list[Any], at: int) -> None:
    """Add an info to an error that has none."""
    error = fields[at] if at < len(fields) else None
    if error is None:
        return
    parts = fields_of(error)
    parts.extend([None] * (3 - len(parts)))
    if not parts[2]:
        parts[2] = {symbol(key): value for key, value in SOME_INFO.items()}
