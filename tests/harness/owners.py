"""Processes that must end with the process that started them, their owner."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import trio

from tests.e2e.processes import ROOT
from tests.harness.patience import PATIENCE


async def check_ends_with_owner(program: str, *arguments: str) -> None:
    """
    Run the program, which starts a process and prints its pid, as an owner; kill the owner, and
    return when the process has ended.

    Raises:
        TooSlowError: it hasn't ended within 60 s. It is killed.
    """
    owner = await trio.lowlevel.open_process(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    async with owner.stdout:
        owned = int(await owner.stdout.receive_some())
    ended = os.pidfd_open(owned)
    try:
        owner.kill()
        await owner.wait()
        with trio.fail_after(PATIENCE):
            await trio.lowlevel.wait_readable(ended)
    finally:
        os.close(ended)
        with suppress(ProcessLookupError):
            os.kill(owned, signal.SIGKILL)
