"""The part of a pair with ordered entities: their sends, the watch of their queues, the leases."""

from functools import partial

import attrs

from gateway.domain.status.sections import Readings
from gateway.extensions.order.forwarded import ForwardedSends
from gateway.extensions.order.lease import OrderLeases
from gateway.extensions.order.options import ORDERED, OnLeaseLost
from gateway.extensions.order.sends import OrderedSends
from gateway.extensions.order.status import ORDER, OrderStatus
from gateway.extensions.order.watch import OrderWatch
from gateway.pairing.additions import Addition, PairCore, stay


def ordering(core: PairCore, sections: Readings) -> Addition:
    """The order of `pairing.ordered`. Its status comes beside `sections`."""
    options, ways, order = core.options, core.ways, core.options.of(ORDERED)
    watch = OrderWatch(secondary=core.secondary, label=options.label, states=ways.states)
    leases = _leases(core, watch)
    sends = OrderedSends(
        patterns=order.ordered,
        watch=watch,
        ways=ways,
        new_id=core.dependencies.new_id,
        leases=leases,
    )
    return Addition(
        delivery=sends,
        services=[watch] if leases is None else [watch, leases],
        queues=[queue.path for queue in watch.queues],
        kept=watch,
        in_order=ForwardedSends(sends=sends, inflight=core.inflight, moments=core.moments),
        sections={ORDER: partial(_status, watch, leases), **sections},
        leave=stay if leases is None else leases.close,
    )


def _leases(core: PairCore, watch: OrderWatch) -> OrderLeases | None:
    order, dependencies = core.options.of(ORDERED), core.dependencies
    if not order.has_leases:
        return None
    return OrderLeases(
        secondary=core.secondary,
        label=core.options.label,
        queues=watch.queues,
        goes_on=order.on_lease_lost is OnLeaseLost.SEND,
        new_id=dependencies.new_id,
        rng=dependencies.rng,
        observer=dependencies.observer,
        peers=core.peers.orderers if order.forwards_sends else None,
    )


def _status(watch: OrderWatch, leases: OrderLeases | None) -> OrderStatus:
    status = watch.status()
    if leases is None:
        return status
    return attrs.evolve(
        status, leases=leases.held, missed=leases.missed, forwarded=leases.forwarded
    )
