"""
An HTTP client that does as little as it can, the same for every server: one request at a time on
a connection that stays open.

A complete client in Python would take more processor time than the servers that it measures.
"""

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CHUNK: Final = 65536
_IDLE: Final = 3.0  # seconds: after five, Node.js ends a connection


class RequestFailed(Exception):
    """A server answered with an error, or hung up."""


@attrs.frozen
class Answer:
    status: int
    head: bytes
    body: bytes  # of a chunked one with the chunks' sizes


@attrs.define(eq=False)
class Connection:
    """A connection that is open, and that is opened again where it was idle."""

    _port: int
    _stream: trio.SocketStream
    _used: float = attrs.field(factory=time.perf_counter, init=False)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    async def ask(self, request: bytes, *good: int) -> Answer:
        """
        Raises:
            RequestFailed: the answer's status isn't one of the good ones.
        """
        if time.perf_counter() - self._used > _IDLE:
            await self.aclose()
            self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        await self._stream.send_all(request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += await self._more()
        head, body = data[: end + 2], data[end + 4 :]
        status = int(head[9:12])
        if _CHUNKED.search(head):
            while not body.endswith(b"0\r\n\r\n"):
                body += await self._more()
        elif length := _LENGTH.search(head):
            missing = int(length[1])
            while len(body) < missing:
                body += await self._more()
        self._used = time.perf_counter()
        if status not in good:
            raise RequestFailed(f"{request[:80]!r}: {head!r} {body!r}")
        return Answer(status, head, body)

    async def _more(self) -> bytes:
        data = await self._stream.receive_some(_CHUNK)
        if not data:
            raise RequestFailed("the server hung up")
        return bytes(data)


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Connection]:
    connection = Connection(port, await trio.open_tcp_stream("127.0.0.1", port))
    try:
        yield connection
    finally:
        await connection.aclose()


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
