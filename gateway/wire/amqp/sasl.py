"""
SASL on AMQP (AMQP 1.0, part 5, section 5.3), both sides.

    C -> S  "AMQP" 3 1 0 0                 S -> C  "AMQP" 3 1 0 0, sasl-mechanisms
    C -> S  sasl-init (mechanism, answer)  S -> C  sasl-outcome (0: authenticated, 1: not)

A client may begin with AMQP itself instead, as after ANONYMOUS: Node's SDK does so if its
connection string has a signature, because it then has no user for SASL.

After ANONYMOUS or MSSBCBS the client puts a token on `$cbs`, unless an anonymous policy gives it
the rights that it needs. With EXTERNAL, TLS has authenticated the client. XOAUTH2 has a bearer
token, `user=NAME ^A auth=Bearer TOKEN ^A ^A` without the spaces, as Qpid's clients send it.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

import attrs

from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.performatives import (
    code_of,
    described,
    field,
    fields_of,
    named,
    number,
    symbols,
    to_symbol,
    ubyte,
)
from gateway.wire.amqp.types import decode, encode

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
XOAUTH2: Final = "XOAUTH2"
PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"
NO_SASL: Final = ""  # instead of a mechanism: the connection begins with AMQP itself
EXTERNAL: Final = "EXTERNAL"
MECHANISMS: Final = ("MSSBCBS", ANONYMOUS, EXTERNAL, PLAIN)
OK, REFUSED, TRY_LATER = 0, 1, 4  # codes of outcomes (part 5, 5.3.3.6)

_FRAMING: Final = "amqp:connection:framing-error"
_MECHANISMS, _INIT, _OUTCOME = 0x40, 0x41, 0x44
_MAX_FRAME = 16 * 1024  # part 5 says 512, but a token may come with XOAUTH2, or as a password
_BEARER: Final = b"auth=bearer "
_head = struct.Struct(">IBBH")  # size, where the body starts in words, type, ignored


class SaslFailed(Exception):
    """The bytes aren't SASL, or authentication failed. `answer` is to be sent first."""

    def __init__(
        self, reason: str, answer: bytes = b"", condition: str = "amqp:unauthorized-access"
    ) -> None:
        super().__init__(reason)
        self.answer = answer
        self.condition = condition


@attrs.frozen(kw_only=True)
class Credentials:
    """A client's credentials."""

    mechanism: str
    user: str = ""  # PLAIN's authentication id, or the user of XOAUTH2
    password: str = attrs.field(default="", repr=False)  # of XOAUTH2, the token


@attrs.define(eq=False)
class SaslServer:
    """
    Offers mechanisms, and calls `accepts` for the outcome (its code) of the client's credentials,
    which are `NO_SASL` of a client that begins with AMQP itself. If the outcome isn't known yet
    (None), the credentials are in `asked` until `verdict` is set to an outcome's code.
    """

    accepts: Callable[[Credentials], int | None]
    mechanisms: tuple[str, ...] = MECHANISMS
    done: Credentials | None = attrs.field(init=False, default=None)
    asked: Credentials | None = attrs.field(init=False, default=None)
    verdict: int | None = attrs.field(init=False, default=None)
    _greeted: bool = attrs.field(init=False, default=False)

    def start(self) -> bytes:
        """Empty: a server waits for the client's header."""
        return b""

    def feed(self, data: bytearray) -> bytes:
        """
        Process the bytes that have arrived and return the answer. SASL's bytes are removed from
        `data`; those after SASL stay.

        Raises:
            SaslFailed: not SASL, an unknown mechanism, or credentials that `accepts` refuses.
            MessageError: the frame isn't AMQP.
        """
        answer = b""
        if not self._greeted and self._begins_without(data):
            return answer
        if not self._greeted and _read_header(data):
            self._greeted = True
            answer = SASL_HEADER + _frame(_MECHANISMS, [symbols(self.mechanisms)])
        if self._greeted and self.done is None and self.asked is None:
            fields = _read_frame(data, _INIT)
            if fields is not None:
                self._ask(fields)
        if self.asked is not None and self.done is None and self.verdict is not None:
            answer += self._outcome(self.asked, self.verdict, answer)
        return answer

    def _begins_without(self, data: bytearray) -> bool:
        """True if the client begins with AMQP itself, as far as its bytes have arrived."""
        if not AMQP_HEADER.startswith(data[:8]):
            return False
        if len(data) < 8:
            return True
        credentials = Credentials(mechanism=NO_SASL)
        if self.accepts(credentials) != OK:
            return False
        self.done = credentials
        return True

    def _ask(self, fields: list[Any]) -> None:
        credentials = _credentials(field(fields, 0, str, ""), field(fields, 1, bytes, b""))
        self.asked = credentials
        is_offered = credentials.mechanism in self.mechanisms
        self.verdict = self.accepts(credentials) if is_offered else REFUSED

    def _outcome(self, credentials: Credentials, verdict: int, before: bytes) -> bytes:
        if verdict != OK:
            refusal = before + _frame(_OUTCOME, [ubyte(verdict)])
            raise SaslFailed(f"{credentials.mechanism} did not authenticate", refusal)
        self.done = credentials
        return _frame(_OUTCOME, [ubyte(OK)])


