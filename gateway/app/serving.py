"""
`pairgate serve`: all parts of one gateway, and the order in which they end.

    brokers         the stores and connections of the namespaces           closed last
    └ services      pair, prober, syphons, leases, signals                 cancelled third
      └ admin       the endpoints of operators, who follow the drain       a moment later
        └ connections one task per client connection                       a deadline: now + grace
          └ acceptors the ports                                            cancelled first
"""

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import trio

from gateway.app.assembly.building import make_parts
from gateway.app.assembly.others import PeerPort, PortPlan, ProcessPlace, others_of
from gateway.app.assembly.pairs import renew_envelopes
from gateway.app.assembly.parts import Parts
from gateway.app.assembly.records import RecordParts
from gateway.app.assembly.services import services_of
from gateway.app.certificates import CertificateWatch
from gateway.app.endpoints import (
    OpenEndpoint,
    listening,
    open_endpoints,
)
from gateway.app.failure import ExitCode, Failure
from gateway.app.given import GivenSockets, from_systemd
from gateway.app.logs import Reloader
from gateway.app.pools import Pool, PoolPlan, pool_row
from gateway.app.process import SignalWatch, Trimmer, allow_files, collect_seldom
from gateway.app.process_control import ProcessControl, ReloadFollower
from gateway.app.runtime import Runtime
from gateway.app.succession import Served, Start, Succession, open_succession
from gateway.config.endpoints import ADMIN, SERVE, moved
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.domain.events.access import ConnectionClosed, ConnectionOpened
from gateway.domain.events.gateway import Doubtful, Draining, Started
from gateway.domain.operators.process import Workload
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.net.visits import current_visit
from gateway.pairing.state_file import StateFileError
from gateway.ports import Observer, Service
from gateway.store.embedded.broker import EmbeddedBroker

SAVE_SECONDS: Final = 5.0
LEAVE_SECONDS: Final = 5.0  # for sends that other gateways have forwarded
LAST_WORDS: Final = 1.0  # seconds


@attrs.define(eq=False)
class GatewayShutdown:
    """The reason of the shutdown, and its two steps: drain, then cut off."""

    runtime: Runtime
    grace: float
    readiness: Readiness = attrs.field(factory=lambda: Readiness(STARTING))
    acceptors: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    # The acceptors of operators' endpoints.
    operators: list[trio.CancelScope] = attrs.field(factory=list)
    connections: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failure: Failure | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)  # the last client has gone
    clients: int = 0  # connections now, without those of operators
    finished: int = 0  # connections that have ended since the start
    cut: int = 0  # those that the drain didn't wait for

    def work(self) -> Workload:
        """The connections of clients."""
        return Workload(unit="connections", done=self.finished, left=self.clients + self.cut)

    @property
    def is_asked(self) -> bool:
        return self.acceptors.cancel_called

    def ask(self, reason: str) -> None:
        """Stop accepting; at a second call, cut connections that still drain."""
        if self.is_asked:
            self.connections.cancel()
            return
        self.readiness.end(f"draining: {reason}")
        self.runtime.observer.report(Draining(reason=reason, seconds=self.grace))
        self.acceptors.cancel()

    def leave(self, reason: str) -> None:
        """Stop accepting, from operators, too: another process accepts at the same sockets."""
        self.ask(reason)
        for acceptor in self.operators:
            acceptor.cancel()

    def fail(self, failure: Failure) -> None:
        """Shut down soon: requests can't succeed any more, but clients get their errors."""
        self.failure = failure
        self.readiness.end(str(failure))
        self.acceptors.cancel()
        self.connections.deadline = trio.current_time() + LAST_WORDS


@attrs.frozen(kw_only=True)
class ServeOptions:
    """The options of a gateway's start, besides its configuration."""

    port_offset: int = 0
    # Fingerprints of primaries that the primary replaces: backlog messages for them go to it.
    adopted: Collection[str] = ()
    as_json: bool = False  # the log of workers
    flags: Collection[str] = ()  # of extensions, without dashes


