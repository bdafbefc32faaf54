"""The backlog queues of ordered entities, and the queue of their leases."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.backlog import QUEUE_PROPERTIES, BacklogQueue
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.extensions.order.options import ORDERED
from gateway.pairing.options import PairOptions

# The sessions keep the order of each key, whichever of several syphons moves its messages.
ORDERED_PROPERTIES: Final = attrs.evolve(QUEUE_PROPERTIES, requires_session=True)
# Of the queue whose sessions are the leases of the ordered queues. Its messages are requests to let
# go, which expire soon. The lock of a gateway that is cut off ends, and so does its lease, within
# the time that sends wait.
LEASE_LOCK: Final = timedelta(seconds=10)
LEASE_PROPERTIES: Final = QueueProperties(
    requires_session=True, lock_duration=LEASE_LOCK, max_delivery_count=2147483647
)
# A constant, not an option: with another number, a key's messages would be in two queues.
ORDERED_QUEUES: Final = 4
_ORDERED: Final = "/x-servicebus-transfer/ordered/"
_LEASES: Final = "/x-pairgate-order"


def ordered_queue(label: str, index: int) -> EntityPath:
    """A backlog queue of ordered entities. Only syphons that keep the order can receive from it."""
    return EntityPath(f"{label}{_ORDERED}{index}")


def ordered_queues(label: str) -> tuple[EntityPath, ...]:
    """All backlog queues of ordered entities."""
    return tuple(ordered_queue(label, index) for index in range(ORDERED_QUEUES))


def is_ordered_queue(queue: EntityPath) -> bool:
    """True if it is an `ordered_queue`, whatever the label."""
    return _ORDERED in queue.key


def lease_queue(label: str) -> EntityPath:
    """The queue beside the backlog whose sessions are the leases of the ordered queues."""
    return EntityPath(f"{label}{_LEASES}")


def queues_of(options: PairOptions, _: Sequence[EntityInfo]) -> Iterator[BacklogQueue]:
    """The queues that a pair with these options needs."""
    order = options.of(ORDERED)
    if order.ordered:
        for path in ordered_queues(options.label):
            yield BacklogQueue(path=path, properties=ORDERED_PROPERTIES)
    if order.has_leases:
        path = lease_queue(options.label)
        yield BacklogQueue(path=path, properties=LEASE_PROPERTIES, is_backlog=False)
