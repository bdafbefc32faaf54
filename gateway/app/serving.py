"""
`pairgate serve`: all parts of one gateway, and the order in which they end.

    brokers         the stores and connections of the namespaces           closed last
    └ services      pair, prober, syphons, leases, signals                 cancelled third
      └ connections one task per client connection                         a deadline: now + grace
        └ acceptors the ports                                              cancelled first
"""

import gc
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import trio

from gateway.app.endpoints import OpenEndpoint, open_endpoints
from gateway.app.failure import ExitCode, Failure
from gateway.app.logs import Reload
from gateway.app.outside import Outside
from gateway.app.parts import Parts, make_parts
from gateway.brokers.embedded.broker import EmbeddedBroker
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.domain.events import Doubtful, Draining, Listening, Started
from gateway.pairing.state import StateFileError

SAVE_SECONDS: Final = 5.0
LAST_WORDS: Final = 1.0  # seconds


@attrs.define(eq=False)
class Ending:
    """Who asked for the end, and how it is carried out: first by draining, then by cutting."""

    outside: Outside
    grace: float
    acceptors: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connections: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failure: Failure | None = None

    def ask(self, reason: str) -> None:
        """Stop accepting; asked again, cut the connections that still drain."""
        if self.acceptors.cancel_called:
            self.connections.cancel()
            return
        self.outside.observer.report(Draining(reason=reason, seconds=self.grace))
        self.acceptors.cancel()

    def fail(self, failure: Failure) -> None:
        """End soon: there is nothing to drain into, but clients may hear that it failed."""
        self.failure = failure
        self.acceptors.cancel()
        self.connections.deadline = trio.current_time() + LAST_WORDS


async def serve(
    loaded: Loaded,
    outside: Outside,
    *,
    port_offset: int = 0,
    reload: Reload = lambda take_over: None,
) -> None:
    """
    Serve until SIGTERM or SIGINT; then drain and return. A second one cuts what still drains.

    `reload` is called at SIGHUP; of what it finds, access policies and accounts are taken over.

    Raises:
        Failure: a part can't be started, or a store failed.
    """
    config = loaded.config
    if not config.endpoints:
        raise Failure(f"{loaded.source}: add [[endpoints]] for clients", ExitCode.WRONG)
    for warning in loaded.warnings:
        outside.observer.report(Doubtful(text=warning))
    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, outside)
        # What is there now stays. Looking through 40,000 queues for garbage, which Python does now
        # and then, takes most of a second in which nothing else is done.
        gc.freeze()
        endpoints = await open_endpoints(stack, config, parts, outside, port_offset=port_offset)

        def take_over(fresh: Config) -> None:
            for endpoint in endpoints:
                endpoint.take_over(fresh)

        ending = Ending(outside, config.limits.grace)
        started = Started(configuration=loaded.source, seed=outside.seed)
        try:
            await _run(parts, endpoints, ending, started, partial(reload, take_over))
        except* StateFileError as group:
            # Raised here, it would be in a group itself.
            ending.failure = Failure(f"{group.exceptions[0]}: move it away, or bring it back")
    if ending.failure is not None:
        raise ending.failure


async def _run(
    parts: Parts,
    endpoints: list[OpenEndpoint],
    ending: Ending,
    started: Started,
    reload: Callable[[], None],
) -> None:
    async with trio.open_nursery() as services:
        await services.start(partial(watch_signals, ending.ask, reload))
        for store in parts.stores:
            services.start_soon(watch_store, store, ending.fail)
        for service in parts.services:
            await services.start(service.run)
        with ending.connections:
            await _serve_connections(endpoints, ending, started)
        if parts.pair is not None and parts.pair.state is not None:
            with trio.move_on_after(SAVE_SECONDS):
                await parts.pair.state.save()
        services.cancel_scope.cancel()


async def _serve_connections(
    endpoints: list[OpenEndpoint], ending: Ending, started: Started
) -> None:
    observer = ending.outside.observer
    async with trio.open_nursery() as connections:
        with ending.acceptors:
            async with trio.open_nursery() as acceptors:
                for endpoint in endpoints:
                    serve_connection = endpoint.server.serve_connection
                    await acceptors.start(
                        partial(endpoint.listener.serve, serve_connection, connections=connections)
                    )
                    address = endpoint.listener.address
                    observer.report(Listening(protocol=endpoint.protocol, address=address))
                observer.report(started)
        for endpoint in endpoints:
            endpoint.server.drain()
        connections.cancel_scope.deadline = trio.current_time() + ending.grace


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
    """Until cancelled; call `fail` if the store stops for good."""
    await store.failed.wait()
    fail(
        Failure(
            "a store has failed, and only a new process finds out what it holds:"
            " look at the disk, then start again",
            ExitCode.TEMPORARY,
        )
    )
