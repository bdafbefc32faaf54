"""
SASL on AMQP (AMQP 1.0, part 5, section 5.3), both sides. Proton's server knows too few mechanisms.

    C -> S  "AMQP" 3 1 0 0                 S -> C  "AMQP" 3 1 0 0, sasl-mechanisms
    C -> S  sasl-init (mechanism, answer)  S -> C  sasl-outcome (0: authenticated, 1: not)

ANONYMOUS and MSSBCBS mean that a token follows on `$cbs`, EXTERNAL that TLS has told who it is.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

import attrs

from gateway.wire.amqp.performatives import code_of, described, field, fields_of, names
from gateway.wire.amqp.types import decode, encode

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
MECHANISMS: Final = ("MSSBCBS", "ANONYMOUS", "EXTERNAL", "PLAIN")

_MECHANISMS, _INIT, _OUTCOME = 0x40, 0x41, 0x44
_MAX_FRAME = 4096  # part 5 says 512, but a token may come as PLAIN's password
_head = struct.Struct(">IBBH")  # size, offset of the body in words, type, channel (not used)


class SaslFailed(Exception):
    """What came is not SASL, or the peer is not who it says. `answer` is to be sent first."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.answer = answer


@attrs.frozen(kw_only=True)
class Credentials:
    """What a client says about itself."""

    mechanism: str
    user: str = ""  # PLAIN's authentication id
    password: str = attrs.field(default="", repr=False)


@attrs.define(eq=False)
class SaslServer:
    """
    Offers mechanisms, and asks `accepts` about the one that the client has taken.

    Bytes are taken from the buffer that `feed` is given; what follows SASL stays in it.
    """

    accepts: Callable[[Credentials], bool]
    mechanisms: tuple[str, ...] = MECHANISMS
    done: Credentials | None = attrs.field(init=False, default=None)
    _greeted: bool = attrs.field(init=False, default=False)

    def feed(self, data: bytearray) -> bytes:
        """
        The answer to what has arrived.

        Raises:
            SaslFailed: no SASL, an unknown mechanism, or nobody that `accepts` lets in.
            MessageError: the frame is no AMQP.
        """
        answer = b""
        if not self._greeted and _take_header(data):
            self._greeted = True
            offer = names(self.mechanisms)
            answer = SASL_HEADER + _frame(_MECHANISMS, [offer])
        if self._greeted and self.done is None and (frame := _take_frame(data, _INIT)):
            answer += self._outcome(frame, answer)
        return answer

    def _outcome(self, fields: list[Any], before: bytes) -> bytes:
        credentials = _credentials(field(fields, 0, str, ""), field(fields, 1, bytes, b""))
        if credentials.mechanism not in self.mechanisms or not self.accepts(credentials):
            refusal = _frame(_OUTCOME, [_ubyte(1)])
            raise SaslFailed(f"{credentials.mechanism} is not authenticated", before + refusal)
        self.done = credentials
        return _frame(_OUTCOME, [_ubyte(0)])
