"""
The floor of a durable broker over HTTP: h11, Trio, and one sync of the disk for each message that
is sent and for each that is completed. It keeps no message.

    python -m benchmarks.floor FILE     prints its port, and serves until it is killed
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import h11
import trio

from benchmarks.closed_loop import FLOOR, Client, Way
from benchmarks.keepalive import connect
from benchmarks.over_http import RestClient

_PAGE: Final = bytes(4096)  # the least that a commit of a message of 1 KiB writes
_HEADERS: Final = [("Content-Length", "0"), ("Location", "http://floor/messages/messages/1/1")]
_PATIENCE: Final = 0.1  # seconds that a receive waits
_CHUNK: Final = 65536
_EVERYTHING: Final = 1_000_000_000


@attrs.define(eq=False)
class Server:
    """Counts the messages that it would have."""

    _disk: int
    _messages: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await self._serve(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        asked: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(_CHUNK))
            elif isinstance(event, h11.Request):
                asked = event
            elif isinstance(event, h11.EndOfMessage) and asked is not None:
                status = await self._status(asked)
                head = h11.Response(status_code=status, headers=_HEADERS)
                data = connection.send(head) or b""
                data += connection.send(h11.EndOfMessage()) or b""
                connection.start_next_cycle()
                await stream.send_all(data)
            elif isinstance(event, h11.ConnectionClosed):
                return

    async def _status(self, asked: h11.Request) -> int:
        if b"/head?" not in asked.target:
            await trio.to_thread.run_sync(self._sync)
            self._messages += asked.method == b"POST"
            return 201 if asked.method == b"POST" else 200
        if self._messages == 0:
            await trio.sleep(_PATIENCE)
            return 204
        self._messages -= 1
        return 201

    def _sync(self) -> None:
        os.pwrite(self._disk, _PAGE, 0)
        os.fdatasync(self._disk)


async def _main(path: Path) -> None:
    server = Server(os.open(path, os.O_RDWR | os.O_CREAT))
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listener.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(server.serve, [listener])


@asynccontextmanager
async def floor(folder: Path) -> AsyncIterator[Way]:
    """Start the server of the floor, whose file is in the folder."""
    command = [sys.executable, "-m", "benchmarks.floor", str(folder / "floor")]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.receive_some(_CHUNK))

        @asynccontextmanager
        async def open_client() -> AsyncIterator[Client]:
            async with connect(port) as connection:
                yield RestClient(connection, {})

        yield Way(name=FLOOR, open_client=open_client, most=_EVERYTHING, server=process.pid)
    finally:
        process.kill()
        with trio.move_on_after(10, shield=True):
            await process.wait()


if __name__ == "__main__":
    trio.run(_main, Path(sys.argv[1]))
