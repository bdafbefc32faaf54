"""
Records the bytes of SDKs: a proxy before a gateway, which writes the bytes of its clients to a
file.

Usage: python -m tests.frontends.amqp.record PORT GATEWAY_PORT FILE, until SIGTERM; then the file
has the moment of the recording, and each connection's bytes in base64.
"""

import base64
import contextlib
import json
import signal
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

LONGEST = 20_000  # bytes of one conversation: the fuzzer wants many short ones


async def main(port: int, gateway: int, file: Path) -> None:
    recorded: list[bytearray] = []

    async def pump(source: trio.SocketStream, target: trio.SocketStream, log: bytearray) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                log += data
                await target.send_all(data)
            await target.send_eof()

    async def serve(client: trio.SocketStream) -> None:
        log = bytearray()
        recorded.append(log)
        server = await trio.open_tcp_stream("127.0.0.1", gateway)
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(pump, client, server, log)
            nursery.start_soon(pump, server, client, bytearray())

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, serve, port, host="127.0.0.1"))
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            await anext(signals)
        nursery.cancel_scope.cancel()
    short = [base64.b64encode(log).decode() for log in recorded if len(log) < LONGEST]
    text = json.dumps({"at": datetime.now(UTC).isoformat(), "said": short}, indent=1)
    await trio.Path(file).write_text(text + "\n")


if __name__ == "__main__":
    arguments = partial(main, int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    trio.run(arguments)
