"""Servers of others as processes: started, killed, started again."""

import sys
from pathlib import Path

import pytest
import trio

from gateway.demo.ports import free_port
from tests.harness.greeter import greeter
from tests.harness.patience import PATIENCE
from tests.harness.servers import ServerFailed, ServerProcess, answers, running


@pytest.mark.slow
async def test_a_server_answers_when_it_is_started_and_not_when_it_is_killed(
    tmp_path: Path,
) -> None:
    port = free_port()
    server = greeter(tmp_path, port)

    async with running(server):
        assert await answers(port, b"me\n", b"hello me")
        await server.kill()
        assert not await answers(port, b"me\n", b"hello")
        await server.start()
        assert await answers(port, b"me\n", b"hello me")

    assert not await answers(port, b"me\n", b"hello")


@pytest.mark.slow
async def test_a_server_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    port = free_port()
    server = greeter(tmp_path, port)

    async with running(server):
        with trio.fail_after(PATIENCE):
            await server.stop()

        assert not await answers(port, b"me\n", b"hello")


async def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such port')"]
    port = free_port()
    server = ServerProcess(
        command=command, folder=tmp_path, is_ready=lambda: answers(port, b"\n", b"hello")
    )

    with pytest.raises(ServerFailed, match="no such port"):
        await server.start()


async def test_a_server_that_is_not_installed_is_named(tmp_path: Path) -> None:
    server = ServerProcess(
        command=["no-such-server"], folder=tmp_path, is_ready=lambda: answers(1, b"", b"")
    )

    with pytest.raises(ServerFailed, match="no-such-server isn't installed"):
        await server.start()
