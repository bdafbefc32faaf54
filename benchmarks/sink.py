"""
A namespace that accepts every send at once, so that it isn't the bottleneck before a gateway.

    python -m benchmarks.sink PORT

It speaks as much of Service Bus REST as a gateway needs to send to another Pairgate: each POST is
answered 201, and each probe 200. All other requests are answered 503, so that a gateway takes its
queues for granted.
"""

import asyncio
import re
import sys
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END: Final = b"\r\nX-Pairgate: 1\r\nContent-Length: 0\r\n\r\n"
_ANSWERS: Final = {
    b"POST": b"HTTP/1.1 201 Created" + _END,
    b"HEAD": b"HTTP/1.1 200 OK" + _END,
}
_DOWN: Final = b"HTTP/1.1 503 Service Unavailable" + _END


class Sink(asyncio.Protocol):
    """A client's connection."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        assert self._transport is not None
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._data, 0, end + 2)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._data) < size:
                return
            self._transport.write(_ANSWERS.get(self._data[:4], _DOWN))
            self._data = self._data[size:]


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
