"""An unread log: the gateway continues, and ends on request."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.e2e.processes import broker_config, environment
from tests.e2e.rest import send, take
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

PIPE_SIZE = 4096  # room for about twenty lines


async def test_a_log_that_nobody_reads_stops_no_message(tmp_path: Path) -> None:
    (tmp_path / "pairgate.toml").write_text(broker_config("orders"))
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "gateway", "serve", "--json"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        with trio.fail_after(PATIENCE):
            port = await port_told_by(process.stderr)
            for _ in range(200):
                lose_connection(port)

            sent = await send(f"127.0.0.1:{port}", "orders", b"one")
            taken = await take(f"127.0.0.1:{port}", "orders")
            process.send_signal(signal.SIGTERM)
            code = await process.wait()
        log = await read_all(process.stderr)
    finally:
        process.kill()
        with trio.move_on_after(5, shield=True):
            await process.wait()

    assert sent == (201, "primary")
    assert taken == b"one"
    assert code == 0
    assert b"connection_lost" in log
    assert b"draining" not in log  # the pipe was full long before


async def port_told_by(log: trio.abc.ReceiveStream) -> int:
    """Read until it has started, and then no more."""
    fcntl.fcntl(log.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    text = b""
    while b'"started"' not in text or not text.endswith(b"\n"):
        text += await log.receive_some()
    lines = [json.loads(line) for line in text.splitlines()]
    address = next(line["address"] for line in lines if line["event"] == "listening")
    return int(address.rpartition(":")[2])


def lose_connection(port: int) -> None:
    """A client of TCP that resets the connection: a line of the log."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


@pytest.mark.parametrize("stderr", ["full pipe", "full disk"])
async def test_an_error_text_that_nobody_reads_keeps_no_exit_code(stderr: str) -> None:
    reading, writing = os.pipe() if stderr == "full pipe" else (-1, os.open("/dev/full", os.O_RDWR))
    try:
        if stderr == "full pipe":
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
            os.write(writing, b"x" * PIPE_SIZE)
        with trio.fail_after(PATIENCE):
            result = await trio.run_process(
                [sys.executable, "-m", "gateway", "serve", "--config", "/nowhere"],
                env=environment(),
                stderr=writing,
                check=False,
            )
    finally:
        os.close(writing)
        if reading >= 0:
            os.close(reading)

    assert result.returncode == 2
