"""
Sequence numbers of a sharded queue: the number of the shard is in their upper bits, as that of the
partition is in Service Bus. So a delivery leads back to its shard, also in another process, and no
table of deliveries is needed.

    bits 62..53   the number of the shard
    bits 52..0    the sequence number in the shard

RabbitMQ, which finds nothing by such a number, makes larger ones; so does Service Bus for
partitioned entities. They stay as they are: `ShardedReceiver` remembers where they came from.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.domain.errors import NotSupported
from gateway.domain.message import Delivery
from gateway.domain.values import deriving

_BITS: Final = 53  # as at the top of this file: a thousand shards, and numbers for ages
_MASK: Final = (1 << _BITS) - 1  # the number within its shard

_derived: Final = deriving(Delivery)


def outward_number(number: int, shard: int) -> int:
    """
    The sequence number in the sharded queue.

    Raises:
        NotSupported: the namespace's own numbers are too large, as those of a partitioned entity.
    """
    if not 0 <= number <= _MASK:
        raise NotSupported(
            f"the sequence number {number} has more than {_BITS} bits: a partitioned entity can't"
            " be a shard"
        )
    return number | shard << _BITS


def inward_number(number: int) -> tuple[int, int]:
    """The shard, and the sequence number there."""
    return number >> _BITS, number & _MASK


def by_shard(numbers: Sequence[int]) -> Mapping[int, list[int]]:
    """The sequence numbers in each shard that these lead to, in their order."""
    found: dict[int, list[int]] = {}
    for each in numbers:
        shard, number = inward_number(each)
        found.setdefault(shard, []).append(number)
    return found


def has_room(delivery: Delivery) -> bool:
    """True if the delivery's sequence number has room for that of the shard."""
    return 0 <= delivery.sequence_number <= _MASK


def shard_of(delivery: Delivery) -> int:
    return delivery.sequence_number >> _BITS


def outward(delivery: Delivery, shard: int) -> Delivery:
    """
    The shard's delivery as a delivery of the sharded queue. Raises as `outward_number`.

    An enqueued sequence number that has no room for the shard is left out: it is for information
    only, and would lead to another shard.
    """
    number = outward_number(delivery.sequence_number, shard)
    enqueued = delivery.enqueued_sequence_number
    if not shard:
        return delivery
    if enqueued is not None:  # of a forwarded message, it may be that of a partitioned entity
        enqueued = enqueued | shard << _BITS if 0 <= enqueued <= _MASK else None
    return _derived(delivery, sequence_number=number, enqueued_sequence_number=enqueued)


def inward(delivery: Delivery) -> Delivery:
    """The delivery as its shard has returned it."""
    if not shard_of(delivery):
        return delivery
    enqueued = delivery.enqueued_sequence_number
    return _derived(
        delivery,
        sequence_number=delivery.sequence_number & _MASK,
        enqueued_sequence_number=None if enqueued is None else enqueued & _MASK,
    )
