"""Figures of a listener process: an endpoint for them, and the quota usage in the log."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import attrs
import trio

from gateway.app.endpoints import crashed, lost, moved
from gateway.app.failure import ExitCode, Failure
from gateway.app.runtime import Runtime
from gateway.app.servers import small_bodies
from gateway.app.status import StatusBoard, make_figures
from gateway.config.checks import host_of_bind
from gateway.config.options import Config
from gateway.config.places import is_loopback
from gateway.domain.events.gateway import Billed, Listening
from gateway.domain.status import Wake
from gateway.frontends.auth import Authorizer
from gateway.frontends.refusals import Refusals
from gateway.frontends.web_guard import Guarded, WebGuard
from gateway.listener.consumer_stats import QueueState
from gateway.listener.listener import QueueListener
from gateway.net.http.server import HttpServer
from gateway.net.listeners import CannotListen, Listener, open_listener

PROTOCOL: Final = "figures"  # the endpoint's protocol in the log
USAGE_EVERY: Final = 3600.0  # seconds


@attrs.define(eq=False, kw_only=True)
class ListenerFigures:
    """Answers `/livez`, `/readyz`, `/status` and `/metrics` at `bind`, if there is one."""

    config: Config
    runtime: Runtime
    listener: QueueListener[Any]
    bind: str | None
    port_offset: int = 0
    # once set, the process isn't ready any more
    draining: trio.Event = attrs.field(factory=trio.Event)
    _port: Listener | None = attrs.field(default=None, init=False)
    _refusals: Refusals = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._refusals = Refusals(self.runtime.observer)

    async def open(self, stack: AsyncExitStack) -> None:
        """
        Bind the port, which the stack closes.

        Raises:
            Failure: the port is in use, or no client could authenticate there.
        """
        await trio.lowlevel.checkpoint()
        if self.bind is None:
            return
        if not is_loopback(host_of_bind(self.bind)) and not self.config.access:
            text = f"listener.metrics: {self.bind} isn't a loopback address: add [[access]]"
            raise Failure(text, ExitCode.WRONG)
        report = self.runtime.observer.report
        try:
            self._port = await open_listener(
                moved(self.bind, self.port_offset),
                options=self.config.limits.listener,
                on_crash=lambda peer, error: report(crashed(peer, error)),
                on_lost=lambda peer, error: report(lost(peer, error)),
            )
        except CannotListen as error:
            raise Failure(str(error)) from error
        stack.push_async_callback(self._port.aclose)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve, and log the quota usage, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._port is not None:
                await nursery.start(self._refusals.run)
                server, port = self._server(), self._port
                await nursery.start(
                    partial(port.serve, server.serve_connection, connections=nursery)
                )
                self.runtime.observer.report(Listening(protocol=PROTOCOL, address=port.address))
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

    def _server(self) -> HttpServer:
        runtime, loopback = self.runtime, is_loopback(host_of_bind(self.bind or ""))
        board = StatusBoard(
            config=self.config,
            runtime=runtime,
            refusals=self._refusals,
            states=self._states,
            wake=self._wake,
        )
        authorizer = Authorizer(
            self.config.access,
            wall_clock=runtime.now,
            loopback=loopback,
            on_refused=self._refusals.at(PROTOCOL),
        )
        figures = make_figures(board, authorizer, self.draining)
        guard = WebGuard(is_open=lambda: authorizer.is_open)
        guarded = Guarded(guard=guard, frontend=figures, handler=figures.handle)
        return HttpServer(
            handler=guarded.handle,
            check_head=guarded.check_head,
            error_body=figures.refuse,
            wall_clock=runtime.now,
            options=small_bodies(self.config.limits.http),
        )

    def _wake(self) -> Wake:
        return self.listener.wake

    def _states(self) -> list[QueueState]:
        return list(self.listener.states().values())