@attrs.define(eq=False)
class SaslClient:
    """Authenticates without waiting for the server's mechanisms."""

    credentials: Credentials
    hostname: str = ""
    done: Credentials | None = attrs.field(init=False, default=None)
    _greeted: bool = attrs.field(init=False, default=False)
    _offered: bool = attrs.field(init=False, default=False)

    def start(self) -> bytes:
        """Our header: servers send their mechanisms only after it."""
        return SASL_HEADER

    def feed(self, data: bytearray) -> bytes:
        """
        Process the bytes that have arrived and return the answer. SASL's bytes are removed from
        `data`; those after SASL stay.

        Raises:
            SaslFailed: not SASL, our mechanism isn't offered, or the server refuses the
                credentials.
            MessageError: the frame isn't AMQP.
        """
        answer = b""
        if not self._greeted and _read_header(data):
            self._greeted = True
        if self._greeted and not self._offered:
            fields = _read_frame(data, _MECHANISMS)
            if fields is not None:
                self._offered = True
                answer = self._init(fields)
        if self._offered and self.done is None:
            fields = _read_frame(data, _OUTCOME)
            if fields is not None:
                self._conclude(number(fields, 0))
        return answer

    def _init(self, fields: list[Any]) -> bytes:
        mechanism = self.credentials.mechanism
        if mechanism not in named(fields, 0):
            offered = ", ".join(named(fields, 0))
            raise SaslFailed(f"{mechanism} is not offered, but {offered or 'nothing'}")
        proof = b""
        if mechanism == XOAUTH2:
            token = f"auth=Bearer {self.credentials.password}"
            proof = f"user={self.credentials.user}\1{token}\1\1".encode()
        elif mechanism == PLAIN:
            proof = f"\0{self.credentials.user}\0{self.credentials.password}".encode()
        return _frame(_INIT, [to_symbol(mechanism), proof, self.hostname or None])

    def _conclude(self, code: int) -> None:
        if code != 0:
            # Codes other than 1 are failures of the server (part 5, 5.3.3.6).
            condition = "amqp:unauthorized-access" if code == 1 else "amqp:internal-error"
            raise SaslFailed(
                f"{self.credentials.mechanism} failed with code {code}", condition=condition
            )
        self.done = self.credentials


def _credentials(mechanism: str, proof: bytes) -> Credentials:
    """PLAIN's response is authorization id, authentication id and password (RFC 4616)."""
    if mechanism == XOAUTH2:
        user, password = _bearer_token(proof)
    elif mechanism == PLAIN:
        parts = proof.split(b"\0")
        if len(parts) != 3:
            raise SaslFailed("PLAIN without user and password", _frame(_OUTCOME, [ubyte(1)]))
        user, password = parts[1:]
    else:
        return Credentials(mechanism=mechanism)
    try:
        return Credentials(mechanism=mechanism, user=user.decode(), password=password.decode())
    except UnicodeDecodeError as error:
        raise SaslFailed(f"{mechanism} in no UTF-8", _frame(_OUTCOME, [ubyte(1)])) from error


def _bearer_token(proof: bytes) -> tuple[bytes, bytes]:
    """The user, who needn't be given, and the token of XOAUTH2's response."""
    user, token = b"", b""
    for part in proof.split(b"\1"):
        if part.lower().startswith(_BEARER):
            token = part[len(_BEARER) :].strip()
        elif part.startswith(b"user="):
            user = part.removeprefix(b"user=")
    return user, token


def _frame(code: int, fields: list[Any]) -> bytes:
    body = encode(described(code, fields))
    return _head.pack(_head.size + len(body), 2, 1, 0) + body


def _read_header(data: bytearray) -> bool:
    """Remove the protocol header, if it has arrived."""
    if not SASL_HEADER.startswith(data[:8]):
        # Part 2, 2.2: answer an unknown header with the supported one, then close.
        raise SaslFailed(f"no SASL: {bytes(data[:8])!r}", SASL_HEADER, _FRAMING)
    if len(data) < 8:
        return False
    del data[:8]
    return True


def _read_frame(data: bytearray, code: int) -> list[Any] | None:
    """The fields of the next frame, which must have that code; None while it is incomplete."""
    if len(data) < _head.size:
        return None
    size, words, kind, _ = _head.unpack_from(data)
    if not 8 <= 4 * words <= size <= _MAX_FRAME or kind != 1:
        raise SaslFailed("no frame of SASL", condition=_FRAMING)
    if len(data) < size:
        return None
    body = decode(bytes(data[4 * words : size]))
    del data[:size]
    if code_of(body) != code:
        text = f"SASL frame {code_of(body):#x} instead of {code:#x}"
        raise SaslFailed(text, condition=_FRAMING)
    return fields_of(body)
