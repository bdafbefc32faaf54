"""
Sequence numbers of queues that are received from as one: the upper bits tell the place of the queue
among them, as those of the partition do in Service Bus. So a delivery leads back to its queue, also
in another process, and no table of deliveries is needed.

    bits 62..53   the place of the queue
    bits 52..0    the sequence number in that queue

RabbitMQ, which finds nothing by such a number, makes larger ones; so does Service Bus for
partitioned entities. They stay as they are: `JoinedSettling` remembers where they came from.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.domain.errors import NotSupported
from gateway.domain.message import Delivery
from gateway.domain.values import deriving

_BITS: Final = 53  # as at the top of this file: a thousand queues, and numbers for ages
_MASK: Final = (1 << _BITS) - 1  # the number within its queue

_derived: Final = deriving(Delivery)


def outward_number(number: int, place: int) -> int:
    """
    The sequence number among those of all queues.

    Raises:
        NotSupported: the namespace's own numbers are too large, as those of a partitioned entity.
    """
    if not 0 <= number <= _MASK:
        raise NotSupported(
            f"the sequence number {number} has more than {_BITS} bits: a partitioned entity can't"
            " be received from together with other queues"
        )
    return number | place << _BITS


def inward_number(number: int) -> tuple[int, int]:
    """The place of the queue, and the sequence number there."""
    return number >> _BITS, number & _MASK


def by_place(numbers: Sequence[int]) -> Mapping[int, list[int]]:
    """The sequence numbers in each queue that these lead to, in their order, by its place."""
    found: dict[int, list[int]] = {}
    for each in numbers:
        place, number = inward_number(each)
        found.setdefault(place, []).append(number)
    return found


def has_room(delivery: Delivery) -> bool:
    """True if the delivery's sequence number has room for the place of its queue."""
    return 0 <= delivery.sequence_number <= _MASK


def place_of(delivery: Delivery) -> int:
    return delivery.sequence_number >> _BITS


def outward(delivery: Delivery, place: int) -> Delivery:
    """
    The delivery of the queue at that place as one of all queues. Raises as `outward_number`.

    An enqueued sequence number that has no room for the place is left out: it is for information
    only, and would lead to another queue.
    """
    number = outward_number(delivery.sequence_number, place)
    enqueued = delivery.enqueued_sequence_number
    if not place:
        return delivery
    if enqueued is not None:  # of a forwarded message, it may be that of a partitioned entity
        enqueued = enqueued | place << _BITS if 0 <= enqueued <= _MASK else None
    return _derived(delivery, sequence_number=number, enqueued_sequence_number=enqueued)


def inward(delivery: Delivery) -> Delivery:
    """The delivery as its queue has returned it."""
    if not place_of(delivery):
        return delivery
    enqueued = delivery.enqueued_sequence_number
    return _derived(
        delivery,
        sequence_number=delivery.sequence_number & _MASK,
        enqueued_sequence_number=None if enqueued is None else enqueued & _MASK,
    )
