"""
Puts the parts of a gateway's process together, in stages. Each needs only those before it.

    namespaces     as the role opens them: `opening`
    interceptors   around each namespace: `interceptors`
    home           the primary, or the only namespace, with wrappers of its own
    pair           of two namespaces: `pairs`. Without it the only namespace is in its place
    wrappers       between that and the clients: `wrappers`
    clients' view  what front ends need besides the broker
    operators      what their calls reach; a worker has none
    services       what runs, by role: `services`

A worker is a role whose stores its parent has opened, and which leaves to the parent what a gateway
needs once (`Role.leads`).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial, reduce
from typing import TYPE_CHECKING

import attrs
import trio

from gateway.app.assembly.interceptors import Interception
from gateway.app.assembly.late_setup import BacklogSetup
from gateway.app.assembly.opening import Opened, SettingUp, open_namespaces
from gateway.app.assembly.others import Others
from gateway.app.assembly.pairs import (
    PairInputs,
    known_entities,
    make_envelope,
    make_gauge,
    make_pair,
    make_syphons,
)
from gateway.app.assembly.parts import (
    Parts,
    ProcessPlan,
    executors_of_opened,
    make_features,
    make_issuers,
)
from gateway.app.assembly.records import RecordParts, make_records
from gateway.app.assembly.roles import Role
from gateway.app.assembly.wrapper_rows import Wrapping
from gateway.app.assembly.wrappers import home_wrappers, wrapped, wrappers
from gateway.app.identities import find_destination, record_or_report_owner, refuse_confusion
from gateway.app.namespaces import Sides
from gateway.app.operations.control_calls import of_control
from gateway.app.runtime import Runtime
from gateway.app.spooling import SpoolGauge
from gateway.config.endpoints import RABBITMQ, STORAGE_QUEUE
from gateway.config.options import Config
from gateway.frontends.admin.announcements import Announcements
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.frontends.leasing import Leasing
from gateway.frontends.refusals import Refusals
from gateway.net.clients import Clients
from gateway.pairing.additions import PairPeers
from gateway.pairing.control import Control
from gateway.pairing.gathering import GatheringBroker
from gateway.pairing.pair import Pair
from gateway.pairing.syphon.pauses import Pauses
from gateway.ports import Broker
from gateway.store.local.broker import LocalBroker
from gateway.store.local.hooks import LocalHooks, Recent
from gateway.store.local.visibility import LocalVisibility

if TYPE_CHECKING:
    from gateway.frontends.rabbitmq.topology_file import TopologyFile
    from gateway.frontends.rabbitmq_broker.upkeep import QueueUpkeep


async def make_parts(
    stack: AsyncExitStack,
    config: Config,
    runtime: Runtime,
    *,
    others: Others | None = None,
    adopted: Collection[str] = (),
) -> Parts:
    """
    The parts of a gateway, as `build` makes them; what its namespaces lack is created. `adopted`
    are fingerprints of primaries that the pair's primary replaces.
    """
    runtime = attrs.evolve(runtime, makes_stores=True)
    plan = ProcessPlan(
        role=Role.ALONE if config.serving_processes == 1 else Role.PARENT,
        stack=stack,
        config=config,
        runtime=runtime,
        opening=SettingUp(stack, runtime),
        others=others or Others(),
        adopted=adopted,
    )
    return await build(plan)


async def build(plan: ProcessPlan) -> Parts:
    """
    Open the namespaces, which the plan's stack closes, and create the parts around them.

    Raises:
        Failure: a namespace can't be opened or refuses the credentials, or no backlog queue is
            usable.
    """
    config, leads = plan.config, plan.role.leads
    announcements = Announcements()
    opened = await _open(plan, announcements)

    features = make_features(plan)
    interception = Interception(
        config=config,
        runtime=plan.runtime,
        is_alone=config.pairing is None,
        features=features,
        announce=announcements.publish,
        announced=plan.opening.announced_here(config),
    )
    namespaces = interception.around_all(opened.by_name)

    wrapping = Wrapping(
        stack=plan.stack,
        config=config,
        runtime=plan.runtime,
        namespaces=namespaces,
        leads=leads,
    )
    home, for_home = await wrapped(namespaces[config.home.name], wrapping, home_wrappers())

    paired = await _make_pair(plan, opened, namespaces, home)
    inner = home if paired.pair is None else paired.pair.broker

    around = attrs.evolve(wrapping, home=home, pair=paired.pair, both=paired.both)
    seen, for_wrappers = await wrapped(inner, around, wrappers())

    others = plan.others
    own = Leases(
        seen, plan.runtime.now, config.limits.leases, others.new_token(), others.client_tokens()
    )
    leases = others.leases(own)
    # A wrapper may lead to other namespaces, too.
    namespace = opened.home if home is namespaces[config.home.name] else home
    held = make_visibility(plan.runtime, namespace, seen, leases, inner)
    visibility = plan.others.visibility(held)
    topology = _make_topology(plan) if leads else None
    parts = Parts(
        plan=plan,
        opened=opened,
        announcements=announcements,
        namespaces=namespaces,
        pair=paired.pair,
        spool=paired.gauge,
        topology=topology,
        upkeep=None if topology is None else _make_upkeep(plan, seen, topology),
        features=features,
        broker=seen,
        for_wrappers=[*for_wrappers, *for_home],
        leases=leases,
        own_leases=own,
        held=held,
        visibility=reduce(lambda own, each: each.visibility(own), features.values(), visibility),
        numbers_puts=isinstance(visibility, LocalVisibility),
        refusals=Refusals(plan.runtime.observer),
        clients=Clients(config.limits.clients),
        issuers=make_issuers(config, plan.runtime),
    )
    return _with_features(_with_operators(parts, paired)) if leads else parts


def _make_topology(plan: ProcessPlan) -> "TopologyFile | None":
    """The declarations of RabbitMQ's clients, also from before a restart."""
    config = plan.config
    folder = config.kept_queues
    if folder is None or all(each.protocol != RABBITMQ for each in config.endpoints):
        return None
    # The codec of RabbitMQ, which only this endpoint needs here.
    from gateway.frontends.rabbitmq.known_topology import KnownTopology
    from gateway.frontends.rabbitmq.topology_file import AT_ONCE, EVERY, NAME, OWN, TopologyFile

    is_wire = config.is_home_rabbitmq
    topology = TopologyFile(
        path=folder / (NAME if is_wire else OWN),
        known=KnownTopology(),
        observer=plan.runtime.observer,
        every=EVERY if is_wire else AT_ONCE,
    )
    topology.restore()
    return topology


