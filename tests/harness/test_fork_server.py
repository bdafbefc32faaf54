"""
A forked process behaves as one that was started alone, and ends with the process that requested it.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.e2e.processes import broker_config, environment, fork_server
from tests.harness.fork_server import ForkedProcess, ForkServer
from tests.harness.owners import check_ends_with_owner
from tests.harness.patience import PATIENCE
from tests.harness.servers import ServerFailed

pytestmark = pytest.mark.slow

OWNER = """
import sys
from pathlib import Path

import trio

from tests.e2e.processes import fork_server

async def main():
    process = await fork_server().fork(Path(sys.argv[1]), ["serve", "--json"])
    await process.stderr.receive_some()
    print(process.pid, flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


async def started(folder: Path) -> ForkedProcess:
    await trio.Path(folder).mkdir()
    await trio.Path(folder / "pairgate.toml").write_text(broker_config("orders"))
    process = await fork_server().fork(folder, ["serve", "--json", "--config", "pairgate.toml"])
    told = b""
    while b'"started"' not in told:
        chunk = await process.stderr.receive_some()
        assert chunk, told
        told += chunk
    return process


def without_ids(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str, str]:
    texts = [re.sub(r"[0-9a-f-]{36}", "ID", text.decode()) for text in (done.stdout, done.stderr)]
    return done.returncode, *texts


def descriptors(process: ForkedProcess) -> dict[str, str]:
    folder = f"/proc/{process.pid}/fd"
    return {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}


async def test_each_process_has_its_folder_its_descriptors_and_its_exit_code(
    tmp_path: Path,
) -> None:
    with trio.fail_after(PATIENCE):
        one, other = await started(tmp_path / "one"), await started(tmp_path / "other")
        assert one.poll() is None
        assert os.readlink(f"/proc/{one.pid}/cwd") == str(tmp_path / "one")
        assert (tmp_path / "one" / "broker.db").exists()
        assert descriptors(other).items() >= {"0": "/dev/null", "1": "/dev/null"}.items()
        assert descriptors(one)["2"] not in descriptors(other).values()

        one.send_signal(signal.SIGTERM)
        other.kill()

        assert (await one.wait(), one.poll()) == (0, 0)
        assert (await other.wait(), other.poll()) == (-signal.SIGKILL, -signal.SIGKILL)
        one.send_signal(signal.SIGTERM)  # no process has that number any more
        await one.stderr.aclose()
        await other.stderr.aclose()


async def test_a_command_reads_prints_and_ends_as_it_does_alone(tmp_path: Path) -> None:
    await trio.Path(tmp_path / "pairgate.toml").write_text(broker_config("orders", url="memory:"))
    for arguments in (["send", "orders", "-", "--json"], ["receive", "orders"], ["send", "--no"]):
        forked = await fork_server().run(tmp_path, arguments, b"a body")
        alone = await trio.run_process(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=tmp_path,
            env=environment(),
            stdin=b"a body",
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert without_ids(forked) == without_ids(alone)


async def test_without_a_fork_server_nothing_is_started(tmp_path: Path) -> None:
    server = ForkServer.start(environment())
    os.kill(server.pid, signal.SIGKILL)

    with trio.fail_after(PATIENCE), pytest.raises(ServerFailed):
        await server.fork(tmp_path, ["serve"])
    server.end()


async def test_a_forked_process_ends_with_a_killed_process_that_wanted_it(tmp_path: Path) -> None:
    (tmp_path / "pairgate.toml").write_text(broker_config())
    await check_ends_with_owner(OWNER, str(tmp_path))
