"""
`pairgate serve`: all parts of one gateway, and the order in which they end.

    brokers         the stores and connections of the namespaces           closed last
    └ services      pair, prober, syphons, leases, signals                 cancelled third
      └ admin       the endpoints of operators, who follow the drain       a moment later
        └ connections one task per client connection                       a deadline: now + grace
          └ acceptors the ports                                            cancelled first
"""

import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from gateway.app.endpoints import OpenEndpoint, open_endpoints
from gateway.app.failure import ExitCode, Failure
from gateway.app.logs import Reload
from gateway.app.parts import Parts, make_parts
from gateway.app.process import Trimmer, allow_files, collect_seldom
from gateway.app.runtime import Runtime
from gateway.app.workers.limits import shared
from gateway.brokers.embedded.broker import EmbeddedBroker
from gateway.config.file import Loaded
from gateway.config.options import ADMIN, SERVE
from gateway.domain.events.access import ConnectionClosed, ConnectionOpened
from gateway.domain.events.gateway import Doubtful, Draining, Listening, Started
from gateway.domain.status import Status
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.net.visits import current_visit
from gateway.pairing.state_file import StateFileError
from gateway.ports import Observer

SAVE_SECONDS: Final = 5.0
LAST_WORDS: Final = 1.0  # seconds


@attrs.define(eq=False)
class Ending:
    """The reason of the shutdown, and its two steps: drain, then cut off."""

    runtime: Runtime
    grace: float
    readiness: Readiness = attrs.field(factory=lambda: Readiness(STARTING))
    acceptors: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connections: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failure: Failure | None = None

    def ask(self, reason: str) -> None:
        """Stop accepting; at a second call, cut connections that still drain."""
        if self.acceptors.cancel_called:
            self.connections.cancel()
            return
        self.readiness.end(f"draining: {reason}")
        self.runtime.observer.report(Draining(reason=reason, seconds=self.grace))
        self.acceptors.cancel()

    def fail(self, failure: Failure) -> None:
        """Shut down soon: requests can't succeed any more, but clients get their errors."""
        self.failure = failure
        self.readiness.end(str(failure))
        self.acceptors.cancel()
        self.connections.deadline = trio.current_time() + LAST_WORDS


async def serve(
    loaded: Loaded,
    runtime: Runtime,
    *,
    port_offset: int = 0,
    adopted: Collection[str] = (),
    reload: Reload = lambda apply: None,
    as_json: bool = False,
) -> None:
    """
    Serve until SIGTERM or SIGINT; then drain and return. A second signal cuts connections that
    still drain.

    `adopted` are fingerprints of primaries that the primary replaces: backlog messages for them go
    to it. `reload` is called at SIGHUP; access policies and accounts of the new configuration are
    applied. `as_json` is for the log of workers.

    Raises:
        Failure: a part can't be started, or a store failed.
    """
    config = loaded.config if loaded.config.workers == 1 else shared(loaded.config)
    if not config.endpoints_of(SERVE):
        raise Failure(f"{loaded.source}: add [[endpoints]] for clients", ExitCode.WRONG)
    _warn(loaded, runtime)
    ending = Ending(runtime, config.limits.grace)
    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, runtime, adopted=adopted)
        collect_seldom()
        pool = _pool(stack, loaded, parts, ending, as_json=as_json)
        parts = attrs.evolve(parts, workers=pool.statuses, readiness=ending.readiness)
        endpoints = await open_endpoints(stack, config, parts, runtime, port_offset=port_offset)
        own = pool.share(endpoints)

        def apply(fresh: Loaded) -> None:
            for endpoint in endpoints:
                endpoint.apply(fresh.config)
            pool.reload(fresh)

        def announce() -> None:
            for endpoint in endpoints:
                address = endpoint.listener.address
                runtime.observer.report(Listening(protocol=endpoint.protocol, address=address))
            ending.readiness.begin()
            runtime.observer.report(Started(configuration=loaded.source))

        try:
            await run_parts(
                parts, own, ending, announce=announce, reload=partial(reload, apply), pool=pool
            )
        except* StateFileError as group:
            # Raised here, the failure would be in an exception group itself.
            ending.failure = Failure(f"{group.exceptions[0]}: move it away, or restore it")
    if ending.failure is not None:
        raise ending.failure


