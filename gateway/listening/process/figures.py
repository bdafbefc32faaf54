"""Figures of a listener process: its status board, and the quota usage in the log."""

from typing import Any, Final

import attrs
import trio

from gateway.app.runtime import Runtime
from gateway.app.status.board import StatusBoard
from gateway.app.status.sections import QUEUES, WAKE, readings
from gateway.config.endpoints import ADMIN, LISTEN, Endpoint
from gateway.config.options import Config
from gateway.domain.events.gateway import Billed
from gateway.domain.status.listening import QueueStatus
from gateway.frontends.refusals import Refusals
from gateway.listening.consumer_stats import QueueState
from gateway.listening.listener import QueueListener

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