async def serve(
    loaded: Loaded,
    runtime: Runtime,
    options: ServeOptions | None = None,
    *,
    reloader: Reloader | None = None,
) -> None:
    """
    Serve until SIGTERM or SIGINT, or until another process has taken over; then drain and return. A
    second signal cuts connections that still drain.

    `reloader` reads the configuration again, at SIGHUP or for an operator; access policies,
    issuers, accounts, envelope keys and shards are applied.

    Raises:
        Failure: a part can't be started, or a store failed.
    """
    row = pool_row(loaded.config)
    config = row.share(loaded.config)
    if not config.endpoints_of(SERVE):
        raise Failure(f"{loaded.source}: add [[endpoints]] for clients", ExitCode.WRONG)
    _warn(loaded, runtime)
    options = options or ServeOptions()
    async with AsyncExitStack() as stack:
        start = Start(
            stack=stack,
            config=config,
            observer=runtime.observer,
            given=from_systemd(config, os.environ, port_offset=options.port_offset),
            flags=options.flags,
        )
        gateway = _Gateway(
            loaded=loaded,
            config=config,
            runtime=runtime,
            options=options,
            reloader=reloader,
            succession=await open_succession(start),
            open_pool=row.open,
        )
        given = gateway.succession.given
        while True:
            await gateway.serve(given)
            given = await gateway.succession.freed()
            if given is None:
                return


@attrs.define(eq=False, kw_only=True)
class _Gateway:
    """A gateway that may serve again after its end, because its successor failed."""

    loaded: Loaded
    config: Config
    runtime: Runtime
    options: ServeOptions
    reloader: Reloader | None
    succession: Succession
    open_pool: Callable[[AsyncExitStack, Loaded, bool], PoolPlan]
    _reloaded: Loaded | None = attrs.field(default=None, init=False)

    async def serve(self, given: GivenSockets | None) -> None:
        """
        Serve until the end of the process, at these sockets and at further ones, which are bound
        first.
        """
        ending = GatewayShutdown(self.runtime, self.config.limits.grace)
        async with AsyncExitStack() as stack:
            try:
                await self._run(stack, ending, given)
            except* StateFileError as group:
                # If raised here, the failure would be inside an exception group.
                ending.failure = Failure(f"{group.exceptions[0]}: move it away, or restore it")
        if ending.failure is not None:
            raise ending.failure

    async def _run(
        self, stack: AsyncExitStack, ending: GatewayShutdown, given: GivenSockets | None
    ) -> None:
        config, runtime, loaded, options = self.config, self.runtime, self.loaded, self.options
        await self.succession.wait_free()
        plan = self.open_pool(stack, loaded, options.as_json)
        others = others_of(ProcessPlace(config=config, runtime=runtime, dial=plan.dial))
        parts = await make_parts(stack, config, runtime, others=others, adopted=options.adopted)
        collect_seldom()
        pool = plan.make(parts, runtime, ending.fail)
        process = _make_control(config, ending, self.reloader, parts.records)
        parts = attrs.evolve(
            parts,
            workers=pool.statuses,
            readiness=ending.readiness,
            process=process,
            certificates=(
                certificates := CertificateWatch.of(config, SERVE, runtime.now, runtime.observer)
            ),
        )
        services = await services_of(parts.plan.role, parts)
        endpoints, ports = await self._open(stack, parts, ending, given)
        own = pool.share(endpoints)
        serving = trio.Event()
        further = [*ports, *self._hand_over(parts, endpoints, ports, ending, serving)]

        def apply(fresh: Loaded) -> None:
            self._reloaded = fresh
            apply_reloaded(config, fresh.config, endpoints, parts, runtime)
            pool.reload(fresh)
            certificates.check(is_final=True)

        process.on_reload(apply)

        def announce() -> None:
            for endpoint in endpoints:
                opened = config.endpoints[endpoint.number]
                for event in listening(opened, endpoint.listener.address):
                    runtime.observer.report(event)
                endpoint.listener.own_file()
            ending.readiness.begin()
            runtime.observer.report(Started(configuration=loaded.source))
            serving.set()

        if self._reloaded is not None:
            apply(self._reloaded)
        await run_parts(
            parts,
            own,
            ending,
            announce=announce,
            services=[
                SignalWatch(process.drain, process.reload),
                ReloadFollower(process),
                *services,
                *further,
            ],
            pool=pool,
        )

    async def _open(
        self,
        stack: AsyncExitStack,
        parts: Parts,
        ending: GatewayShutdown,
        given: GivenSockets | None,
    ) -> tuple[list[OpenEndpoint], Sequence[PeerPort]]:
        """Open all ports, for clients and for peers; the stack closes them."""
        offset = self.options.port_offset
        endpoints = await open_endpoints(
            stack, self.config, parts, self.runtime, port_offset=offset, given=given
        )
        # Peers are accepted, too, until the last client is gone.
        plan = PortPlan(stack=stack, offset=offset, given=given, on_open=ending.operators.append)
        ports = await parts.others.open_ports(plan, parts.held_parts)
        if given is not None:
            given.close()  # the sockets of addresses that aren't configured any more
        return endpoints, ports

    def _hand_over(
        self,
        parts: Parts,
        endpoints: Sequence[OpenEndpoint],
        ports: Sequence[PeerPort],
        ending: GatewayShutdown,
        serving: trio.Event,
    ) -> Sequence[Service]:
        offset = self.options.port_offset
        listeners = [
            (moved(self.config.endpoints[each.number].bind, offset), each.listener)
            for each in endpoints
        ]
        served = Served(
            listeners=[*listeners, *((port.bind, port.listener) for port in ports)],
            state=None if parts.pair is None else parts.pair.state,
            has_stores=bool(parts.opened.stores),
            ending=ending,
            serving=serving,
        )
        return self.succession.services(served)


