"""
Poison messages of Storage queues: dequeued too often and never deleted, and so moved elsewhere.

    orders  --- dequeued `poisonthreshold` times --->  orders-poison
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import DeadLetter

SUFFIX: Final = "-poison"
REASON: Final = "PoisonThresholdExceeded"
# The properties of a Storage queue: no delivery limit and no dead letters. The size is the maximum;
# Azure allows 500 TiB per account.
UNLIMITED: Final = QueueProperties(max_delivery_count=2**31 - 1, max_size_in_megabytes=80 * 1024)


@attrs.frozen(kw_only=True)
class Terms:
    """A queue's invisibility timeout, and the dequeue count after which a message is poison."""

    hidden: timedelta
    poison_after: int | None = None


TermsOf = Callable[[str | None], Terms]
"""Reads the terms from a queue's user metadata. A plain function, which may run in any thread."""


def poison_queue(queue: EntityPath) -> EntityPath:
    return EntityPath(f"{queue.name}{SUFFIX}")


def too_many(queue: EntityPath, deliveries: int, threshold: int) -> DeadLetter:
    """The dead-letter reason of a message that is moved from that queue to its poison queue."""
    return DeadLetter(
        reason=REASON,
        description=f"{queue}: dequeued {deliveries} times and not removed; {threshold} expected.",
    )
