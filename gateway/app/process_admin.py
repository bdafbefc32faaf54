"""
The endpoints `admin` of a process that is no gateway: a syphon, a listener or an agent.

They tell its status and events, and control what there is to control in it.
"""

from contextlib import AsyncExitStack
from functools import partial

import attrs
import trio

from gateway.app.endpoints import bind_endpoint, make_basis, tls_of
from gateway.app.expiries import read_expiries
from gateway.app.failure import ExitCode, Failure
from gateway.app.servers import Basis, Server, make_admin_server, make_http
from gateway.app.status import StatusBoard, make_figures
from gateway.config.checks import host_of_bind
from gateway.config.options import ADMIN
from gateway.config.places import is_loopback
from gateway.domain.events.gateway import Listening
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.net.body_budget import BodyBudget
from gateway.net.listeners import Listener
from gateway.pairing.control import Control
from gateway.pairing.syphon.pauses import Pauses


@attrs.define(eq=False, kw_only=True)
class ProcessAdmin:
    """The endpoints that the configuration gives such a `process`; there may be none."""

    process: str
    board: StatusBoard
    control: Control
    port_offset: int = 0
    readiness: Readiness = attrs.field(factory=lambda: Readiness(STARTING))
    _ports: list[tuple[Listener, Server]] = attrs.field(factory=list, init=False)

    async def open(self, stack: AsyncExitStack) -> None:
        """
        Bind the ports, which the stack closes.

        Raises:
            Failure: a port is in use, a certificate can't be used, or no client could authenticate.
        """
        await trio.lowlevel.checkpoint()
        expiries = read_expiries(self.board.config, self.process)
        self.board = attrs.evolve(self.board, expiries=expiries)
        config, runtime = self.board.config, self.board.runtime
        budget = BodyBudget(config.limits.http.max_body_memory)
        for number, endpoint in config.endpoints_of(self.process).items():
            if not is_loopback(host_of_bind(endpoint.bind)) and not config.access:
                text = f"{endpoint.bind} isn't a loopback address: add [[access]]"
                raise Failure(text, ExitCode.WRONG)
            basis = make_basis(config, number, self.board.refusals, runtime, budget)
            server = make_http(partial(self._make, basis), basis, tls_of(config, number))
            port = await bind_endpoint(config, number, runtime, self.port_offset)
            stack.push_async_callback(port.aclose)
            self._ports.append((port, server))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._ports:
                await nursery.start(self.board.refusals.run)
                await nursery.start(self.board.runtime.loop_lag.run)
            await nursery.start(self.control.run)
            for port, server in self._ports:
                await nursery.start(
                    partial(port.serve, server.serve_connection, connections=nursery)
                )
                self.board.runtime.observer.report(Listening(protocol=ADMIN, address=port.address))
            task_status.started()

    def _make(self, basis: Basis, *, secure: bool) -> Server:
        figures = make_figures(self.board, basis.authorizer, self.readiness, self.control)
        return make_admin_server(basis, figures)


def idle_control(board: StatusBoard) -> Control:
    """The control of a process without a pair and a syphon: every order is refused."""
    runtime = board.runtime
    return Control(clock=runtime.now, observer=runtime.observer, pauses=Pauses())
