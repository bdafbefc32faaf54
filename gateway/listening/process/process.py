"""
`pairgate listen`: a listener as a process, and the order in which its parts end.

    namespace   through the gateway that runs here, or directly              closed last
    └ handler   the connections to its endpoint
      └ feed    announcements of the gateway                                 cancelled
        └ listener  drained: receives nothing more, finishes, settles        ends first
"""

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import attrs
import trio

from gateway.app.assembly.opening import stores_among
from gateway.app.failure import ExitCode, Failure
from gateway.app.logs import Reloader
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.gateway_keys import GatewayKeys
from gateway.app.operations.targets import OpenNamespace, cure_of_missing, open_gateway, open_target
from gateway.app.operations.ways_in import find_way_in
from gateway.app.process import SignalWatch
from gateway.app.process_admin import ProcessAdmin, idle_control
from gateway.app.process_control import ProcessControl
from gateway.app.runtime import Runtime
from gateway.app.serving import watch_store
from gateway.app.waking import hears_all_senders
from gateway.brokers.servicebus.broker import ServiceBusRestOptions
from gateway.config.endpoints import AMQP, LISTEN
from gateway.config.file import Loaded
from gateway.config.options import Config, Namespace
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.events.gateway import Doubtful, Draining, Started
from gateway.domain.message import Message
from gateway.domain.operators.process import Workload
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.listening.items import RAW
from gateway.listening.job import wait_for_it
from gateway.listening.listener import QueueListener
from gateway.listening.options import ListenerOptions
from gateway.listening.process.feeds import TriggerSource, make_feeds
from gateway.listening.process.handlers import HandlerChoice, open_handler
from gateway.listening.process.reporting import (
    ListenerFigures,
    Measured,
    Reporter,
    open_report,
    with_metrics,
)
from gateway.listening.triggers import Triggers
from gateway.net.tls import ClientTlsOptions
from gateway.ports import Observer, Service
from gateway.store.embedded.broker import EmbeddedBroker

# Receives of one process that wait at the gateway. Four processes, as many as an agent starts by
# default, have fewer connections together than the 800 that a gateway accepts of one address.
MOST_POLLS: Final = 64


@attrs.frozen(kw_only=True)
class ProcessOptions:
    """
    Options of the command line; `options` are the configuration's, with those of the command line.
    """

    queues: str  # for example "urgent:8 bulk:2"
    handler: HandlerChoice
    options: ListenerOptions
    triggers: tuple[str, ...] = ()  # URLs of gateways' admin endpoints
    metrics: str | None = None  # HOST:PORT of an endpoint for this process's figures
    namespace: str | None = None
    admin: AdminChoice = attrs.field(factory=AdminChoice)  # for `triggers`
    through_gateway: bool = False  # never directly to the primary
    waits_for_queue: bool = False  # wait for a missing queue instead of failing
    report: int | None = None  # file descriptor of a socket whose other end an agent holds

    @property
    def source(self) -> TriggerSource:
        return TriggerSource(urls=self.triggers, admin=self.admin)


async def listen(
    loaded: Loaded, runtime: Runtime, wanted: ProcessOptions, reloader: Reloader | None = None
) -> None:
    """
    Run the handler for each message until SIGTERM or SIGINT; then finish running handlers, settle
    their messages and return. A second signal cuts handlers off: their messages are delivered
    again. A process that an agent has started also drains when the agent ends.

    Raises:
        Failure: the namespace or the handler can't be opened, a queue is missing and isn't waited
            for, or a store failed.
    """
    for warning in loaded.warnings:
        runtime.observer.report(Doubtful(text=warning))
    async with AsyncExitStack() as stack:
        target = await _open_target(stack, loaded.config, runtime, wanted)
        handle = Measured(
            await open_handler(
                stack,
                wanted.handler,
                parallel=wanted.options.parallel,
                clock=runtime.now,
            )
        )
        reporter = None
        if wanted.report is not None:
            stream = await stack.enter_async_context(open_report(wanted.report))
            reporter = Reporter(stream=stream, measured=handle)
        missing = Missing(target)
        try:
            listener = QueueListener(
                broker=target.broker,
                queues=wanted.queues,
                format=RAW,
                handle=handle,
                clock=runtime.now,
                rng=runtime.rng("listener"),
                options=wanted.options,
                observer=runtime.observer,
                triggers=Triggers(
                    is_connected=False,
                    hears_all_senders=target.home == loaded.config.home.name
                    and hears_all_senders(loaded.config, wanted.triggers),
                ),
                on_missing=wait_for_it if wanted.waits_for_queue else missing.record,
            )
        except InvalidRequest as error:
            raise Failure(str(error), ExitCode.WRONG) from error
        ending = ListenerShutdown(listener=listener, observer=runtime.observer)
        keys = _keys_for(target, loaded.config, runtime)
        feeds = await make_feeds(stack, keys, runtime, target, listener, wanted.source)
        figures = ListenerFigures(
            config=with_metrics(loaded.config, wanted.metrics), runtime=runtime, listener=listener
        )
        admin = ProcessAdmin(
            process=LISTEN,
            board=figures.board,
            control=idle_control(figures.board),
            port_offset=wanted.admin.port_offset,
            steering=ProcessControl(
                observer=runtime.observer,
                readiness=ending.readiness,
                ask_end=ending.ask,
                work=ending.work,
                reloader=reloader,
            ),
        )
        admin.steering.on_reload(keys.reload)
        await admin.open(stack)
        async with trio.open_nursery() as operators:
            await operators.start(admin.run)
            stores, services = (
                stores_among(target.broker),
                [figures, *feeds, EndWithout(missing, ending)],
            )
            await _run(
                ending,
                admin.steering,
                services,
                reporter,
                stores,
                Started(configuration=loaded.source),
            )
            admin.close()
        figures.report_usage()
    if ending.failure is not None:
        raise ending.failure


