"""A child process that runs `pairgate listen`, and the stream that connects it to the agent."""

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.domain.errors import InvalidRequest
from gateway.domain.events.gateway import Doubtful
from gateway.ports import Observer
from gateway.wire.pairgate.listener_report import MAX_LINE, Report, parse_report

LAST_REPORT_SECONDS: Final = 1.0  # a report is in the socket already when its process ends
_CHUNK: Final = 4096  # bytes: several reports


@attrs.define(eq=False, kw_only=True)
class ListenerProcess:
    """
    A worker process (`gateway.listening.agent.process_pool.Process`).

    The agent holds one end of a socket pair, the child the other: reports come in, nothing is sent.
    In whatever way the agent ends, the kernel closes its end, and the child drains.
    """

    observer: Observer
    _process: trio.Process
    _stream: trio.SocketStream
    report: Report = attrs.field(factory=Report, init=False)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """As `Process.wait`. After a cancellation, the child drains by itself."""
        async with self._stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            code = await self._process.wait()
            nursery.cancel_scope.deadline = trio.current_time() + LAST_REPORT_SECONDS
        return code

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    async def _read(self) -> None:
        """Read reports until the child closes its end, or sends a malformed report."""
        rest = b""
        while True:
            chunk = await self._receive()
            *lines, rest = (rest + chunk).split(b"\n")
            try:
                if lines:
                    self.report = parse_report(lines[-1])  # the last line has the totals
            except InvalidRequest as error:
                self.observer.report(Doubtful(text=f"process {self.pid}: {error}"))
                return
            if not chunk or len(rest) > MAX_LINE:
                return

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_CHUNK))
        except trio.BrokenResourceError:
            return b""


async def start_listener(arguments: Sequence[str], observer: Observer) -> ListenerProcess:
    """
    Start `pairgate listen` with these arguments, in a session of its own, so that Ctrl-C reaches
    the agent alone.

    Raises:
        OSError: the system can't start another process.
    """
    ours, theirs = socket.socketpair()
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    with theirs:
        fd = theirs.fileno()
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "gateway", "listen", "--report", str(fd), *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[fd],
                start_new_session=True,
            )
        except BaseException:
            stream.socket.close()  # a process that was started after all drains
            raise
    return ListenerProcess(observer=observer, process=process, stream=stream)
