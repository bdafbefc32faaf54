"""
`pairgate syphon`: a syphon as its own process, beside the gateways or to empty a backlog elsewhere.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

import attrs
import trio

from gateway.app.assembly.interceptors import Interception
from gateway.app.assembly.pairs import make_envelope, make_heartbeats, renew_envelopes
from gateway.app.assembly.parts import make_announcers, make_sharding, stores_among
from gateway.app.failure import ExitCode, Failure
from gateway.app.identities import find_destination
from gateway.app.logs import Reloader, with_reloaded_shards
from gateway.app.namespaces import enter
from gateway.app.process import collect_seldom, watch_signals
from gateway.app.process_admin import ProcessAdmin
from gateway.app.process_control import ProcessControl
from gateway.app.runtime import Runtime
from gateway.app.serving import watch_store
from gateway.app.status.board import LoneSyphon, StatusBoard
from gateway.app.status.sections import readings
from gateway.config.file import Loaded
from gateway.config.kinds import Adapter
from gateway.config.options import SYPHON, Config, Pairing
from gateway.config.problems import no_namespace
from gateway.domain.events.gateway import Doubtful, Draining, Started
from gateway.domain.operators.process import Workload
from gateway.extensions.announcements.streams import Announcements
from gateway.extensions.sharding.assembly import Sharding
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.frontends.refusals import Refusals
from gateway.pairing.control import Control
from gateway.pairing.depth import BacklogDepth
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Service
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.hooks import LocalHooks


async def syphon(
    loaded: Loaded,
    runtime: Runtime,
    *,
    label: str | None = None,
    to: str | None = None,
    adopted: Collection[str] = (),
    reloader: Reloader | None = None,
) -> None:
    """
    Move the backlog of `label` from the secondary to the namespace `to`, until SIGTERM or SIGINT.

    Defaults are the pair's own label and its primary; messages for another primary then stay,
    unless its fingerprint is in `adopted`. A namespace `to` accepts all messages.

    Raises:
        Failure: there is no pair or no such namespace, or a namespace can't be opened.
    """
    config = loaded.config
    pairing, target = _find_target(loaded, to)
    for warning in loaded.warnings:
        runtime.observer.report(Doubtful(text=warning))
    label = label or pairing.options.label
    async with AsyncExitStack() as stack:
        announcements = Announcements() if target == pairing.primary and config.triggers else None
        publish = None if announcements is None else announcements.publish
        hooks = LocalHooks(announce=publish)
        source, primary = await _enter_sides(stack, config, target, runtime, hooks)
        keepers = {pairing.secondary: source, target: primary}
        announcers = await make_announcers(stack, config, runtime, announcements, keepers)
        interception = Interception(
            runtime=runtime,
            announce=publish,
            announced={target, *config.shard_namespaces},
        )
        seen = interception.around(primary, config.namespaces[target])
        sharding, adapters = await _enter_shards(stack, config, target, interception, hooks)
        destination = await find_destination(
            config, pairing, seen, runtime, adopted=adopted, name=to
        )
        seen_source = interception.around(source, config.namespaces[pairing.secondary])
        service = Syphon(
            primary=sharding.places(seen),
            source=seen_source,
            label=label,
            options=pairing.syphon,
            envelope=make_envelope(pairing, label, runtime, makes_key=runtime.makes_stores),
            clock=runtime.now,
            rng=runtime.rng("syphon"),
            observer=runtime.observer,
            destination=destination,
        )
        ending, opened = Ending(runtime), {pairing.secondary: seen_source, target: seen}
        admin = _make_admin(config, ending, service, opened, reloader, sharding)
        await admin.open(stack)
        heartbeats = make_heartbeats(
            pairing, source, runtime, service.pauses, process=SYPHON, label=label
        )
        collect_seldom()
        stores = stores_among(primary, source, *adapters)
        await _run(
            [*announcers, *heartbeats, *runtime.opened.values(), service],
            stores,
            ending,
            admin,
            loaded,
        )
    if ending.failure is not None:
        raise ending.failure


async def _enter_sides(
    stack: AsyncExitStack, config: Config, target: str, runtime: Runtime, hooks: LocalHooks
) -> tuple[Adapter, Adapter]:
    """Open the secondary, and the target with these hooks; they may be the same namespace."""
    assert config.pairing is not None, "it has a syphon"
    secondary = config.pairing.secondary
    source = await enter(stack, config.namespaces[secondary], runtime)
    if target == secondary:
        return source, source
    return source, await enter(stack, config.namespaces[target], runtime, hooks)


async def _enter_shards(
    stack: AsyncExitStack,
    config: Config,
    target: str,
    interception: Interception,
    hooks: LocalHooks,
) -> tuple[Sharding, Sequence[Broker]]:
    """
    The shards of the namespace `target`, none unless it is the primary, and the other namespaces
    with shards, opened until the stack is closed.
    """
    await trio.lowlevel.checkpoint()
    if target != config.home.name:
        config = attrs.evolve(config, sharding=())
    found = dict[str, Broker]()
    for name in config.shard_namespaces:
        namespace = config.namespaces[name]
        found[name] = await enter(stack, namespace, interception.runtime, hooks)
    sharding = make_sharding(config, found, interception, watches_drains=False)
    return sharding, list(found.values())


@attrs.define(eq=False)
class Ending:
    """
    The reason of the shutdown. A syphon ends at once: the messages that it has locked are received
    again by another one.
    """

    runtime: Runtime
    readiness: Readiness = attrs.field(factory=lambda: Readiness(STARTING))
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failure: Failure | None = None

    def ask(self, reason: str) -> None:
        if self.scope.cancel_called:
            return
        self.readiness.end(f"draining: {reason}")
        self.runtime.observer.report(Draining(reason=reason, seconds=0.0))
        self.scope.cancel()

    def fail(self, failure: Failure) -> None:
        self.failure = failure
        self.readiness.end(str(failure))
        self.scope.cancel()

    def work(self) -> Workload:
        """The messages on their way to the primary."""
        return Workload(unit="messages", done=self.runtime.observer.moved, left=None)


def _find_target(loaded: Loaded, to: str | None) -> tuple[Pairing, str]:
    """The pair, and the name of the namespace to which its backlog is moved."""
    pairing, namespaces = loaded.config.pairing, loaded.config.namespaces
    if pairing is None:
        raise Failure(f"{loaded.source}: pairgate syphon needs [pairing]", ExitCode.WRONG)
    target = to or pairing.primary
    if target not in namespaces:
        raise Failure(no_namespace(target, namespaces), ExitCode.WRONG)
    return pairing, target


def _make_admin(
    config: Config,
    ending: Ending,
    syphon: Syphon,
    namespaces: Mapping[str, Broker],
    reloader: Reloader | None,
    sharding: Sharding,
) -> ProcessAdmin:
    """The endpoints `admin` of the syphon's process; none is open yet."""
    runtime = ending.runtime
    depth = BacklogDepth(
        secondary=syphon.source, rotation=syphon, label=syphon.label, clock=runtime.now
    )
    board = StatusBoard(
        config=config,
        runtime=runtime,
        refusals=Refusals(runtime.observer),
        sections=readings(config),
        syphon=LoneSyphon(syphon=syphon, depth=depth, namespaces={**namespaces, **sharding.others}),
    )
    control = Control(
        clock=runtime.now, observer=runtime.observer, pauses=syphon.pauses, syphons=[syphon]
    )

    def apply(fresh: Loaded) -> None:
        renew_envelopes(fresh.config, runtime)
        sharding.table.replace(with_reloaded_shards(config, fresh.config).sharding)

    steering = ProcessControl(
        observer=runtime.observer,
        readiness=ending.readiness,
        ask_end=ending.ask,
        work=ending.work,
        reloader=reloader,
    )
    steering.on_reload(apply)
    return ProcessAdmin(process=SYPHON, board=board, control=control, steering=steering)


async def _run(
    services: Sequence[Service],
    stores: Sequence[EmbeddedBroker],
    ending: Ending,
    admin: ProcessAdmin,
    loaded: Loaded,
) -> None:
    steering = admin.steering
    async with trio.open_nursery() as operators:
        await operators.start(admin.run)
        with ending.scope:
            async with trio.open_nursery() as nursery:
                for store in stores:
                    nursery.start_soon(watch_store, store, ending.fail)
                await nursery.start(partial(watch_signals, steering.end, steering.reload))
                for service in services:
                    await nursery.start(service.run)
                ending.readiness.begin()
                ending.runtime.observer.report(Started(configuration=loaded.source))
        admin.close()
