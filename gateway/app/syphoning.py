"""
`pairgate syphon`: a syphon as its own process, beside the gateways or to empty a backlog elsewhere.
"""

from collections.abc import Collection
from contextlib import AsyncExitStack

import attrs
import trio

from gateway.app.assembly.interceptors import Interception
from gateway.app.assembly.opening import Opening, open_namespaces
from gateway.app.assembly.pairs import known_entities, make_envelope, renew_envelopes
from gateway.app.assembly.parts import ProcessParts, ProcessPlan, executors_of_opened
from gateway.app.assembly.records import make_records
from gateway.app.assembly.roles import Role
from gateway.app.assembly.services import services_of
from gateway.app.assembly.wrapper_rows import Wrapping
from gateway.app.assembly.wrappers import home_wrappers, wrapped
from gateway.app.failure import ExitCode, Failure
from gateway.app.identities import find_destination
from gateway.app.logs import Reloader
from gateway.app.process import SignalWatch, collect_seldom
from gateway.app.process_admin import ProcessAdmin
from gateway.app.process_control import ProcessControl, ReloadFollower
from gateway.app.runtime import Runtime
from gateway.app.serving import watch_store
from gateway.app.status.board import LoneSyphon, StatusBoard
from gateway.app.status.sections import readings
from gateway.app.waking import needs_no_gateway
from gateway.config.endpoints import SYPHON
from gateway.config.file import Loaded
from gateway.config.options import Config, Pairing
from gateway.config.problems import no_namespace
from gateway.domain.events.gateway import Doubtful, Draining, Started
from gateway.domain.operators.process import Workload
from gateway.frontends.admin.announcements import Announcements
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.frontends.refusals import Refusals
from gateway.pairing.control import Control
from gateway.pairing.provision import backlog_paths
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker
from gateway.store.local.hooks import LocalHooks
from gateway.telemetry.watch import CountingMoves


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
    pairing, target = _find_target(loaded, to)
    for warning in loaded.warnings:
        runtime.observer.report(Doubtful(text=warning))
    async with AsyncExitStack() as stack:
        parts, primary = await _make_parts(stack, loaded.config, runtime, target)
        destination = await find_destination(
            loaded.config, pairing, parts.namespaces[target], runtime, adopted=adopted, name=to
        )
        label = label or pairing.options.label
        envelope = make_envelope(pairing, label, runtime, makes_key=runtime.makes_stores)
        secondary = parts.opened.by_name[pairing.secondary]
        records = make_records(pairing, envelope, secondary, runtime, Role.SYPHON)
        is_own = label == pairing.options.label
        service = Syphon(
            primary=primary,
            source=parts.namespaces[pairing.secondary],
            label=label,
            options=pairing.syphon,
            envelope=envelope,
            clock=runtime.now,
            rng=runtime.rng("syphon"),
            observer=CountingMoves(runtime.observer, runtime.now),
            named=backlog_paths(pairing.options) if is_own else None,
            destination=destination,
            model=runtime.observer.backlog,
        )
        # Orders are about the primary: a syphon to elsewhere follows none.
        follows = records is not None and target == pairing.primary
        control = Control(
            clock=runtime.now,
            observer=runtime.observer,
            pauses=service.pauses,
            syphons=[service],
            known=known_entities(loaded.config, parts.opened.home),
            book=records.book if records is not None and follows else None,
            reader=None if records is None else records.reader,
        )
        parts = attrs.evolve(parts, syphons=[service], control=control, records=records)
        ending = SyphonShutdown(runtime)
        admin = _make_admin(parts, ending, service, reloader)
        await admin.open(stack)
        collect_seldom()
        await _run(parts, ending, admin, loaded)
    if ending.failure is not None:
        raise ending.failure


async def _make_parts(
    stack: AsyncExitStack, config: Config, runtime: Runtime, target: str
) -> tuple[ProcessParts, Broker]:
    """The first three stages of `assembly.building`, and the namespace `target` with wrappers."""
    is_home = target == config.home.name
    announcements = Announcements() if is_home and needs_no_gateway(config) else None
    publish = None if announcements is None else announcements.publish
    opening = Opening(stack, runtime)
    opened = await open_namespaces(
        opening, config, config.namespaces[target], LocalHooks(announce=publish)
    )
    interception = Interception(
        config=config, runtime=runtime, announce=publish, announced=opening.announced_here(config)
    )
    namespaces = interception.around_all(opened.by_name)
    wrapping = Wrapping(
        stack=stack, config=config, runtime=runtime, namespaces=namespaces, leads=False
    )
    rows = home_wrappers() if is_home else ()
    primary, for_wrappers = await wrapped(namespaces[target], wrapping, rows)
    parts = ProcessParts(
        plan=ProcessPlan(
            role=Role.SYPHON, stack=stack, config=config, runtime=runtime, opening=opening
        ),
        opened=opened,
        announcements=announcements,
        namespaces=namespaces,
        for_wrappers=for_wrappers,
    )
    return parts, primary


@attrs.define(eq=False)
class SyphonShutdown:
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
    parts: ProcessParts, ending: SyphonShutdown, syphon: Syphon, reloader: Reloader | None
) -> ProcessAdmin:
    """The endpoints `admin` of the syphon's process; none is open yet."""
    config, runtime = parts.plan.config, ending.runtime
    board = StatusBoard(
        config=config,
        runtime=runtime,
        refusals=Refusals(runtime.observer),
        sections=readings(),
        syphon=LoneSyphon(
            syphon=syphon, depth=syphon.depth, namespaces=parts.namespaces, records=parts.records
        ),
    )

    def apply(fresh: Loaded) -> None:
        renew_envelopes(fresh.config, runtime)
        parts.reload(config, fresh.config)

    steering = ProcessControl(
        observer=runtime.observer,
        readiness=ending.readiness,
        ask_end=ending.ask,
        work=ending.work,
        reloader=reloader,
        place="" if parts.records is None else parts.records.place,
        book=None if parts.records is None else parts.records.book,
    )
    steering.on_reload(apply)
    assert parts.control is not None, "made before"
    return ProcessAdmin(
        process=SYPHON,
        board=board,
        control=parts.control,
        steering=steering,
        executors=executors_of_opened(parts),
    )


async def _run(
    parts: ProcessParts, ending: SyphonShutdown, admin: ProcessAdmin, loaded: Loaded
) -> None:
    steering, services = admin.steering, await services_of(Role.SYPHON, parts)
    async with trio.open_nursery() as operators:
        await operators.start(admin.run)
        with ending.scope:
            async with trio.open_nursery() as nursery:
                for store in parts.opened.stores:
                    nursery.start_soon(watch_store, store, ending.fail)
                await nursery.start(SignalWatch(steering.drain, steering.reload).run)
                await nursery.start(ReloadFollower(steering).run)
                for service in services:
                    await nursery.start(service.run)
                ending.readiness.begin()
                ending.runtime.observer.report(Started(configuration=loaded.source))
        admin.close()
