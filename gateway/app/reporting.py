"""What a listener's process tells the agent that started it, and how it learns of its end."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.domain.message import Message, Settlement
from gateway.listener.items import Item
from gateway.listener.job import Handler
from gateway.wire.listener_report import Report, build_report

REPORT_SECONDS: Final = 1.0  # between two reports


@attrs.define(eq=False)
class Measured:
    """A handler, and how often and how long it has run. What failed has run too."""

    _handle: Handler[Message]
    report: Report = attrs.field(factory=Report, init=False)
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)  # since the last `read`

    async def __call__(self, item: Item[Message]) -> Settlement | None:
        began = trio.current_time()
        self._add(Report(running=1))
        try:
            return await self._handle(item)
        finally:
            self._add(Report(calls=1, seconds=trio.current_time() - began, running=-1))

    def _add(self, change: Report) -> None:
        self.report += change
        self.changed.set()

    def read(self) -> Report:
        """How it is now; whoever waits from now on waits for a change."""
        self.changed = trio.Event()
        return self.report


@attrs.define(eq=False, kw_only=True)
class Reporter:
    """One end of a stream of which the other is held by the agent, and by nobody else."""

    stream: trio.abc.Stream
    measured: Measured

    async def run(self, part: Callable[[], None]) -> None:
        """Report what changes, and call `part` when the other end is closed; then return."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            await self._wait_for_end()
            nursery.cancel_scope.cancel()
        part()

    async def _tell(self) -> None:
        while True:
            await self.measured.changed.wait()
            try:
                await self.stream.send_all(build_report(self.measured.read()))
            except trio.BrokenResourceError:
                return  # who reads finds out
            await trio.sleep(REPORT_SECONDS)

    async def _wait_for_end(self) -> None:
        """Nothing is ever said there: what comes is the end."""
        with suppress(trio.BrokenResourceError):
            await self.stream.receive_some(1)
        await trio.lowlevel.checkpoint()


def open_report(fd: int) -> trio.SocketStream:
    """
    The stream that this process was started with. Processes that it starts don't get it.

    Raises:
        Failure: there is no such socket.
    """
    try:
        os.set_inheritable(fd, False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=fd)))
    except OSError as error:
        raise Failure(f"--report {fd}: {error.strerror}", ExitCode.WRONG) from error
