"""
`pairgate listen`: a listener as a process, and the order in which it ends.

    namespace   through the gateway that runs here, or straight in           closed last
    └ handler   the connections to its endpoint
      └ feed    what the gateway announces                                   cancelled
        └ listener  drained: takes nothing more, finishes, settles           ends first
"""

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.feeds import Source, make_feeds
from gateway.app.handlers import HandlerChoice, open_handler
from gateway.app.listener_figures import ListenerFigures
from gateway.app.outside import Outside
from gateway.app.parts import stores_among
from gateway.app.reporting import Measured, Reporter, open_report
from gateway.app.serving import watch_signals, watch_store
from gateway.app.targets import Target, open_gateway, open_target
from gateway.app.waking import hears_all_senders
from gateway.brokers.embedded.broker import EmbeddedBroker
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import InvalidRequest
from gateway.domain.events import Doubtful, Draining, Started
from gateway.domain.message import Message
from gateway.listener.items import RAW
from gateway.listener.listener import QueueListener
from gateway.listener.options import ListenerOptions
from gateway.listener.triggers import Triggers
from gateway.ports import Observer, Service


@attrs.frozen(kw_only=True)
class Wanted:
    """What the command line says; `options` are those of the file, and its own."""

    queues: str  # as "urgent:8 bulk:2"
    handler: HandlerChoice
    options: ListenerOptions
    triggers: tuple[str, ...] = ()  # URLs of gateways' admin endpoints
    metrics: str | None = None  # HOST:PORT of an endpoint for its own figures
    namespace: str | None = None
    port_offset: int = 0
    through_gateway: bool = False  # and never straight into the primary
    report: int | None = None  # the number of a socket that an agent holds the other end of

    @property
    def source(self) -> Source:
        return Source(urls=self.triggers, port_offset=self.port_offset)


async def listen(loaded: Loaded, outside: Outside, wanted: Wanted) -> None:
    """
    Run the handler for each message until SIGTERM or SIGINT; then finish what runs, settle it and
    return. A second one cuts what still runs: its messages come again. Whoever was started by an
    agent also ends, as at the first signal, when the agent has.

    Raises:
        Failure: the namespace or the handler can't be opened, or a store failed.
    """
    for warning in loaded.warnings:
        outside.observer.report(Doubtful(text=warning))
    async with AsyncExitStack() as stack:
        target = await _open_target(stack, loaded.config, outside, wanted)
        handle = Measured(
            await open_handler(
                stack,
                wanted.handler,
                parallel=wanted.options.parallel,
                clock=outside.now,
            )
        )
        reporter = None
        if wanted.report is not None:
            stream = await stack.enter_async_context(open_report(wanted.report))
            reporter = Reporter(stream=stream, measured=handle)
        try:
            listener = QueueListener(
                broker=target.broker,
                queues=wanted.queues,
                format=RAW,
                handle=handle,
                clock=outside.now,
                rng=outside.rng("listener"),
                options=wanted.options,
                observer=outside.observer,
                triggers=Triggers(
                    is_connected=False,
                    hears_all_senders=target.home == loaded.config.home.name
                    and hears_all_senders(loaded.config, wanted.triggers),
                ),
            )
        except InvalidRequest as error:
            raise Failure(str(error), ExitCode.WRONG) from error
        feeds = await make_feeds(stack, loaded.config, outside, target, listener, wanted.source)
        started = Started(configuration=loaded.source, seed=outside.seed)
        figures = ListenerFigures(
            config=loaded.config,
            outside=outside,
            listener=listener,
            bind=wanted.metrics,
            port_offset=wanted.port_offset,
        )
        await figures.open(stack)
        ending = Ending(listener=listener, observer=outside.observer, draining=figures.draining)
        await _run(ending, [figures, *feeds], reporter, stores_among(target.broker), started)
        figures.tell_bills()
    if ending.failure is not None:
        raise ending.failure


@attrs.define(eq=False, kw_only=True)
class Ending:
    """Who asked for the end, and how it is carried out: first by draining, then by cutting."""

    listener: QueueListener[Message]
    observer: Observer
    draining: trio.Event
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_asked: bool = False
    failure: Failure | None = None

    def ask(self, reason: str) -> None:
        """Drain; asked again, cut what still runs."""
        if self.is_asked:
            self.scope.cancel()
            return
        self.is_asked = True
        self.draining.set()
        grace = self.listener.options.grace
        self.observer.report(Draining(reason=reason, seconds=grace))
        self.listener.start_drain()

    def part(self) -> None:
        """The agent has ended, which may have asked already."""
        if not self.is_asked:
            self.ask("the agent has ended")

    def fail(self, failure: Failure) -> None:
        self.failure = failure
        self.scope.cancel()


async def _run(
    ending: Ending,
    services: Sequence[Service],
    reporter: Reporter | None,
    stores: Iterable[EmbeddedBroker],
    started: Started,
) -> None:
    """Return when it has drained, or was cut."""
    with ending.scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(watch_signals, ending.ask, lambda: None))
            for store in stores:
                nursery.start_soon(watch_store, store, ending.fail)
            if reporter is not None:
                nursery.start_soon(reporter.run, ending.part)
            for service in services:
                await nursery.start(service.run)
            async with trio.open_nursery() as listening:
                await listening.start(ending.listener.run)
                ending.observer.report(started)
            nursery.cancel_scope.cancel()


async def _open_target(
    stack: AsyncExitStack, config: Config, outside: Outside, wanted: Wanted
) -> Target:
    right, port_offset = Right.LISTEN, wanted.port_offset
    if not wanted.through_gateway or wanted.namespace is not None:
        return await open_target(
            stack,
            config,
            outside,
            right=right,
            namespace=wanted.namespace,
            port_offset=port_offset,
        )
    target = await open_gateway(stack, config, outside, right=right, port_offset=port_offset)
    if target is None:
        raise Failure(
            "no gateway answers at an endpoint for REST without TLS of this configuration",
            ExitCode.TEMPORARY,
        )
    return target
