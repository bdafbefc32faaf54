"""
Faults for `ChaosProxy` in AMQP's own terms: the answers of a server to senders.

They change frames of connections that begin within the fault: a test that sets a fault resets all
connections that are there. Bytes of other protocols pass. Links to `$cbs`, which carry tokens, are
left alone.

    server ── attach ─▶ ── detach(error) ─▶ client       Detach
           ── disposition ─✂ ── detach(error) ─▶         DetachInsteadOfAnswer
           ── flow(link-credit := 0) ─▶                  NoCredit
"""

import struct
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs

from gateway.domain.message import Described, symbol
from gateway.wire.amqp.performatives import (
    ATTACH,
    DETACH,
    DISPOSITION,
    FLOW,
    code_of,
    described,
    field,
    fields_of,
    number,
    uint,
)
from gateway.wire.amqp.types import decode_at, encode
from tests.harness.chaos_proxy import Link, Pass

BUSY: Final = "com.microsoft:server-busy"
FORCED: Final = "amqp:link:detach-forced"
_ERROR: Final = 0x1D  # part 2, 2.8.14
_HEADER: Final = 8  # bytes of a protocol header
_HEAD: Final = struct.Struct(">IBBH")  # size, data offset in words, type, channel: part 2, 2.3
_TARGET: Final = 6  # its place among the fields of an attach frame
_CREDIT: Final = 6  # and that of the credit among those of a flow frame
_TOKENS: Final = "$cbs"

Handle = tuple[int, int]  # the server's channel, and its handle there


@attrs.define(eq=False)
class Answers:
    """The frames that a server has sent on one connection, and the links that they concern."""

    senders: set[Handle] = attrs.field(factory=set)  # links on which the client sends
    ended: set[Handle] = attrs.field(factory=set)  # detached by us; the server doesn't know
    _rest: bytes = b""
    _foreign: bool | None = None

    def frames(self, data: bytes) -> Iterator[bytes]:
        """Protocol headers and whole frames, or any bytes of another protocol."""
        self._rest += data
        if self._foreign is None and len(self._rest) >= 4:
            self._foreign = not self._rest.startswith(b"AMQP")
        while self._foreign is not None and (size := self._next()):
            piece, self._rest = self._rest[:size], self._rest[size:]
            yield piece

    def _next(self) -> int:
        if self._foreign:
            return len(self._rest)
        if self._rest.startswith(b"AMQP"):
            size = _HEADER
        elif len(self._rest) < _HEAD.size:
            return 0
        else:
            size = _HEAD.unpack_from(self._rest)[0]
        return size if len(self._rest) >= size else 0


@attrs.frozen
class _OnFrames(Pass):
    """Asks `change` for each frame of the server's that says something."""

    _answers: "WeakKeyDictionary[Link, Answers]" = attrs.field(
        factory=WeakKeyDictionary, init=False, eq=False, repr=False
    )

    async def down(self, link: Link, data: bytes) -> None:
        answers = self._answers.setdefault(link, Answers())
        await link.send_down(b"".join(self._changed(answers, one) for one in answers.frames(data)))

    def _changed(self, answers: Answers, frame: bytes) -> bytes:
        if frame.startswith((b"AMQP", b"HTTP")) or len(frame) <= _HEAD.size:
            return frame
        _, words, kind, channel = _HEAD.unpack_from(frame)
        if kind != 0 or len(frame) <= 4 * words:  # SASL, or a heartbeat
            return frame
        body, _ = decode_at(frame, 4 * words)
        code = code_of(body)
        if code not in {ATTACH, DETACH, DISPOSITION, FLOW}:
            return frame
        fields = fields_of(body)
        if code == ATTACH and field(fields, 2, bool, False) and not _is_for_tokens(fields):
            answers.senders.add((channel, number(fields, 1)))
        if _of_ended(answers, code, channel, fields):
            return b""
        return self.change(answers, frame, code, fields)

    def change(self, answers: Answers, frame: bytes, code: int, fields: list[Any]) -> bytes:
        """Return the bytes that the client gets instead of `frame`."""
        return frame


@attrs.frozen
class Detach(_OnFrames):
    """Each link to send on is ended as soon as it is there: nothing was sent."""

    condition: str = FORCED

    def change(self, answers: Answers, frame: bytes, code: int, fields: list[Any]) -> bytes:
        if code != ATTACH:
            return frame
        handle = _channel_of(frame), number(fields, 1)
        detach = _detach(answers, handle, self.condition) if handle in answers.senders else b""
        return frame + detach


@attrs.frozen
class DetachInsteadOfAnswer(_OnFrames):
    """
    The server has the message, and instead of its answer the links end: the outcome is unknown.
    """

    def change(self, answers: Answers, frame: bytes, code: int, fields: list[Any]) -> bytes:
        settles_sends = code == DISPOSITION and field(fields, 0, bool, False)
        mine = [one for one in answers.senders if one[0] == _channel_of(frame)]
        if not settles_sends or not mine:
            return frame
        return b"".join(_detach(answers, handle, FORCED) for handle in sorted(mine))


@attrs.frozen
class NoCredit(_OnFrames):
    """Links attach, and may never send."""

    def change(self, answers: Answers, frame: bytes, code: int, fields: list[Any]) -> bytes:
        if code != FLOW:
            return frame
        handle = _channel_of(frame), field(fields, 4, int, -1)
        if handle not in answers.senders:
            return frame
        fields[_CREDIT] = uint(0)
        return _frame(handle[0], described(FLOW, fields))


def _is_for_tokens(fields: list[Any]) -> bool:
    target = fields[_TARGET] if len(fields) > _TARGET else None
    return isinstance(target, Described) and fields_of(target)[:1] == [_TOKENS]


def _of_ended(answers: Answers, code: int, channel: int, fields: list[Any]) -> bool:
    """True if the frame belongs to a link that the client believes to be detached."""
    if code not in {DETACH, FLOW}:
        return False
    handle = channel, field(fields, 0 if code == DETACH else 4, int, -1)
    over = handle in answers.ended
    if code == DETACH:
        answers.ended.discard(handle)
        answers.senders.discard(handle)
    return over


def _detach(answers: Answers, handle: Handle, condition: str) -> bytes:
    answers.senders.discard(handle)
    answers.ended.add(handle)
    error = described(_ERROR, [symbol(condition), "the proxy ends this link"])
    return _frame(handle[0], described(DETACH, [uint(handle[1]), True, error]))


def _frame(channel: int, performative: Described) -> bytes:
    body = encode(performative)
    return _HEAD.pack(_HEAD.size + len(body), 2, 0, channel) + body


def _channel_of(frame: bytes) -> int:
    channel: int = _HEAD.unpack_from(frame)[3]
    return channel
