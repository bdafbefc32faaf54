"""beanstalkd, a server of another kind than those that Pairgate knows: Debian's package."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from gateway.demo.ports import free_port
from tests.harness.servers import ServerFailed, ServerProcess, answers, running


@asynccontextmanager
async def beanstalkd(folder: Path) -> AsyncIterator[tuple[ServerProcess, int]]:
    """
    Run one whose accepted jobs are on the disk in `folder`; yield its process and its port. It's
    killed in the end.

    Raises:
        ServerFailed: it isn't installed, or it didn't start.
    """
    if shutil.which("beanstalkd") is None:
        raise ServerFailed("beanstalkd isn't installed: `make test` installs it")
    await trio.Path(folder).mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = ServerProcess(
        command=["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f", "0"],
        folder=folder,
        is_ready=lambda: answers(port, b"stats\r\n", b"OK"),
    )
    async with running(server):
        yield server, port