def apply_reloaded(
    start: Config, fresh: Config, endpoints: Sequence[OpenEndpoint], parts: Parts, runtime: Runtime
) -> None:
    """
    Apply the parts of the configuration `fresh` that a reload changes. `start` is the configuration
    of the start.
    """
    for endpoint in endpoints:
        endpoint.apply(fresh)
    renew_envelopes(fresh, runtime)
    parts.reload(start, fresh)


def _make_control(
    config: Config,
    ending: GatewayShutdown,
    reloader: Reloader | None,
    records: RecordParts | None,
) -> ProcessControl:
    def work() -> Workload:
        # The clients of workers aren't counted.
        known = ending.work()
        return known if config.serving_processes == 1 else attrs.evolve(known, done=None, left=None)

    return ProcessControl(
        observer=ending.runtime.observer,
        readiness=ending.readiness,
        ask_end=ending.ask,
        work=work,
        reloader=reloader,
        ended=ending.ended,
        place="" if records is None else records.place,
        book=None if records is None else records.book,
    )


def _warn(loaded: Loaded, runtime: Runtime) -> None:
    """Allow as many files as possible; report doubts about that and about the configuration."""
    config = loaded.config
    few_files = allow_files(
        len(config.endpoints_of(SERVE)) * config.limits.listener.max_connections
    )
    for warning in (*loaded.warnings, *([few_files] if few_files else [])):
        runtime.observer.report(Doubtful(text=warning))


async def run_parts(
    parts: Parts,
    endpoints: Sequence[OpenEndpoint],
    ending: GatewayShutdown,
    *,
    announce: Callable[[], None],
    services: Iterable[Service],
    pool: Pool,
) -> None:
    """
    Run the parts and their services until `ending` begins the end; return when the last connection
    has ended.

    `announce` is called when all endpoints accept connections, including those of the workers in
    `pool`.
    """
    trimmer = Trimmer()
    async with trio.open_nursery() as nursery:
        for store in parts.opened.stores:
            nursery.start_soon(watch_store, store, ending.fail)
        for service in (*services, trimmer, pool):
            await nursery.start(service.run)
        with ending.connections:
            await _serve_all(endpoints, ending, announce, trimmer, pool)
        if parts.pair is not None:
            with trio.move_on_after(LEAVE_SECONDS):
                await parts.pair.leave()
        if parts.pair is not None and parts.pair.state is not None:
            with trio.move_on_after(SAVE_SECONDS):
                await parts.pair.state.save()
        nursery.cancel_scope.cancel()


