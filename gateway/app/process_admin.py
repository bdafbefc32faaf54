"""
The endpoints `admin` of a process that is no gateway: a syphon, a listener or an agent. They serve
its status and events, and the operators' control of it.
"""

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import trio

from gateway.app.assembly.parts import make_issuers
from gateway.app.certificates import CertificateWatch
from gateway.app.endpoints import bind_endpoint, listening, make_basis, tls_of
from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.control_calls import Executors, of_control, of_process
from gateway.app.process_control import ProcessControl
from gateway.app.servers import Basis, Server, make_admin_server, make_http
from gateway.app.status.board import StatusBoard, make_figures
from gateway.config.file import Loaded
from gateway.fair_budget import FairBudget
from gateway.frontends.issuers import Issuers
from gateway.net.listeners import Listener
from gateway.pairing.control import Control
from gateway.pairing.syphon.pauses import Pauses

LAST_WORDS: Final = 1.0  # seconds


@attrs.define(eq=False, kw_only=True)
class ProcessAdmin:
    """The endpoints that the configuration has for such a `process`, if any."""

    process: str
    board: StatusBoard
    control: Control
    steering: ProcessControl
    executors: Executors = ()  # beside those of `control` and `steering`
    port_offset: int = 0
    _issuers: Issuers = attrs.field(init=False)
    _bases: list[Basis] = attrs.field(factory=list, init=False)
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)
    _certificates: CertificateWatch = attrs.field(init=False)
    _ports: list[tuple[Listener, Server]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._issuers = make_issuers(self.board.config, self.board.runtime)

    async def open(self, stack: AsyncExitStack) -> None:
        """
        Bind the ports, which the stack closes.

        Raises:
            Failure: a port is in use, a certificate can't be used, or no client could authenticate.
        """
        config, runtime = self.board.config, self.board.runtime
        self._certificates = CertificateWatch.of(
            config, self.process, runtime.now, runtime.observer
        )
        self.board = attrs.evolve(self.board, certificates=self._certificates)
        memory = config.limits.http.max_body_memory
        budget = FairBudget(memory, memory)
        for number, endpoint in config.endpoints_of(self.process).items():
            if not config.access and not config.accepts_well_known_key(endpoint):
                text = f"{endpoint.bind} isn't a loopback address: add [[access]]"
                raise Failure(text, ExitCode.WRONG)
            refusals = self.board.refusals
            basis = make_basis(config, number, refusals, runtime, budget, self._issuers)
            server = make_http(partial(self._make, basis), basis, tls_of(config, number))
            port = await bind_endpoint(
                config, number, runtime, self.board.refusals, self.port_offset
            )
            stack.push_async_callback(port.aclose)
            self._ports.append((port, server))
            self._bases.append(basis)
        self.steering.on_reload(self._apply)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Serve until `close` is called. Pending answers then have a moment to be written; without a
        port, return at once.
        """
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as services:
                await self._start(services, connections)
                task_status.started()
                await self._closing.wait()
                services.cancel_scope.cancel()
            for _, server in self._ports:
                server.drain()
            connections.cancel_scope.deadline = trio.current_time() + LAST_WORDS

    async def _start(self, services: trio.Nursery, connections: trio.Nursery) -> None:
        runtime = self.board.runtime
        if self._ports:
            await services.start(self.board.refusals.run)
            await services.start(self._issuers.run)
            await services.start(runtime.loop_lag.run)
        await services.start(runtime.service_manager.run)
        await services.start(runtime.audits.run)
        await services.start(self.control.run)
        await services.start(self._certificates.run)
        endpoints = self.board.config.endpoints_of(self.process).values()
        for endpoint, (port, server) in zip(endpoints, self._ports, strict=True):
            await services.start(
                partial(port.serve, server.serve_connection, connections=connections)
            )
            for event in listening(endpoint, port.address):
                runtime.observer.report(event)

    def close(self) -> None:
        """Note that the work of the process has ended: operators get their last answers."""
        self.steering.ended.set()
        self._closing.set()

    def _apply(self, fresh: Loaded) -> None:
        for basis in self._bases:
            basis.apply(fresh.config)
        self._certificates.check(is_final=True)

    def _make(self, basis: Basis, *, secure: bool) -> Server:
        steering = self.steering
        figures = make_figures(
            self.board,
            basis.authorizer,
            steering.readiness,
            [*of_control(self.control), *of_process(steering), *self.executors],
        )
        return make_admin_server(basis, figures)


def idle_control(board: StatusBoard) -> Control:
    """The control of a process without a pair and a syphon: every order is refused."""
    runtime = board.runtime
    return Control(clock=runtime.now, observer=runtime.observer, pauses=Pauses())
