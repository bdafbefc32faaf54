"""The gateway and the workers: processes of their own, which can be killed."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

SOURCE: Final = Path(__file__).parents[2]
CONFIG: Final = Path(__file__).with_name("pairgate.toml")
START_SECONDS: Final = 60.0


class ProcessEnded(Exception):
    """A process isn't there any more, and should be."""


@asynccontextmanager
async def open_gateway(folder: Path) -> AsyncIterator[str]:
    """The address of a gateway whose store is in that folder; it's ended afterwards."""
    shutil.copy(CONFIG, folder)  # the files that it names are beside it
    command = ["-m", "gateway", "serve", "--config", CONFIG.name]
    async with (
        _running(command, folder, stderr=subprocess.PIPE) as process,
        trio.open_nursery() as nursery,
    ):
        assert process.stderr is not None
        lines = _lines(process.stderr)
        with trio.fail_after(START_SECONDS):
            address = await _address(lines)
        nursery.start_soon(_skip, lines)  # a pipe that no process reads would stop its writer
        yield address
        process.terminate()
        await process.wait()


@attrs.define(eq=False, kw_only=True)
class ProcessPool:
    """
    The workers. `victim_at`: the number of counted batches at which the worker that reported the
    last one is killed, before it can complete the batch's message.
    """

    folder: Path
    address: str
    batches: int
    victim_at: int | None
    killed: int | None = attrs.field(default=None, init=False)  # the number of the worker
    counted: Counter[str] = attrs.field(factory=Counter, init=False)  # batches, and how often
    requests: dict[int, int] = attrs.field(factory=dict, init=False)  # of each worker
    _all_counted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _dismissed: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def employ(self, number: int) -> None:
        """
        Run a worker until all are dismissed, or it's killed.

        Raises:
            ProcessEnded: by itself.
        """
        command = ["-m", "examples.billing.worker", str(self.folder), self.address, str(number)]
        async with (
            _running(command, self.folder, stdout=subprocess.PIPE) as process,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._end, process)
            assert process.stdout is not None
            async for line in _lines(process.stdout):
                self._note(number, json.loads(line), process)
            code = await process.wait()
            if self.killed != number and not (self._dismissed.is_set() and code == 0):
                raise ProcessEnded(f"worker {number} ended with exit code {code}")
            nursery.cancel_scope.cancel()

    async def wait(self) -> None:
        """Return when each batch was counted."""
        await self._all_counted.wait()

    def dismiss(self) -> None:
        """Let the workers finish their work, and end."""
        self._dismissed.set()

    async def _end(self, process: trio.Process) -> None:
        await self._dismissed.wait()
        process.terminate()

    def _note(self, number: int, said: dict[str, Any], process: trio.Process) -> None:
        self.requests[number] = said["requests"]
        if "batch" not in said:
            return
        self.counted[said["batch"]] += 1
        if len(self.counted) == self.victim_at and self.killed is None:
            self.killed = number
            process.kill()
        if len(self.counted) == self.batches:
            self._all_counted.set()


@asynccontextmanager
async def _running(
    command: list[str], folder: Path, *, stdout: int | None = None, stderr: int | None = None
) -> AsyncIterator[trio.Process]:
    """A process of this Python, killed at the end if it's still there."""
    process = await trio.lowlevel.open_process(
        [sys.executable, *command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the keyboard is for us
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        process.kill()
        with trio.move_on_after(START_SECONDS, shield=True):
            await process.wait()


async def _address(lines: AsyncIterator[bytes]) -> str:
    """Return the address on which the gateway listens, from its log."""
    async for line in lines:
        said = json.loads(line)
        if said["event"] == "listening":
            return str(said["address"])
    raise ProcessEnded("the gateway didn't start")


async def _skip(lines: AsyncIterator[bytes]) -> None:
    async for _ in lines:
        await trio.lowlevel.checkpoint()


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in stream:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
