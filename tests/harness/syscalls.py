"""Calls of a running process to its kernel that fail, or take long: by strace, Debian's package."""

import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from tests.harness.patience import PATIENCE
from tests.harness.servers import ServerFailed

_ATTACHED: Final = b"attached"
_LIMIT: Final = PATIENCE  # to attach, or to let go
# By these Trio wakes its own loop, over a pair of sockets that no network is behind: one that fails
# is no fault that a machine has. strace can't spare a descriptor.
_WAKING: Final = frozenset({"sendto", "recvfrom", "write"})
_FAILS: Final = (":error=", ":retval=")


@asynccontextmanager
async def injected(pid: int, *injections: str) -> AsyncIterator[None]:
    """
    Within the scope the calls of that process and all its threads end as the injections say.

    Each is one of strace's, as in "fdatasync:delay_enter=300000" (microseconds) or
    "connect:error=EHOSTUNREACH:when=2+3"; see `strace(1)`, tampering. The process must be ours.

    Raises:
        ServerFailed: strace isn't installed, or may not attach.
        ValueError: a call that would fail is one by which Trio wakes itself.
    """
    for one in injections:
        calls = one.partition(":")[0].split(",")
        if _WAKING.intersection(calls) and any(how in one for how in _FAILS):
            raise ValueError(f"{one}: that would stop the wake-up of the process itself")
    if shutil.which("strace") is None:
        raise ServerFailed("strace isn't installed: Debian's package is strace")
    names = ",".join(one.partition(":")[0] for one in injections)
    tampering = [part for one in injections for part in ("-e", f"inject={one}")]
    process = await trio.lowlevel.open_process(
        ["strace", "-f", "-o", "/dev/null", "-e", f"trace={names}", *tampering, "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # an interrupt from the keyboard is for us
    )
    try:
        await _wait_attached(process)
        yield
    finally:
        with trio.move_on_after(_LIMIT, shield=True) as limit:
            process.send_signal(signal.SIGINT)  # the tracer detaches from its process
            await process.wait()
        if limit.cancelled_caught:
            process.kill()
        if process.stderr is not None:
            await trio.aclose_forcefully(process.stderr)


async def _wait_attached(process: trio.Process) -> None:
    """
    Return when strace has said that it is attached.

    Raises:
        ServerFailed: strace ended, or didn't say so within the limit.
    """
    assert process.stderr is not None
    said = b""
    with trio.move_on_after(_LIMIT):
        async for piece in process.stderr:
            said += piece
            if _ATTACHED in said:
                return
    raise ServerFailed(f"strace doesn't attach: {said.decode(errors='replace')}")
