"""The options of ordered entities in `[pairing]`, and what is wrong with them."""

import enum
from collections.abc import Iterator
from typing import Final

import attrs

from gateway.config.options import Config, Pairing
from gateway.config.places import HAVE_SESSIONS, has_sessions, hosts_of, keeps_order, location_of
from gateway.extensions.tables import Table


class OrderLeaseMode(enum.Enum):
    OFF = "off"  # one gateway alone sends to the ordered entities
    WAIT = "wait"  # several do, one at a time: the others wait for its lease
    FORWARD = "forward"  # several do, one at a time: the others forward their sends to it


class OnLeaseLost(enum.Enum):
    RAISE = "raise"  # no lease, no send: the order holds
    SEND = "send"  # the last orderer goes on with the primary, while it can't renew its lease


@attrs.frozen(kw_only=True)
class OrderOptions:
    """The entities that keep the order of their sends, and the way of several gateways to them."""

    # Entities that keep the order of their sends, e.g. `orders` or `payments/*`.
    ordered: tuple[str, ...] = ()
    order_lease: OrderLeaseMode = OrderLeaseMode.OFF
    on_lease_lost: OnLeaseLost = OnLeaseLost.RAISE

    @property
    def has_leases(self) -> bool:
        """True if several gateways may send to the ordered entities."""
        return bool(self.ordered) and self.order_lease is not OrderLeaseMode.OFF

    @property
    def forwards_sends(self) -> bool:
        """True if sends of ordered entities are forwarded to the orderer."""
        return bool(self.ordered) and self.order_lease is OrderLeaseMode.FORWARD


ORDERED: Final = Table[OrderOptions](
    name="order", kind=OrderOptions, missing=OrderOptions(), keys=True
)


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    pairing = config.pairing
    if pairing is None:
        return
    order = pairing.options.of(ORDERED)
    if order.ordered:
        yield from _ordered(config, pairing, order)
    yield from _leases(config, order)


def ordered_patterns(config: Config) -> Iterator[tuple[str, str]]:
    """The ordered entities, which have backlog queues of their own, each with its key."""
    if config.pairing is not None:
        for pattern in config.pairing.options.of(ORDERED).ordered:
            yield pattern, "pairing.ordered"


def warnings(config: Config) -> Iterator[str]:
    """Yield a line if no other gateway can take a lease."""
    if config.pairing is None or not config.pairing.options.of(ORDERED).has_leases:
        return
    secondary = config.namespaces[config.pairing.secondary]
    if not hosts_of(location_of(secondary)):
        yield (
            f"pairing.order_lease: the leases are on the secondary {secondary.name}, a store that"
            " this gateway alone has open: no other gateway can take one"
        )


def _ordered(config: Config, pairing: Pairing, order: OrderOptions) -> Iterator[str]:
    """Both namespaces, and the processes of the gateway, must be able to keep an order."""
    for index, pattern in enumerate(order.ordered):
        if not pattern.strip():
            yield f"pairing.ordered[{index}]: an entity or a pattern expected"
    for role, name in (("primary", pairing.primary), ("secondary", pairing.secondary)):
        namespace = config.namespaces.get(name)
        if namespace is None:
            continue
        if not keeps_order(namespace):
            yield (
                f"pairing.ordered: the {role} {name} is a Storage Queue, which doesn't keep the"
                " order of its messages"
            )
        elif role == "secondary" and not has_sessions(namespace):
            yield (
                f"pairing.ordered: the {role} {name} has no sessions, by which syphons keep the"
                f" order; {', '.join(sorted(HAVE_SESSIONS))} have them"
            )
    if config.serving_processes > 1:
        yield (
            "pairing.ordered: workers = 1 expected, because the order holds among the sends of one"
            " process"
        )


def _leases(config: Config, order: OrderOptions) -> Iterator[str]:
    has_lease = order.order_lease is not OrderLeaseMode.OFF
    if has_lease and not order.ordered:
        yield "pairing.order_lease: needs ordered, a list of the entities that keep their order"
    if order.on_lease_lost is OnLeaseLost.SEND and not has_lease:
        yield (
            'pairing.on_lease_lost: needs order_lease = "wait" or "forward", as there is no lease'
            " without it"
        )
    if order.order_lease is OrderLeaseMode.FORWARD and not config.knows_peers:
        yield (
            'pairing.order_lease: "forward" needs [cluster], over which gateways forward sends to'
            " each other"
        )
