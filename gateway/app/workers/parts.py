"""The parts of a worker: those of `gateway/app/parts.py` without what the parent does for all."""

from contextlib import AsyncExitStack

import attrs
import trio

from gateway.app.claiming import with_claims
from gateway.app.identities import find_destination
from gateway.app.late_setup import BacklogSetup
from gateway.app.namespaces import Sides, enter
from gateway.app.pairs import make_pair
from gateway.app.parts import Parts, announced, make_visibility, watch
from gateway.app.runtime import Runtime
from gateway.config.options import Config, Pairing
from gateway.domain.identity import Identity
from gateway.frontends.admin.announcements import Announcements
from gateway.frontends.leases import Leases
from gateway.frontends.refusals import Refusals
from gateway.pairing.pair import Pair
from gateway.ports import Service


async def make_parts(
    stack: AsyncExitStack, config: Config, runtime: Runtime, identity: Identity | None
) -> Parts:
    """
    Open the namespaces, which the stack closes, and create the parts around them.

    The parent has set up the namespaces, and does so later where one doesn't answer; it runs the
    syphons, the spool, the collector of bodies and the announcer. `identity` is the primary's, as
    the parent knows it.

    Raises:
        Failure: a namespace can't be opened, or no backlog queue is usable.
    """
    await trio.lowlevel.checkpoint()
    announcements = Announcements()
    home = config.home
    adapter = announced(await enter(stack, home, runtime), announcements)
    namespaces = {home.name: watch(adapter, home, runtime)}
    broker, pair, services = namespaces[home.name], None, list[Service]()
    if config.pairing is not None:
        secondary = config.namespaces[config.pairing.secondary]
        namespaces[secondary.name] = watch(
            await enter(stack, secondary, runtime), secondary, runtime
        )
        sides = Sides(primary=broker, secondary=namespaces[secondary.name])
        pair = await _make_pair(config, config.pairing, sides, runtime, identity)
        broker, services = pair.broker, [pair]
    seen, further = await with_claims(stack, config, broker, runtime, collects=False)
    leases, refusals = Leases(seen, runtime.now, config.limits.leases), Refusals(runtime.observer)
    return Parts(
        broker=seen,
        leases=leases,
        visibility=make_visibility(adapter, seen, leases, runtime),
        services=[*services, leases, *further, refusals],
        stores=(),
        announcements=announcements,
        refusals=refusals,
        namespaces=namespaces,
        pair=pair,
    )


async def _make_pair(
    config: Config, pairing: Pairing, sides: Sides, runtime: Runtime, identity: Identity | None
) -> Pair:
    destination = await find_destination(config, pairing, sides.primary, runtime)
    destination.restore(identity)
    setup = BacklogSetup(
        secondary=sides.secondary,
        pairing=pairing,
        observer=runtime.observer,
        note=trio.lowlevel.checkpoint,
    )
    pair = await make_pair(pairing, sides, destination, runtime, setup)
    return attrs.evolve(pair, state=None, orphans=None)  # the parent has them