def _make_upkeep(
    plan: ProcessPlan, broker: Broker, topology: "TopologyFile"
) -> "QueueUpkeep | None":
    """The queues of RabbitMQ's clients in a namespace that isn't RabbitMQ's."""
    config = plan.config
    if config.is_home_rabbitmq:
        return None
    from gateway.frontends.rabbitmq_broker.routed_sends import RoutedSends
    from gateway.frontends.rabbitmq_broker.upkeep import QueueUpkeep
    from gateway.frontends.rabbitmq_broker.vhost import ServedVhost

    vhost = ServedVhost(broker=broker, known=topology.known, flush=topology.flush)
    sends = RoutedSends(vhost=vhost, timeout=config.limits.amqp.send_timeout)
    return QueueUpkeep(vhost=vhost, sends=sends, wall_clock=plan.runtime.now)


async def _open(plan: ProcessPlan, announcements: Announcements) -> Opened:
    config, hooks = plan.config, LocalHooks(announce=announcements.publish)
    has_storage = any(each.protocol == STORAGE_QUEUE for each in config.endpoints)
    recent = Recent() if config.pairing is not None and has_storage else None
    of_home = attrs.evolve(hooks, recent=recent)
    return await open_namespaces(plan.opening, config, config.home, hooks, of_home)


