"""A server goes when the process that started it goes, however that does."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gateway.demo.ports import free_port
from tests.e2e.processes import ROOT

OWNER = """
import sys
from pathlib import Path

import trio

from tests.harness.servers import running
from tests.harness.test_servers import greeter

async def main():
    server = greeter(Path(sys.argv[1]), int(sys.argv[2]))
    async with running(server):
        print(server.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.slow
async def test_a_server_ends_with_a_killed_process_that_started_it(tmp_path: Path) -> None:
    owner = await trio.lowlevel.open_process(
        [sys.executable, "-c", OWNER, str(tmp_path), str(free_port())],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    async with owner.stdout:
        server = int(await owner.stdout.receive_some())
    ended = os.pidfd_open(server)
    try:
        owner.kill()
        await owner.wait()
        with trio.fail_after(60):
            await trio.lowlevel.wait_readable(ended)
    finally:
        os.close(ended)
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
