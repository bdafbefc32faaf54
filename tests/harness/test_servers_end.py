"""A server goes when the process that started it goes, however that does."""

from pathlib import Path

import pytest

from gateway.demo.ports import free_port
from tests.harness.owners import check_ends_with_owner

OWNER = """
import sys
from pathlib import Path

import trio

from tests.harness.servers import running
from tests.harness.greeter import greeter

async def main():
    server = greeter(Path(sys.argv[1]), int(sys.argv[2]))
    async with running(server):
        print(server.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.slow
async def test_a_server_ends_with_a_killed_process_that_started_it(tmp_path: Path) -> None:
    await check_ends_with_owner(OWNER, str(tmp_path), str(free_port()))
