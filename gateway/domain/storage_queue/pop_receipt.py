"""Pop receipts: the proof that a client may change or delete a message that it has hidden."""

import attrs

from gateway.domain.message import Delivery


@attrs.frozen
class PopReceipt:
    """
    A pop receipt, valid until the message is received or changed again.

    `deliveries` is the delivery count at that time, since a lock doesn't change the stamp. `holder`
    is the tag of the gateway that holds the message; 0: this one, or any. `token` is the
    namespace's own receipt, sealed, by which any gateway of a cluster finds the message; then the
    numbers mean nothing.
    """

    sequence: int
    stamp: int
    deliveries: int = 0
    holder: int = 0
    token: str = ""


@attrs.frozen(kw_only=True)
class TakenMessage:
    """
    A message as its receiver gets it.

    The message is visible to others from `delivery.locked_until` on; None: it is visible now.
    `receipt` is None if the namespace reports no pop receipt.
    """

    delivery: Delivery
    receipt: PopReceipt | None