def _warn(loaded: Loaded, runtime: Runtime) -> None:
    """Allow as many files as possible; report doubts about that and about the configuration."""
    config = loaded.config
    few_files = allow_files(
        len(config.endpoints_of(SERVE)) * config.limits.listener.max_connections
    )
    for warning in (*loaded.warnings, *([few_files] if few_files else [])):
        runtime.observer.report(Doubtful(text=warning))


class Pool(Protocol):
    """The workers of a gateway, as `gateway.app.workers.pool.WorkerPool`."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None: ...

    async def wait_ready(self) -> None: ...

    async def drain(self) -> None: ...

    async def statuses(self) -> Sequence[Status]: ...

    def share(self, endpoints: Sequence[OpenEndpoint]) -> Sequence[OpenEndpoint]: ...

    def reload(self, loaded: Loaded) -> None: ...


class NoWorkers:
    """The `Pool` of a gateway that is one process."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await trio.lowlevel.checkpoint()
        task_status.started()

    async def wait_ready(self) -> None:
        await trio.lowlevel.checkpoint()

    async def drain(self) -> None:
        await trio.lowlevel.checkpoint()

    async def statuses(self) -> Sequence[Status]:
        await trio.lowlevel.checkpoint()
        return ()

    def share(self, endpoints: Sequence[OpenEndpoint]) -> Sequence[OpenEndpoint]:
        return endpoints

    def reload(self, loaded: Loaded) -> None:
        """There is nobody to tell."""


def _pool(
    stack: AsyncExitStack, loaded: Loaded, parts: Parts, ending: Ending, *, as_json: bool
) -> Pool:
    if loaded.config.workers == 1:
        return NoWorkers()
    # Imported here: a gateway that is one process starts without it.
    from gateway.app.workers.pool import make_pool

    return make_pool(stack, loaded, parts, ending.runtime, ending.fail, as_json=as_json)


async def run_parts(
    parts: Parts,
    endpoints: Sequence[OpenEndpoint],
    ending: Ending,
    *,
    announce: Callable[[], None],
    reload: Callable[[], None],
    pool: Pool,
) -> None:
    """
    Run everything until `ending` is asked to end; return when the last connection has ended.

    `announce` is called when all endpoints accept connections, those of the workers in `pool` too.
    """
    trimmer = Trimmer()
    async with trio.open_nursery() as services:
        await services.start(partial(watch_signals, ending.ask, reload))
        for store in parts.stores:
            services.start_soon(watch_store, store, ending.fail)
        for service in (*parts.services, ending.runtime.loop_lag, trimmer, pool):
            await services.start(service.run)
        with ending.connections:
            await _serve_all(endpoints, ending, announce, trimmer, pool)
        if parts.pair is not None and parts.pair.state is not None:
            with trio.move_on_after(SAVE_SECONDS):
                await parts.pair.state.save()
        services.cancel_scope.cancel()


async def _serve_all(
    endpoints: Sequence[OpenEndpoint],
    ending: Ending,
    announce: Callable[[], None],
    trimmer: Trimmer,
    pool: Pool,
) -> None:
    """Serve until the last client is gone; operators can ask until then."""
    observer = ending.runtime.observer
    own = [endpoint for endpoint in endpoints if endpoint.protocol == ADMIN]
    others = [endpoint for endpoint in endpoints if endpoint.protocol != ADMIN]
    async with trio.open_nursery() as operators:
        async with trio.open_nursery() as acceptors:
            for endpoint in own:
                serve_connection = partial(_served, endpoint, trimmer, observer)
                await acceptors.start(
                    partial(endpoint.listener.serve, serve_connection, connections=operators)
                )
            await _serve_clients(others, ending, announce, trimmer, pool)
            acceptors.cancel_scope.cancel()
        for endpoint in own:
            endpoint.server.drain()
        operators.cancel_scope.deadline = trio.current_time() + LAST_WORDS


async def _serve_clients(
    endpoints: Sequence[OpenEndpoint],
    ending: Ending,
    announce: Callable[[], None],
    trimmer: Trimmer,
    pool: Pool,
) -> None:
    observer = ending.runtime.observer
    async with trio.open_nursery() as connections:
        with ending.acceptors:
            async with trio.open_nursery() as acceptors:
                for endpoint in endpoints:
                    serve_connection = partial(_served, endpoint, trimmer, observer)
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
        trimmer.note_end()


async def watch_signals(
    end: Callable[[str], None],
    reload: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled, call `end` at each SIGTERM and SIGINT, and `reload` at each SIGHUP."""
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with trio.open_signal_receiver(*wanted) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGHUP:
                reload()
            else:
                end(signal.Signals(number).name)


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
