"""
A connection to beanstalkd, and the commands that the adapter needs.

beanstalkd's doc/protocol.txt (1.12) has the commands and their answers.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    MessageTooLarge,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
    Unreachable,
)

_CHUNK: Final = 65536  # bytes of a read
_CARRIES_DATA: Final = frozenset((b"RESERVED", b"OK", b"FOUND"))
_REFUSALS: Final[Mapping[bytes, type[BrokerError]]] = {
    b"JOB_TOO_BIG": MessageTooLarge,
    b"OUT_OF_MEMORY": QuotaExceeded,
    b"DRAINING": Unavailable,  # it was told to accept no further jobs, and to end some day
    b"INTERNAL_ERROR": OutcomeUnknown,
    b"BAD_FORMAT": InvalidRequest,
    b"EXPECTED_CRLF": InvalidRequest,
    b"UNKNOWN_COMMAND": InvalidRequest,
}


@attrs.frozen
class Answer:
    """The first word of an answer, its number if it has one, and its data."""

    word: bytes
    number: int = 0
    data: bytes = b""


@attrs.frozen
class Target:
    """The address of a server, and the seconds that a dial and a command may take."""

    host: str
    port: int
    timeout: float


@attrs.define(eq=False)
class Connection:
    """
    An open connection. One command is under way at a time; others wait for their turn.

    A reserved job belongs to the connection: the server releases it when the connection ends.
    """

    target: Target
    _stream: trio.abc.Stream
    _read: bytearray = attrs.field(factory=bytearray, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    is_over: bool = attrs.field(default=False, init=False)

    @classmethod
    async def open(cls, target: Target) -> "Connection":
        """
        Raises:
            Unreachable: nothing answers at the address.
        """
        try:
            with trio.fail_after(target.timeout):
                return cls(target, await trio.open_tcp_stream(target.host, target.port))
        except (OSError, trio.TooSlowError) as error:
            raise Unreachable(f"beanstalkd at {target.host}:{target.port}: {error}") from error

    async def ask(self, *commands: bytes) -> Sequence[Answer]:
        """
        Return an answer to each command. All are written at once.

        A cancellation waits until the answers are here, or the time is up: a command that was cut
        off would leave its answer to the next one.

        Raises:
            Unavailable: the connection had ended before. Nothing was written.
            OutcomeUnknown: it ended, or the time was up, before all answers came.
        """
        async with self._turn:
            if self.is_over:
                raise Unavailable("beanstalkd: the connection has ended")
            answers = list[Answer]()
            try:
                with trio.fail_after(self.target.timeout, shield=True):
                    await self._stream.send_all(b"".join(commands))
                    for _ in commands:
                        answers.append(await self._answer())
            except (trio.BrokenResourceError, trio.TooSlowError) as error:
                with trio.CancelScope(shield=True):
                    await self.aclose()
                raise OutcomeUnknown(f"beanstalkd: no answer: {error!r}") from error
            return answers

    async def aclose(self) -> None:
        """End the connection. The server releases the jobs that are reserved with it."""
        self.is_over = True
        await trio.aclose_forcefully(self._stream)

    async def _answer(self) -> Answer:
        while (end := self._read.find(b"\r\n")) < 0:
            await self._more()
        words = bytes(self._read[:end]).split()
        del self._read[: end + 2]
        numbers = [int(word) for word in words[1:] if word.isdigit()]
        number = numbers[0] if numbers else 0
        if words[0] not in _CARRIES_DATA:
            return Answer(words[0], number)
        size = numbers[-1]
        while len(self._read) < size + 2:
            await self._more()
        data = bytes(self._read[:size])
        del self._read[: size + 2]
        return Answer(words[0], number, data)

    async def _more(self) -> None:
        received = await self._stream.receive_some(_CHUNK)
        if not received:
            raise trio.BrokenResourceError("the server closed the connection")
        self._read += received


def put(job: bytes, *, delay: int, time_to_run: int) -> bytes:
    """The command that puts a job into the tube in use. `delay`, `time_to_run`: in seconds."""
    return b"put 0 %d %d %d\r\n%b\r\n" % (delay, time_to_run, len(job), job)


def check(answer: Answer, *expected: bytes) -> Answer:
    """
    Return the answer if it is one of the expected ones.

    Raises:
        BrokerError: the error that the answer stands for.
    """
    if answer.word in expected:
        return answer
    kind = _REFUSALS.get(answer.word, OutcomeUnknown)
    raise kind(f"beanstalkd: {answer.word.decode('ascii', 'replace')}")


def figures(answer: Answer) -> Mapping[str, int]:
    """The numbers of a `stats` answer, which is a map in YAML."""
    lines = (line.partition(": ") for line in answer.data.decode().splitlines())
    return {name: int(value) for name, _, value in lines if value.isdigit()}
