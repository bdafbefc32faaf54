"""The parts of `serve`: the open namespaces, the broker that clients see, and the services."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.assembly.interceptors import Interception
from gateway.app.assembly.late_setup import BacklogSetup, LateSetup
from gateway.app.assembly.pairs import (
    PairInputs,
    make_gauge,
    make_heartbeats,
    make_pair,
    make_redrive,
    make_syphons,
    peers_of,
    spool_queue,
)
from gateway.app.assembly.wrappers import Wrapping, wrapped
from gateway.app.certificates import CertificateWatch
from gateway.app.entities import make_entities
from gateway.app.failure import Failure
from gateway.app.identities import find_destination, note_or_tell, refuse_confusion
from gateway.app.namespaces import Sides, check_credentials, enter, is_own
from gateway.app.operations.control_calls import Executors, of_backlog, of_control, of_drills
from gateway.app.process_control import ProcessControl
from gateway.app.runtime import Runtime
from gateway.app.spooling import SpoolGauge, enter_spool
from gateway.app.status.sections import DRILL, ORDER
from gateway.capabilities import Visibility
from gateway.config.kinds import Adapter
from gateway.config.options import SERVE, STORAGE_QUEUE, Config, Namespace, Pairing
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import Doubtful
from gateway.domain.status.process import Workers
from gateway.domain.status.sections import Readings
from gateway.extensions.announcements.streams import Announcements
from gateway.extensions.announcements.trigger_topic import TopicAnnouncer
from gateway.extensions.claims.broker import ClaimedBroker
from gateway.extensions.claims.packing import PackedBroker
from gateway.extensions.cluster.cluster import Cluster
from gateway.extensions.cluster.making import make_cluster
from gateway.extensions.sharding.assembly import Sharding
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.frontends.admin.readiness import Readiness
from gateway.frontends.issuers import Issuers
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.frontends.refusals import Refusals
from gateway.net.clients import Clients
from gateway.pairing.control import Control
from gateway.pairing.drill.cut import Cut
from gateway.pairing.drill.drills import Drills
from gateway.pairing.pair import Pair
from gateway.pairing.provision import provision
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.purge import Purge
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Service
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.broker import LocalBroker
from gateway.store.local.hooks import LocalHooks, Recent
from gateway.store.local.visibility import LocalVisibility

ReadWorkers = Callable[[], Awaitable[Workers]]
# The spool's name among the namespaces; the configuration can't have that name.
SPOOL: Final = "(spool)"


async def no_workers() -> Workers:
    """Return no status, as the gateway is one process."""
    await trio.lowlevel.checkpoint()
    return Workers()


@attrs.frozen(kw_only=True)
class Parts:
    """The parts of a gateway except its endpoints; none of them runs yet."""

    broker: Broker
    leases: Leases
    visibility: Visibility  # of the primary, if there is a pair
    held: Visibility  # as `visibility`, without the messages that other gateways of a cluster hold
    services: Sequence[Service]
    stores: Sequence[EmbeddedBroker]  # the gateway ends if one fails
    announcements: Announcements
    refusals: Refusals
    clients: Clients
    issuers: Issuers
    namespaces: Mapping[str, Broker]  # by name, with the observer around each
    sharding: Sharding
    pair: Pair | None = None
    cluster: Cluster | None = None  # a gateway with workers has a cluster also if it is alone
    control: Control | None = None  # of the pair and its syphons; None in a worker
    drills: Drills | None = None  # of the pair; None in a worker
    cuts: Mapping[str, Cut] = attrs.field(factory=dict)  # that drills begin and end
    spool: SpoolGauge | None = None
    syphons: Sequence[Syphon] = ()
    executors: Executors = ()  # of control calls, but those of the process as a whole
    workers: ReadWorkers = no_workers  # the status of each
    sections: Readings = attrs.field(factory=dict)  # of the status
    readiness: Readiness = attrs.field(factory=Readiness)
    process: ProcessControl | None = None  # None in a worker
    certificates: CertificateWatch | None = None  # None in a worker


def make_issuers(config: Config, runtime: Runtime) -> Issuers:
    """The identity providers of a process; a service reads their keys."""
    issuers = Issuers(observer=runtime.observer, wall_clock=runtime.now)
    issuers.replace(config.issuers)
    return issuers


async def make_parts(
    stack: AsyncExitStack, config: Config, runtime: Runtime, *, adopted: Collection[str] = ()
) -> Parts:
    """
    Open the namespaces, which the stack closes, and create the parts around them.

    `adopted` are fingerprints of primaries that the pair's primary replaces.

    Raises:
        Failure: a namespace can't be opened or refuses the credentials, or no backlog queue is
            usable.
    """
    runtime = attrs.evolve(runtime, makes_stores=True)
    if config.pairing is None:
        namespace = config.home
        announcements = Announcements()
        late, hooks = list[Service](), LocalHooks(announce=announcements.publish)
        adapter = await _enter_ready(stack, namespace, runtime, late, hooks)
        interception = Interception(
            runtime=runtime,
            is_alone=True,
            announce=announcements.publish,
            announced={namespace.name, *config.shard_namespaces},
        )
        observed = interception.around(adapter, namespace)
        adapters = await enter_shards(stack, config, runtime, late, hooks)
        sharding = make_sharding(config, adapters, interception)
        keepers = {namespace.name: adapter}
        announcers = await make_announcers(stack, config, runtime, announcements, keepers)
        wrapping = Wrapping(stack=stack, config=config, runtime=runtime, sharding=sharding)
        seen, services = await wrapped(sharding.places(observed), wrapping)
        cluster = make_cluster(config, runtime)
        leases = _make_leases(config, seen, runtime, cluster)
        refusals, issuers = Refusals(runtime.observer), make_issuers(config, runtime)
        control = Control(clock=runtime.now, observer=runtime.observer, pauses=Pauses())
        visibility = make_visibility(adapter, seen, leases, runtime)
        return Parts(
            broker=seen,
            leases=leases,
            visibility=visibility if cluster is None else cluster.shown(visibility),
            held=visibility,
            cluster=cluster,
            services=[
                *([cluster] if cluster else []),
                leases,
                *services_among(visibility),
                *services,
                *sharding.services,
                *announcers,
                refusals,
                issuers,
                *late,
            ],
            stores=stores_among(adapter, *adapters.values()),
            announcements=announcements,
            refusals=refusals,
            clients=Clients(config.limits.clients),
            issuers=issuers,
            namespaces={namespace.name: observed, **sharding.others},
            sharding=sharding,
            control=control,
            executors=of_control(control),
        )
    return await _make_paired_parts(stack, config, config.pairing, runtime, adopted)


async def _make_paired_parts(
    stack: AsyncExitStack,
    config: Config,
    pairing: Pairing,
    runtime: Runtime,
    adopted: Collection[str],
) -> Parts:
    announcements, late = Announcements(), list[Service]()
    hooks = LocalHooks(announce=announcements.publish)
    of_primary = attrs.evolve(hooks, recent=Recent() if _has_storage(config) else None)
    sides = await enter_sides(stack, config, pairing, runtime, late, of_primary)
    keepers = {pairing.primary: sides.primary, pairing.secondary: sides.secondary}
    announcers = await make_announcers(stack, config, runtime, announcements, keepers)
    destination = await find_destination(config, pairing, sides.primary, runtime, adopted=adopted)
    await refuse_confusion(config, pairing, sides.secondary, destination, runtime)
    note = partial(note_or_tell, config, pairing, sides.secondary, destination, runtime)
    drills = Drills(
        clock=runtime.now,
        observer=runtime.observer,
        cuts=make_cuts(config, pairing),
        longest=config.drill.max_duration,
    )
    interception = Interception(
        runtime=runtime,
        cuts=drills.cuts,
        announce=announcements.publish,
        announced={pairing.primary, *config.shard_namespaces},
    )
    observed = intercepted(sides, config, pairing, interception)
    adapters = await enter_shards(stack, config, runtime, late, hooks)
    sharding = make_sharding(config, adapters, interception)
    placed = attrs.evolve(observed, primary=sharding.places(observed.primary))
    gauge = make_gauge(pairing, sides, runtime)
    setup = BacklogSetup(
        secondary=sides.secondary, pairing=pairing, observer=runtime.observer, note=note
    )
    cluster = make_cluster(config, runtime)
    inputs = PairInputs(
        sides=placed,
        destination=destination,
        setup=setup,
        gauge=gauge,
        peers=peers_of(config, cluster),
    )
    pair = await make_pair(pairing, inputs, runtime)
    wrapping = Wrapping(
        stack=stack,
        config=config,
        runtime=runtime,
        sharding=sharding,
        pair=pair,
        namespaces=[placed.primary, placed.secondary],
    )
    seen, services = await wrapped(pair.broker, wrapping)
    leases = _make_leases(config, seen, runtime, cluster)
    visibility = make_visibility(sides.primary, seen, leases, runtime)
    refusals, issuers = Refusals(runtime.observer), make_issuers(config, runtime)
    syphons = make_syphons(pairing, placed, runtime, pair, gauge)
    heartbeats = list[Service]()
    if pairing.enable_syphon:
        heartbeats = make_heartbeats(pairing, sides.secondary, runtime, pair.pauses, process=SERVE)
    control = Control(
        clock=runtime.now,
        observer=runtime.observer,
        pauses=pair.pauses,
        syphons=syphons,
        states=pair.states,
        entity_cache=pair.entity_cache,
        prober=pair.prober,
    )
    return Parts(
        broker=seen,
        leases=leases,
        visibility=visibility if cluster is None else cluster.shown(visibility),
        held=visibility,
        cluster=cluster,
        services=[
            pair,
            *([cluster] if cluster else []),
            control,
            drills,
            leases,
            *services_among(visibility),
            *syphons,
            *heartbeats,
            *services,
            *sharding.services,
            *announcers,
            refusals,
            issuers,
            *late,
        ],
        stores=stores_among(sides.primary, sides.secondary, sides.spool, *adapters.values()),
        announcements=announcements,
        refusals=refusals,
        clients=Clients(config.limits.clients),
        issuers=issuers,
        namespaces={
            pairing.primary: observed.primary,
            pairing.secondary: observed.secondary,
            **sharding.others,
        },
        sharding=sharding,
        pair=pair,
        control=control,
        drills=drills,
        sections={DRILL: lambda: drills.drill, ORDER: pair.order_status},
        cuts=drills.cuts,
        spool=gauge,
        syphons=syphons,
        executors=[
            *of_control(control),
            *of_drills(drills),
            *of_backlog(
                Purge(
                    source=sides.secondary,
                    label=pairing.options.label,
                    clock=runtime.now,
                    observer=runtime.observer,
                ),
                make_redrive(pairing, sides.secondary, runtime),
                make_redrive(pairing, sides.spool, runtime) if sides.spool else None,
            ),
        ],
    )


def _make_leases(config: Config, seen: Broker, runtime: Runtime, cluster: Cluster | None) -> Leases:
    elsewhere = None if cluster is None else cluster.peers
    return Leases(seen, runtime.now, config.limits.leases, elsewhere)


def make_cuts(config: Config, pairing: Pairing) -> Mapping[str, Cut]:
    """
    The ways that a drill can cut, by namespace, the primary first; none if drills aren't allowed.
    """
    names = (pairing.primary, pairing.secondary) if config.drill.allowed else ()
    return {name: Cut() for name in names}


def intercepted(
    sides: Sides, config: Config, pairing: Pairing, interception: Interception
) -> Sides:
    """The same namespaces, with their interceptors."""
    return attrs.evolve(
        sides,
        primary=interception.around(sides.primary, config.namespaces[pairing.primary]),
        secondary=interception.around(sides.secondary, config.namespaces[pairing.secondary]),
    )


async def make_announcers(
    stack: AsyncExitStack,
    config: Config,
    runtime: Runtime,
    announcements: Announcements | None,
    opened: Mapping[str, Broker],
) -> list[Service]:
    """
    Services that send the announcements to the topic of `[triggers]`, directly to its namespace,
    whether or not that is among `opened`: triggers are never diverted. None without announcements.

    Raises:
        Failure: that namespace can't be opened, or refuses the credentials.
    """
    await trio.lowlevel.checkpoint()
    triggers = config.triggers
    if triggers is None or announcements is None:
        return []
    name = triggers.namespace or config.home.name
    late = list[Service]()
    keeper = opened.get(name)
    if keeper is None:
        keeper = await _enter_ready(stack, config.namespaces[name], runtime, late)
    announcer = TopicAnnouncer(
        broker=keeper,
        topic=EntityPath(triggers.topic),
        announcements=announcements,
        window=triggers.window,
        time_to_live=triggers.time_to_live,
        observer=runtime.observer,
        rng=runtime.rng("announcer"),
    )
    return [announcer, *late]


async def enter_shards(
    stack: AsyncExitStack,
    config: Config,
    runtime: Runtime,
    late: list[Service],
    hooks: LocalHooks,
) -> dict[str, Broker]:
    """
    The namespaces that have shards, besides the primary, opened as the primary is.

    Raises:
        Failure: a namespace can't be opened, or refuses the credentials.
    """
    await trio.lowlevel.checkpoint()
    found = dict[str, Broker]()
    for name in config.shard_namespaces:
        found[name] = await _enter_ready(stack, config.namespaces[name], runtime, late, hooks)
    return found


def make_sharding(
    config: Config,
    adapters: Mapping[str, Broker],
    interception: Interception,
    *,
    watches_drains: bool = True,
) -> Sharding:
    """
    The sharded queues. `adapters` are the open namespaces that have shards, besides the primary.
    """
    runtime = interception.runtime
    others = {
        name: interception.around(adapter, config.namespaces[name])
        for name, adapter in adapters.items()
    }
    return Sharding(
        rules=config.sharding,
        others=others,
        clock=runtime.now,
        rng=runtime.rng("sharding"),
        observer=runtime.observer,
        watches_drains=watches_drains,
    )


def make_visibility(
    namespace: Broker, seen: Broker, leases: Leases, runtime: Runtime
) -> LocalVisibility | LeasedVisibility:
    """
    The `Visibility` for that namespace; `seen` is the broker that clients see.

    With shards, claim check or packing, the namespace's own messages aren't those that clients see.
    """
    changed = isinstance(seen, ShardedBroker | ClaimedBroker | PackedBroker)
    if isinstance(namespace, LocalBroker) and not changed:
        return LocalVisibility(namespace)
    return LeasedVisibility(seen, leases, runtime.now, runtime.observer)


def _has_storage(config: Config) -> bool:
    return any(endpoint.protocol == STORAGE_QUEUE for endpoint in config.endpoints)


def services_among(visibility: LocalVisibility | LeasedVisibility) -> list[Service]:
    return [visibility] if isinstance(visibility, LeasedVisibility) else []


async def enter_sides(
    stack: AsyncExitStack,
    config: Config,
    pairing: Pairing,
    runtime: Runtime,
    late: list[Service],
    hooks: LocalHooks,
) -> Sides:
    """
    Open both namespaces and the spool; `hooks` are the primary's. Embedded ones get their missing
    queues now, the others as soon as they answer, by services that are added to `late`.

    Raises:
        Failure: a namespace can't be opened, or refuses the credentials.
    """
    primary = await _enter_ready(stack, config.namespaces[pairing.primary], runtime, late, hooks)
    namespace = config.namespaces[pairing.secondary]
    secondary = await _enter_ready(stack, namespace, runtime, late)
    if is_own(namespace):
        try:
            await provision(
                secondary,
                pairing.options.label,
                pairing.options.backlog_queues,
                backlog.properties(legacy=pairing.accept_legacy_backlog),
                ordered=bool(pairing.options.ordered),
                leases=pairing.options.has_order_leases,
            )
        except BrokerError as error:
            raise _not_made(namespace, error) from error
    spool: Adapter | None = None
    if pairing.spool is not None:
        namespace = spool_namespace(pairing.spool)
        spool = await enter_spool(stack, namespace, spool_queue(pairing), runtime, late)
    return Sides(primary=primary, secondary=secondary, spool=spool)


def spool_namespace(file: Path) -> Namespace:
    return Namespace(name=SPOOL, url=f"embedded:{file}")


async def _enter_ready(
    stack: AsyncExitStack,
    namespace: Namespace,
    runtime: Runtime,
    late: list[Service],
    hooks: LocalHooks | None = None,
) -> Adapter:
    adapter = await enter(stack, namespace, runtime, hooks)
    if not is_own(namespace):
        doubt = await check_credentials(adapter, namespace)
        if doubt is not None:
            runtime.observer.report(Doubtful(text=f"namespace {namespace.name}: {doubt}"))
            late.append(
                LateSetup(
                    broker=adapter,
                    namespace=namespace,
                    observer=runtime.observer,
                    rng=runtime.rng(f"late setup of {namespace.name}"),
                )
            )
        return adapter
    try:
        await make_entities(adapter, namespace.plan)
    except BrokerError as error:
        raise _not_made(namespace, error) from error
    return adapter


def _not_made(namespace: Namespace, error: BrokerError) -> Failure:
    return Failure(f"namespace {namespace.name}: its entities can't be created: {error}")


def stores_among(*adapters: Broker | None) -> list[EmbeddedBroker]:
    """The adapters with a store of their own, which may fail for good."""
    return [adapter for adapter in adapters if isinstance(adapter, EmbeddedBroker)]