@attrs.define(eq=False, kw_only=True)
class ListenerShutdown:
    """The reason of the shutdown, and its two steps: drain, then cut off."""

    listener: QueueListener[Message]
    observer: Observer
    readiness: Readiness = attrs.field(factory=lambda: Readiness(STARTING))
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_asked: bool = False
    failure: Failure | None = None

    def ask(self, reason: str) -> None:
        """Drain; at a second call, cut off running handlers."""
        if self.is_asked:
            self.scope.cancel()
            return
        self.is_asked = True
        self.readiness.end(f"draining: {reason}")
        grace = self.listener.options.grace
        self.observer.report(Draining(reason=reason, seconds=grace))
        self.listener.start_drain()

    def work(self) -> Workload:
        """The messages that handlers are processing."""
        states = self.listener.states().values()
        done = sum(each.completed + each.failed + each.poisoned for each in states)
        return Workload(unit="messages", done=done, left=sum(each.locked for each in states))

    def drain_alone(self) -> None:
        """Drain, as the agent has ended, unless it has asked for that before."""
        if not self.is_asked:
            self.ask("the agent has ended")

    def leave(self, failure: Failure, reason: str) -> None:
        """Drain because of the failure, unless the process drains already."""
        if not self.is_asked:
            self.failure = failure
            self.ask(reason)

    def fail(self, failure: Failure) -> None:
        self.failure = failure
        self.scope.cancel()


async def _run(
    ending: ListenerShutdown,
    steering: ProcessControl,
    services: Sequence[Service],
    reporter: Reporter | None,
    stores: Iterable[EmbeddedBroker],
    started: Started,
) -> None:
    """Return when the listener has drained or was cut off."""
    with ending.scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(SignalWatch(steering.drain, steering.reload).run)
            for store in stores:
                nursery.start_soon(watch_store, store, ending.fail)
            if reporter is not None:
                nursery.start_soon(reporter.run, ending.drain_alone)
            for service in services:
                await nursery.start(service.run)
            async with trio.open_nursery() as listening:
                await listening.start(ending.listener.run)
                ending.readiness.begin()
                ending.observer.report(started)
            nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Missing:
    """The first queue of the listener that doesn't exist; it is missing until the end."""

    target: OpenNamespace
    queue: EntityPath | None = attrs.field(default=None, init=False)
    found: trio.Event = attrs.field(factory=trio.Event, init=False)

    def record(self, queue: EntityPath) -> None:
        """Note that this queue is missing. Each retry finds it missing again."""
        self.queue = self.queue or queue
        self.found.set()


@attrs.frozen(eq=False)
class EndWithout:
    """A `Service` that ends the process without a queue for which it isn't to wait."""

    _missing: Missing
    _ending: ListenerShutdown

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return when a queue was missing, and the listener drains."""
        task_status.started()
        await self._missing.found.wait()
        target, why = self._missing.target, f"queue {self._missing.queue} is missing"
        hint = "--wait-for-queue waits until it exists"
        cure = cure_of_missing(target, str(self._missing.queue))
        self._ending.leave(Failure(f"{target.name}: {why}{cure}. {hint}"), why)


async def _open_target(
    stack: AsyncExitStack, config: Config, runtime: Runtime, wanted: ProcessOptions
) -> OpenNamespace:
    way = partial(find_gateway, config, wanted)
    if not wanted.through_gateway or wanted.namespace is not None:
        return await open_target(stack, config, runtime, way=way, namespace=wanted.namespace)
    target = await open_gateway(stack, config, runtime, way)
    if target is None:
        raise Failure(
            "no gateway answers at any REST or AMQP endpoint of this configuration",
            ExitCode.TEMPORARY,
        )
    return target


def _keys_for(target: OpenNamespace, config: Config, runtime: Runtime) -> GatewayKeys:
    keys = GatewayKeys(config=config, observer=runtime.observer)
    if target.running:
        keys.keep(target.broker, target.name, Right.LISTEN)
    return keys


async def find_gateway(config: Config, wanted: ProcessOptions) -> Namespace | None:
    """
    As `find_way_in`; over REST, few receives wait at a time. AMQP is preferred for more queues:
    each is a link there, with a hundred links on a connection.
    """
    found = await find_way_in(
        config,
        Right.LISTEN,
        port_offset=wanted.admin.port_offset,
        # With `triggers`, the certificates on the command line are for those gateways.
        tls=ClientTlsOptions() if wanted.triggers else wanted.admin.tls,
        prefers=AMQP if len(wanted.queues.split()) > MOST_POLLS else None,
    )
    if found is None or not isinstance(found.options, ServiceBusRestOptions):
        return found
    return attrs.evolve(found, options=attrs.evolve(found.options, max_polls=MOST_POLLS))
