"""Reports of a listener process to its agent, and how the process notices the agent's end."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.changes import Changes
from gateway.domain.message import Message, Settlement
from gateway.listening.items import Item
from gateway.listening.job import Handler
from gateway.wire.pairgate.listener_report import Report, build_report

REPORT_SECONDS: Final = 1.0  # between two reports


@attrs.define(eq=False)
class Measured:
    """A handler with its number of calls and their durations, failed calls included."""

    _handle: Handler[Message]
    report: Report = attrs.field(factory=Report, init=False)
    changed: Changes = attrs.field(factory=Changes, init=False)

    async def __call__(self, item: Item[Message]) -> Settlement | None:
        began = trio.current_time()
        self._add(Report(running=1))
        try:
            return await self._handle(item)
        finally:
            self._add(Report(calls=1, seconds=trio.current_time() - began, running=-1))

    def _add(self, change: Report) -> None:
        self.report += change
        self.changed.notify()


@attrs.define(eq=False, kw_only=True)
class Reporter:
    """This process's end of a stream; only the agent holds the other end."""

    stream: trio.abc.Stream
    measured: Measured

    async def run(self, part: Callable[[], None]) -> None:
        """Report changes; call `part` when the agent's end is closed, then return."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report)
            await self._wait_for_end()
            nursery.cancel_scope.cancel()
        part()

    async def _report(self) -> None:
        seen = 0
        while True:
            seen = await self.measured.changed.wait(seen)
            try:
                await self.stream.send_all(build_report(self.measured.report))
            except trio.BrokenResourceError:
                return  # the reading task notices the end
            await trio.sleep(REPORT_SECONDS)

    async def _wait_for_end(self) -> None:
        """Return when the stream is closed, as the agent never sends anything."""
        with suppress(trio.BrokenResourceError):
            await self.stream.receive_some(1)


def open_report(fd: int) -> trio.SocketStream:
    """
    The stream that this process was started with. Its own child processes don't inherit it.

    Raises:
        Failure: there is no such socket.
    """
    try:
        os.set_inheritable(fd, False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=fd)))
    except OSError as error:
        raise Failure(f"--report {fd}: {error.strerror}", ExitCode.WRONG) from error
