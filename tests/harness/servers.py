"""Servers of others as processes of ours: each with a folder and ports of its own."""

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import trio

START_LIMIT: Final = 300.0  # seconds: on a busy machine a RabbitMQ has taken more than 120
STOP_LIMIT: Final = 60.0
_KNOCK_PAUSE: Final = 0.05
_STOP_PAUSE: Final = 0.001
_ANSWER_LIMIT: Final = 10.0
_LOG_TAIL: Final = 2000  # bytes
# Of util-linux: the kernel kills the server when the thread that started it ends, however it does.
_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--")


class ServerFailed(Exception):
    """A server isn't installed, ended, or didn't become ready; the text has the end of its log."""


@attrs.define(eq=False, kw_only=True)
class ServerProcess:
    """
    A process, which can be killed, frozen by its `pid`, and started again where it was. Its output
    is in `output` in its folder. The process ends with the process that started it, also when that
    one is killed.
    """

    command: Sequence[str]
    folder: Path
    is_ready: Callable[[], Awaitable[bool]]
    environment: Mapping[str, str] = attrs.field(factory=dict)  # added to ours
    _process: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed("it was never started")
        return self._process.pid

    async def start(self) -> None:
        """
        Return when it's ready. Cancelled, it may run already.

        Raises:
            ServerFailed: it isn't in time, or not at all.
        """
        if shutil.which(self.command[0]) is None:
            raise ServerFailed(f"{self.command[0]} isn't installed")
        with (self.folder / "output").open("ab") as output:
            # By this thread: those in which Trio starts processes end when they idle.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*_WITH_US, *self.command],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # an interrupt from the keyboard is for us
            )
        with trio.move_on_after(START_LIMIT):
            while self._process.poll() is None:
                if await self.is_ready():
                    return
                await trio.sleep(_KNOCK_PAUSE)  # polled: another process decides
        raise ServerFailed(f"{self.command[0]} isn't ready: {self._log_tail()}")

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if it takes too long. Returns when it is gone."""
        await trio.lowlevel.checkpoint()
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_LIMIT) as limit:
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        if limit.cancelled_caught:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL: no goodbye. Returns when it is gone."""
        await trio.lowlevel.checkpoint()
        if self._process is not None:
            self._process.kill()
            await trio.to_thread.run_sync(self._process.wait)

    def _log_tail(self) -> str:
        return (self.folder / "output").read_bytes()[-_LOG_TAIL:].decode(errors="replace")


@asynccontextmanager
async def running(server: ServerProcess) -> AsyncIterator[None]:
    """
    Run `server` within the context, ready from the begin and killed at the end. Raises as `start`.
    """
    try:
        await server.start()
        yield
    finally:
        with trio.move_on_after(STOP_LIMIT, shield=True):
            await server.kill()


@asynccontextmanager
async def frozen(server: ServerProcess) -> AsyncIterator[None]:
    """SIGSTOP while the block runs, SIGCONT afterwards: the server is there and answers nothing."""
    try:
        await freeze(server.pid)
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def freeze(process: int) -> None:
    """
    Send SIGSTOP, and return when every thread of the process has stopped.

    `kill` returns earlier: the other threads run until the first thread has taken the signal.
    """
    os.kill(process, signal.SIGSTOP)
    while any(state not in "TZ" for state in _states(process)):  # noqa: ASYNC110 the kernel's
        await trio.sleep(_STOP_PAUSE)


def _states(process: int) -> Iterator[str]:
    """Yield the state of each thread, by proc(5): T is stopped, Z has ended."""
    for stat in Path(f"/proc/{process}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            yield stat.read_text().rpartition(")")[2].split()[0]


async def kill(process: trio.Process) -> None:
    """SIGKILL, for `trio.run_process`: SIGTERM may take longer than Trio waits."""
    await trio.lowlevel.checkpoint()
    process.kill()


async def answers(port: int, question: bytes, start: bytes) -> bool:
    """True if a server on that port answers `question` with bytes that begin with `start`."""
    found = b""
    with trio.move_on_after(_ANSWER_LIMIT):
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(question)
                found = await stream.receive_some(4096)
        except (OSError, trio.BrokenResourceError):
            await trio.lowlevel.checkpoint()
            return False
    return found.startswith(start) and found != b""
