"""
The parts of a worker: those of `gateway/app/assembly/parts.py` without the parts that the parent
runs for all.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import trio

from gateway.app.assembly.interceptors import Interception
from gateway.app.assembly.late_setup import BacklogSetup
from gateway.app.assembly.pairs import PairInputs, make_gauge, make_pair
from gateway.app.assembly.parts import (
    Parts,
    intercepted,
    make_cuts,
    make_issuers,
    make_sharding,
    make_visibility,
    spool_namespace,
)
from gateway.app.assembly.wrappers import Wrapping, wrapped
from gateway.app.identities import find_destination
from gateway.app.namespaces import Sides, enter
from gateway.app.runtime import Runtime
from gateway.app.spooling import SpoolGauge
from gateway.app.workers.stores import enter_store
from gateway.config.kinds import Adapter
from gateway.config.options import Config, Namespace, Pairing
from gateway.domain.identity import Identity
from gateway.extensions.announcements.streams import Announcements
from gateway.extensions.cluster.cluster import Cluster
from gateway.extensions.sharding.assembly import Sharding
from gateway.frontends.leases import Leases
from gateway.frontends.refusals import Refusals
from gateway.net.clients import Clients
from gateway.pairing.drill.cut import Cut
from gateway.pairing.pair import Pair
from gateway.ports import Broker, Service


async def make_parts(
    stack: AsyncExitStack,
    config: Config,
    runtime: Runtime,
    identity: Identity | None,
    stores: Mapping[str, Path],
    cluster: Cluster,
) -> Parts:
    """
    Open the namespaces, which the stack closes, and create the parts around them.

    The parent has set up the namespaces, or does so later where a namespace doesn't answer; it runs
    the syphons, the collector of bodies and the announcer. `identity` is the primary's, as the
    parent knows it; `stores` are the sockets of its stores, by their names. `cluster` has the
    processes of this gateway.

    Raises:
        Failure: a namespace can't be opened, or no backlog queue is usable.
    """
    await trio.lowlevel.checkpoint()
    announcements, home, pairing = Announcements(), config.home, config.pairing
    adapter = await _enter(stack, home, runtime, stores)
    pair, gauge, services = None, None, list[Service]()
    cuts: Mapping[str, Cut] = {} if pairing is None else make_cuts(config, pairing)
    interception = Interception(
        runtime=runtime,
        is_alone=pairing is None,
        cuts=cuts,
        announce=announcements.publish,
        # A store announces its new messages by itself, in the parent.
        announced={home.name, *config.shard_namespaces}.difference(stores),
    )
    sharding = await _enter_shards(stack, config, stores, interception)
    if pairing is None:
        namespaces: dict[str, Broker] = {home.name: interception.around(adapter, home)}
        broker = sharding.places(namespaces[home.name])
        both: Sequence[Broker] = ()
    else:
        space = config.namespaces[pairing.secondary]
        sides = Sides(primary=adapter, secondary=await _enter(stack, space, runtime, stores))
        sides = intercepted(sides, config, pairing, interception)
        namespaces = {home.name: sides.primary, space.name: sides.secondary}
        if pairing.spool is not None:
            spool = spool_namespace(pairing.spool)
            sides = attrs.evolve(sides, spool=await _enter(stack, spool, runtime, stores))
        sides = attrs.evolve(sides, primary=sharding.places(sides.primary))
        gauge = make_gauge(pairing, sides, runtime)
        pair = await _make_pair(config, pairing, sides, runtime, (identity, gauge))
        both = [sides.primary, sides.secondary]
        broker, services = pair.broker, [pair]
    wrapping = Wrapping(
        stack=stack,
        config=config,
        runtime=runtime,
        sharding=sharding,
        pair=pair,
        namespaces=both,
        collects=False,
    )
    shown, further = await wrapped(broker, wrapping)
    leases = Leases(shown, runtime.now, config.limits.leases, cluster.peers)
    refusals, issuers = Refusals(runtime.observer), make_issuers(config, runtime)
    visibility = make_visibility(adapter, shown, leases, runtime)
    return Parts(
        broker=shown,
        leases=leases,
        visibility=visibility,
        held=visibility,
        cluster=cluster,
        services=[*services, cluster, *sharding.services, leases, *further, refusals, issuers],
        stores=(),
        announcements=announcements,
        refusals=refusals,
        clients=Clients(config.limits.clients),
        issuers=issuers,
        namespaces={**namespaces, **sharding.others},
        sharding=sharding,
        pair=pair,
        cuts=cuts,
        spool=gauge,
    )


async def _enter_shards(
    stack: AsyncExitStack,
    config: Config,
    stores: Mapping[str, Path],
    interception: Interception,
) -> Sharding:
    """The shards. The namespaces with shards, besides the primary, are opened as the primary is."""
    await trio.lowlevel.checkpoint()
    found = dict[str, Broker]()
    for name in config.shard_namespaces:
        namespace = config.namespaces[name]
        found[name] = await _enter(stack, namespace, interception.runtime, stores)
    return make_sharding(config, found, interception, watches_drains=False)


async def _enter(
    stack: AsyncExitStack, namespace: Namespace, runtime: Runtime, stores: Mapping[str, Path]
) -> Adapter:
    if namespace.name in stores:
        return await enter_store(stack, namespace, stores[namespace.name], runtime)
    return await enter(stack, namespace, runtime)


async def _make_pair(
    config: Config,
    pairing: Pairing,
    sides: Sides,
    runtime: Runtime,
    known: tuple[Identity | None, SpoolGauge | None],
) -> Pair:
    identity, gauge = known
    destination = await find_destination(config, pairing, sides.primary, runtime)
    destination.restore(identity)
    setup = BacklogSetup(
        secondary=sides.secondary,
        pairing=pairing,
        observer=runtime.observer,
        note=trio.lowlevel.checkpoint,
    )
    inputs = PairInputs(sides=sides, destination=destination, setup=setup, gauge=gauge)
    pair = await make_pair(pairing, inputs, runtime)
    return attrs.evolve(pair, state=None, orphans=None, sampler=None)  # the parent has these parts
