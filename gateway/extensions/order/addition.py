"""The order's part of a pair: all of it, or the names of queues that would need it."""

from functools import partial

from gateway.extensions.order.options import ORDERED
from gateway.extensions.order.sessions import UNORDERED, unordered
from gateway.pairing.additions import Addition, PairCore


def add(core: PairCore) -> Addition:
    """The order of `pairing.ordered`; the names of queues that would need it in any case."""
    patterns = core.options.of(ORDERED).ordered
    needing = {UNORDERED: partial(unordered, core.entity_cache, patterns)}
    if not patterns:
        return Addition(sections=needing)
    # The sends and their leases, which only a pair with such entities needs.
    from gateway.extensions.order.ordering import ordering

    return ordering(core, needing)
