"""The options of ordered entities in `[pairing]`."""

import enum
from typing import Final

import attrs

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
