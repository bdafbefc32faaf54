"""
Reports of a listener process: to its agent, whose end it notices, to its status board, and to the
log.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.runtime import Runtime
from gateway.app.status.board import StatusBoard
from gateway.app.status.sections import QUEUES, WAKE, readings
from gateway.changes import Changes
from gateway.config.endpoints import ADMIN, LISTEN, Endpoint
from gateway.config.options import Config
from gateway.domain.events.gateway import Billed
from gateway.domain.message import Message, Settlement
from gateway.domain.status.listening import QueueStatus
from gateway.frontends.refusals import Refusals
from gateway.listening.consumer_stats import QueueState
from gateway.listening.items import Item
from gateway.listening.job import Handler
from gateway.listening.listener import QueueListener
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


USAGE_EVERY: Final = 3600.0  # seconds: 24 lines of the log a day


def with_metrics(config: Config, bind: str | None) -> Config:
    """The configuration with one more endpoint of listeners, at that address."""
    if bind is None:
        return config
    endpoint = Endpoint(protocol=ADMIN, bind=bind, process=LISTEN)
    return attrs.evolve(config, endpoints=(*config.endpoints, endpoint))


@attrs.define(eq=False, kw_only=True)
class ListenerFigures:
    """The consumer stats of a listener, for its status and its log."""

    config: Config
    runtime: Runtime
    listener: QueueListener[Any]
    board: StatusBoard = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.board = StatusBoard(
            config=self.config,
            runtime=self.runtime,
            refusals=Refusals(self.runtime.observer),
            sections=readings({QUEUES: self._queues, WAKE: lambda: self.listener.wake}),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Log the quota usage until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(USAGE_EVERY)
            self.report_usage()

    def report_usage(self) -> None:
        """Report the billed operations of each queue up to now."""
        for state in self._states():
            self.runtime.observer.report(
                Billed(
                    queue=state.queue,
                    operations=state.billed,
                    messages=state.usage.messages,
                    per_message=state.usage.per_message,
                    per_idle_day=state.usage.per_idle_day,
                )
            )

    def _states(self) -> list[QueueState]:
        return list(self.listener.states().values())

    def _queues(self) -> tuple[QueueStatus, ...]:
        return tuple(map(_queue, self._states()))


def _queue(state: QueueState) -> QueueStatus:
    return QueueStatus(
        queue=state.queue.name,
        active_tasks=state.active_tasks,
        total_tasks=state.total_tasks,
        locked=state.locked,
        completed=state.completed,
        failed=state.failed,
        poisoned=state.poisoned,
        too_late=state.too_late,
        usage=state.usage,
        handled=state.handled,
        depth=state.depth,
    )
