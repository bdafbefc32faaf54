"""What a listener process tells of itself: an endpoint for its figures, and its bill in the log."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import attrs
import trio

from gateway.app.endpoints import crashed, lost, moved
from gateway.app.failure import ExitCode, Failure
from gateway.app.outside import Outside
from gateway.app.status import StatusBoard, make_figures
from gateway.config.checks import host_of_bind, is_loopback
from gateway.config.options import Config
from gateway.domain.events import Billed, Listening
from gateway.domain.status import Wake
from gateway.frontends.auth import Authorizer
from gateway.listener.ledger import QueueState
from gateway.listener.listener import QueueListener
from gateway.net.http_server import HttpServer
from gateway.net.listeners import CannotListen, Listener, open_listener

PROTOCOL: Final = "figures"  # by which the log calls this endpoint
BILL_EVERY: Final = 3600.0  # seconds


@attrs.define(eq=False, kw_only=True)
class ListenerFigures:
    """Answers `/livez`, `/readyz`, `/status` and `/metrics` at `bind`, if there is one."""

    config: Config
    outside: Outside
    listener: QueueListener[Any]
    bind: str | None
    port_offset: int = 0
    draining: trio.Event = attrs.field(factory=trio.Event)  # once set, it isn't ready any more
    _port: Listener | None = attrs.field(default=None, init=False)

    async def open(self, stack: AsyncExitStack) -> None:
        """
        Bind the port, which the stack frees.

        Raises:
            Failure: it is taken, or nobody would be let in there.
        """
        await trio.lowlevel.checkpoint()
        if self.bind is None:
            return
        if not is_loopback(host_of_bind(self.bind)) and not self.config.access:
            text = f"listener.metrics: {self.bind} can be reached from elsewhere: add [[access]]"
            raise Failure(text, ExitCode.WRONG)
        report = self.outside.observer.report
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
        """Serve, and log what is billed, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._port is not None:
                server, port = self._server(), self._port
                await nursery.start(
                    partial(port.serve, server.serve_connection, connections=nursery)
                )
                self.outside.observer.report(Listening(protocol=PROTOCOL, address=port.address))
            task_status.started()
            while True:
                await trio.sleep(BILL_EVERY)
                self.tell_bills()

    def tell_bills(self) -> None:
        """Each queue's, as it would be for all that was done up to now."""
        for state in self._states():
            self.outside.observer.report(
                Billed(
                    queue=state.queue,
                    operations=state.billed,
                    messages=state.bill.messages,
                    per_message=state.bill.per_message,
                    per_idle_day=state.bill.per_idle_day,
                )
            )

    def _server(self) -> HttpServer:
        outside, loopback = self.outside, is_loopback(host_of_bind(self.bind or ""))
        board = StatusBoard(
            config=self.config, outside=outside, states=self._states, wake=self._wake
        )
        authorizer = Authorizer(self.config.access, wall_clock=outside.now, loopback=loopback)
        figures = make_figures(board, authorizer, self.draining)
        return HttpServer(
            handler=figures.handle,
            error_body=figures.refuse,
            wall_clock=outside.now,
            options=self.config.limits.http,
        )

    def _wake(self) -> Wake:
        return self.listener.wake

    def _states(self) -> list[QueueState]:
        return list(self.listener.states().values())
