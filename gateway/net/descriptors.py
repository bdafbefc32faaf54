"""Messages and file descriptors between two processes, over a Unix socket (SCM_RIGHTS)."""

import array
import json
import os
import select
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from gateway.net.unix import client_of

MOST_DESCRIPTORS: Final = 250  # descriptors of one message; Linux allows 253
LONGEST_MESSAGE: Final = 1024 * 1024  # bytes: the names of thousands of sockets take less
_CHUNK: Final = 64 * 1024  # as many as Trio's streams receive at once by default


@attrs.frozen
class PeerProcess:
    """The process at the other end, as it was when the connection began."""

    pid: int
    user: int


@attrs.define(eq=False)
class DescriptorChannel:
    """
    A connection that passes JSON objects, one a line, together with file descriptors.

    Received descriptors aren't inherited by further processes.
    """

    socket: trio.socket.SocketType
    _rest: bytearray = attrs.field(factory=bytearray, init=False)
    _descriptors: list[int] = attrs.field(factory=list, init=False)

    @property
    def peer(self) -> PeerProcess:
        pid, user = client_of(self.socket)
        return PeerProcess(pid=pid, user=user)

    async def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """
        Send the message; the peer gets copies of the descriptors.

        Raises:
            trio.BrokenResourceError: the peer has closed the connection.
        """
        data = memoryview(json.dumps(message).encode() + b"\n")
        passed = array.array("i", descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)] if descriptors else []
        try:
            sent = await self.socket.sendmsg([data], rights)
            while sent < len(data):
                sent += await self.socket.send(data[sent:])
        except OSError as error:
            raise trio.BrokenResourceError(f"the other process has left: {error}") from error

    async def receive(self) -> tuple[Mapping[str, Any], list[int]] | None:
        """
        The next message with the descriptors that came until its end; None: the peer has closed the
        connection. The caller closes the descriptors.

        Raises:
            ValueError: the peer sent no JSON object, or one longer than `LONGEST_MESSAGE`.
        """
        space = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
        while b"\n" not in self._rest:
            try:
                data, control, _, _ = await self.socket.recvmsg(
                    _CHUNK, space, socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                return None
            for level, kind, payload in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers = array.array("i")
                    numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                    self._descriptors += numbers
            if not data:
                return None
            self._rest += data
            if len(self._rest) > LONGEST_MESSAGE:
                raise ValueError("the message is too long")
        line, _, self._rest = self._rest.partition(b"\n")
        message = _as_object(line)
        descriptors, self._descriptors = self._descriptors, []
        return message, descriptors

    @property
    def has_news(self) -> bool:
        """True if the peer has sent something, or has closed the connection."""
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        return bool(self._rest) or bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection, and descriptors that no call has received."""
        self.socket.close()
        close_all(self._descriptors)
        self._descriptors = []


def _as_object(line: bytes | bytearray) -> Mapping[str, Any]:
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("the message is too deep") from error
    if not isinstance(message, dict):
        raise ValueError("an object expected")  # noqa: TRY004 one error for all of its kinds
    return message


def duplicates(descriptors: Sequence[int]) -> list[int]:
    """
    Further descriptors of these sockets, which the caller closes.

    Raises:
        OSError: too many files are open; no new descriptor stays open then.
    """
    made: list[int] = []
    try:
        made.extend(map(os.dup, descriptors))
    except OSError:
        close_all(made)
        raise
    return made


def close_all(descriptors: Sequence[int]) -> None:
    """Close these sockets; a socket that another process holds as well stays open there."""
    for number in descriptors:
        socket.close(number)