async def _serve_all(
    endpoints: Sequence[OpenEndpoint],
    ending: GatewayShutdown,
    announce: Callable[[], None],
    trimmer: Trimmer,
    pool: Pool,
) -> None:
    """Serve until the last client is gone; operators' requests are answered until then."""
    own = [endpoint for endpoint in endpoints if endpoint.protocol == ADMIN]
    others = [endpoint for endpoint in endpoints if endpoint.protocol != ADMIN]
    async with trio.open_nursery() as operators:
        for endpoint in own:
            serve_connection = partial(_served, endpoint, trimmer, ending.runtime.observer)
            serve = partial(endpoint.listener.serve, serve_connection, connections=operators)
            await operators.start(_accept_operators, ending, serve)
        await _serve_clients(others, ending, announce, trimmer, pool)
        for acceptor in ending.operators:
            acceptor.cancel()
        ending.ended.set()
        for endpoint in own:
            endpoint.server.drain()
        operators.cancel_scope.deadline = trio.current_time() + LAST_WORDS


async def _accept_operators(
    ending: GatewayShutdown,
    serve: Callable[..., Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    with trio.CancelScope() as scope:
        ending.operators.append(scope)
        await serve(task_status=task_status)


async def _serve_clients(
    endpoints: Sequence[OpenEndpoint],
    ending: GatewayShutdown,
    announce: Callable[[], None],
    trimmer: Trimmer,
    pool: Pool,
) -> None:
    async with trio.open_nursery() as connections:
        with ending.acceptors:
            async with trio.open_nursery() as acceptors:
                for endpoint in endpoints:
                    serve_connection = partial(_served_client, endpoint, trimmer, ending)
                    await acceptors.start(
                        partial(endpoint.listener.serve, serve_connection, connections=connections)
                    )
                await pool.wait_ready()
                announce()
                # A parent may have no endpoint of its own.
                await trio.sleep_forever()
        for endpoint in endpoints:
            endpoint.server.drain()
        connections.cancel_scope.deadline = trio.current_time() + ending.grace
        connections.start_soon(pool.drain)


async def _served_client(
    endpoint: OpenEndpoint, trimmer: Trimmer, ending: GatewayShutdown, stream: trio.abc.Stream
) -> None:
    """As `_served`; count the connection as a client's."""
    ending.clients += 1
    try:
        await _served(endpoint, trimmer, ending.runtime.observer, stream)
    except trio.Cancelled:
        ending.cut += ending.acceptors.cancel_called
        raise
    else:
        ending.finished += 1
    finally:
        ending.clients -= 1


async def _served(
    endpoint: OpenEndpoint, trimmer: Trimmer, observer: Observer, stream: trio.abc.Stream
) -> None:
    protocol, peer, began = endpoint.protocol, current_visit().peer, trio.current_time()
    observer.report(ConnectionOpened(protocol=protocol, peer=peer))
    try:
        await endpoint.server.serve_connection(stream)
    finally:
        seconds = round(trio.current_time() - began, 3)
        observer.report(ConnectionClosed(protocol=protocol, peer=peer, seconds=seconds))
        trimmer.record_end()


async def watch_store(store: EmbeddedBroker, fail: Callable[[Failure], None]) -> None:
    """Until cancelled; call `fail` if the store has failed for good."""
    await store.failed.wait()
    fail(
        Failure(
            "a store has failed, and only a restart can tell its content:"
            " check the disk, then restart",
            ExitCode.TEMPORARY,
        )
    )
