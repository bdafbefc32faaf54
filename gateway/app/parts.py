"""What `serve` is made of: the open namespaces, the broker that clients see, and the services."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from gateway.app.claiming import with_claims
from gateway.app.entities import make_entities
from gateway.app.failure import Failure
from gateway.app.namespaces import (
    Sides,
    check_credentials,
    enter,
    is_own,
)
from gateway.app.outside import Outside
from gateway.app.pairs import make_pair, make_syphons, spool_queue
from gateway.app.trigger_topic import TopicAnnouncer
from gateway.brokers.embedded.broker import EmbeddedBroker
from gateway.brokers.local import LocalBroker
from gateway.brokers.local_visibility import LocalVisibility
from gateway.brokers.recent import Recent
from gateway.brokers.registry import Adapter
from gateway.capabilities import Visibility
from gateway.claims.broker import ClaimedBroker
from gateway.claims.packing import PackedBroker
from gateway.config.options import STORAGE_QUEUE, Config, Namespace, Pairing
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityExists
from gateway.domain.events import Doubtful
from gateway.frontends.announcements import Announcements
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.listener.announcing import Announcing
from gateway.pairing.pair import Pair
from gateway.pairing.provision import provision
from gateway.pairing.syphon import Syphon
from gateway.ports import Broker, Service

SPOOL: Final = "(spool)"  # its name among the namespaces: nobody's of the file


@attrs.frozen(kw_only=True)
class Parts:
    """All of one gateway but its endpoints; nothing of it runs yet."""

    broker: Broker
    leases: Leases
    visibility: Visibility  # of the primary, where there is a pair
    services: Sequence[Service]
    stores: Sequence[EmbeddedBroker]  # a failed one ends the gateway
    announcements: Announcements
    pair: Pair | None = None
    syphons: Sequence[Syphon] = ()


async def make_parts(stack: AsyncExitStack, config: Config, outside: Outside) -> Parts:
    """
    Open the namespaces, which the stack closes, and put the parts around them.

    Raises:
        Failure: a namespace can't be opened or refuses the credentials, or no backlog is usable.
    """
    if config.pairing is None:
        namespace = config.home
        announcements = Announcements()
        adapter = announced(await _enter_ready(stack, namespace, outside), announcements)
        keepers = {namespace.name: adapter}
        announcers = await make_announcers(stack, config, outside, announcements, keepers)
        seen, services = await with_claims(stack, config, adapter, outside)
        leases = Leases(seen, outside.now, config.limits.leases)
        visibility = _visibility(adapter, seen, leases, outside)
        return Parts(
            broker=seen,
            leases=leases,
            visibility=visibility,
            services=[leases, *_services_among(visibility), *services, *announcers],
            stores=stores_among(adapter),
            announcements=announcements,
        )
    return await _make_paired_parts(stack, config, config.pairing, outside)


async def _make_paired_parts(
    stack: AsyncExitStack, config: Config, pairing: Pairing, outside: Outside
) -> Parts:
    announcements = Announcements()
    sides = await enter_sides(stack, config, pairing, outside)
    sides = attrs.evolve(sides, primary=announced(sides.primary, announcements))
    keepers = {pairing.primary: sides.primary, pairing.secondary: sides.secondary}
    announcers = await make_announcers(stack, config, outside, announcements, keepers)
    pair = await make_pair(pairing, sides, outside)
    seen, services = await with_claims(stack, config, pair.broker, outside)
    leases = Leases(seen, outside.now, config.limits.leases)
    visibility = _visibility(sides.primary, seen, leases, outside)
    if isinstance(sides.primary, LocalBroker) and _has_storage(config):
        sides.primary.recent = Recent()
    syphons = make_syphons(pairing, sides, outside, pair)
    return Parts(
        broker=seen,
        leases=leases,
        visibility=visibility,
        services=[pair, leases, *_services_among(visibility), *syphons, *services, *announcers],
        stores=stores_among(sides.primary, sides.secondary, sides.spool),
        announcements=announcements,
        pair=pair,
        syphons=syphons,
    )


async def make_announcers(
    stack: AsyncExitStack,
    config: Config,
    outside: Outside,
    announcements: Announcements,
    opened: Mapping[str, Broker],
) -> list[Service]:
    """
    What carries the announcements to the topic of `[triggers]`. Straight into the namespace that
    keeps it, one of those `opened` or another: nobody diverts a trigger.

    Raises:
        Failure: that namespace can't be opened, or refuses the credentials.
    """
    await trio.lowlevel.checkpoint()
    triggers = config.triggers
    if triggers is None:
        return []
    name = triggers.namespace or config.home.name
    keeper = opened.get(name) or await _enter_ready(stack, config.namespaces[name], outside)
    announcer = TopicAnnouncer(
        broker=keeper,
        topic=EntityPath(triggers.topic),
        announcements=announcements,
        window=triggers.window,
        time_to_live=triggers.time_to_live,
        observer=outside.observer,
        rng=outside.rng("announcer"),
    )
    return [announcer]


def announced(namespace: Broker, announcements: Announcements) -> Broker:
    """The namespace, of which every message that comes there through this gateway is announced."""
    if not isinstance(namespace, LocalBroker):
        return Announcing(namespace, announcements.publish)
    namespace.announce = announcements.publish
    return namespace


def _visibility(
    namespace: Broker, seen: Broker, leases: Leases, outside: Outside
) -> LocalVisibility | LeasedVisibility:
    """
    How that namespace hides messages; `seen` is what clients see of it.

    Where bodies are elsewhere, or packed, its rows aren't what clients see.
    """
    if isinstance(namespace, LocalBroker) and not isinstance(seen, ClaimedBroker | PackedBroker):
        return LocalVisibility(namespace)
    return LeasedVisibility(seen, leases, outside.now, outside.observer)


def _has_storage(config: Config) -> bool:
    return any(endpoint.protocol == STORAGE_QUEUE for endpoint in config.endpoints)


def _services_among(visibility: LocalVisibility | LeasedVisibility) -> list[Service]:
    return [visibility] if isinstance(visibility, LeasedVisibility) else []


async def enter_sides(
    stack: AsyncExitStack, config: Config, pairing: Pairing, outside: Outside
) -> Sides:
    """
    Open both namespaces and the spool; those that are our own get the queues that they lack.

    Raises:
        Failure: one can't be opened, or refuses the credentials.
    """
    primary = await _enter_ready(stack, config.namespaces[pairing.primary], outside)
    namespace = config.namespaces[pairing.secondary]
    secondary = await _enter_ready(stack, namespace, outside)
    if is_own(namespace):
        try:
            await provision(secondary, pairing.options.label, pairing.options.backlog_queues)
        except BrokerError as error:
            raise _not_made(namespace, error) from error
    return Sides(
        primary=primary, secondary=secondary, spool=await _enter_spool(stack, pairing, outside)
    )


async def _enter_spool(stack: AsyncExitStack, pairing: Pairing, outside: Outside) -> Adapter | None:
    await trio.lowlevel.checkpoint()
    if pairing.spool is None:
        return None
    namespace = Namespace(name=SPOOL, url=f"embedded:{pairing.spool}")
    spool = await enter(stack, namespace, outside)
    try:
        await spool.create_queue(spool_queue(pairing), backlog.QUEUE_PROPERTIES)
    except EntityExists:
        return spool
    return spool


async def _enter_ready(stack: AsyncExitStack, namespace: Namespace, outside: Outside) -> Adapter:
    adapter = await enter(stack, namespace, outside)
    if not is_own(namespace):
        doubt = await check_credentials(adapter, namespace)
        if doubt is not None:
            outside.observer.report(Doubtful(text=f"namespace {namespace.name}: {doubt}"))
        return adapter
    try:
        await make_entities(adapter, namespace.plan)
    except BrokerError as error:
        raise _not_made(namespace, error) from error
    return adapter


def _not_made(namespace: Namespace, error: BrokerError) -> Failure:
    return Failure(f"namespace {namespace.name}: its entities can't be made: {error}")


def stores_among(*adapters: Broker | None) -> list[EmbeddedBroker]:
    """Those of the adapters that keep a store of their own, which may fail for good."""
    return [adapter for adapter in adapters if isinstance(adapter, EmbeddedBroker)]