@attrs.frozen
class _Paired:
    """The pair, and what belongs to it; nothing without `[pairing]`."""

    pair: Pair | None = None
    sides: Sides | None = None
    gauge: SpoolGauge | None = None
    records: RecordParts | None = None

    @property
    def both(self) -> Sequence[Broker]:
        return [] if self.sides is None else [self.sides.primary, self.sides.secondary]


async def _make_pair(
    plan: ProcessPlan, opened: Opened, namespaces: Mapping[str, Broker], primary: Broker
) -> _Paired:
    config, pairing, runtime = plan.config, plan.config.pairing, plan.runtime
    if pairing is None or opened.secondary is None:
        return _Paired()
    secondary = opened.secondary
    sides = Sides(primary=primary, secondary=namespaces[pairing.secondary], spool=opened.spool)
    destination = await find_destination(
        config, pairing, opened.home, runtime, adopted=plan.adopted
    )
    destination.restore(plan.identity)
    note: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint  # the parent stores it
    if plan.role.leads:
        await refuse_confusion(config, pairing, secondary, destination, runtime)
        note = partial(record_or_report_owner, config, pairing, secondary, destination, runtime)
    gauge = make_gauge(pairing, sides, runtime)
    envelope = make_envelope(pairing, pairing.options.label, runtime)
    records = make_records(pairing, envelope, secondary, runtime, plan.role)
    inputs = PairInputs(
        sides=sides,
        destination=destination,
        setup=BacklogSetup(
            secondary=secondary, pairing=pairing, observer=runtime.observer, note=note
        ),
        gauge=gauge,
        records=records,
        peers=plan.others.peers() if plan.role.leads else PairPeers(),
    )
    pair = await make_pair(pairing, inputs, runtime)
    if not plan.role.leads:
        pair = attrs.evolve(pair, state=None, orphans=None, sampler=None)
    return _Paired(pair, sides, gauge, records)


def make_visibility(
    runtime: Runtime, namespace: Broker, seen: Broker, leases: Leasing, inner: Broker
) -> LocalVisibility | LeasedVisibility:
    """
    The `Visibility` for that namespace; `seen` is the broker that clients see, and `inner` that
    which the wrappers are around.
    """
    # Other wrappers change messages or queues: the namespace's own aren't those that clients see.
    is_unchanged = seen is inner or isinstance(seen, GatheringBroker)
    if isinstance(namespace, LocalBroker) and is_unchanged:
        return LocalVisibility(namespace)
    return LeasedVisibility(seen, leases, runtime.now, runtime.observer)


def _with_operators(parts: Parts, paired: _Paired) -> Parts:
    """The parts with those that operators control; all calls execute in this process."""
    runtime, pairing, pair = parts.plan.runtime, parts.plan.config.pairing, paired.pair
    if pairing is None or pair is None or paired.sides is None:
        control = Control(clock=runtime.now, observer=runtime.observer, pauses=Pauses())
        return attrs.evolve(parts, control=control, executors=of_control(control))
    syphons = make_syphons(pairing, paired.sides, runtime, pair, paired.gauge)
    control = Control(
        clock=runtime.now,
        observer=runtime.observer,
        pauses=pair.pauses,
        syphons=syphons,
        states=pair.states,
        entity_cache=pair.entity_cache,
        prober=pair.prober,
        book=pair.book,
        known=known_entities(parts.plan.config, parts.opened.home),
        reader=None if paired.records is None else paired.records.reader,
    )
    return attrs.evolve(
        parts,
        syphons=syphons,
        control=control,
        records=paired.records,
        sections=pair.sections,
        executors=of_control(control),
    )


def _with_features(parts: Parts) -> Parts:
    """The parts with those of their features that operators see and control."""
    sections = dict(parts.sections)
    executors = [*parts.executors, *executors_of_opened(parts)]
    for feature in parts.features.values():
        sections |= feature.readings()
        executors += feature.executors(parts)
    return attrs.evolve(parts, sections=sections, executors=executors)
