"""The backlog queues on the secondary: their names, properties, and the order to try them in."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.entity import EntityPath, QueueProperties

# Short, since messages that a killed syphon had locked wait that long. A syphon renews its locks.
LOCK: Final = timedelta(seconds=15)
# For the legacy client, whose syphon doesn't renew locks.
LEGACY_LOCK: Final = timedelta(minutes=1)

# All else is as the legacy client creates backlog queues. None stands for .NET's TimeSpan.MaxValue.
QUEUE_PROPERTIES: Final = QueueProperties(
    max_size_in_megabytes=5120,
    max_delivery_count=2147483647,
    default_time_to_live=None,
    auto_delete_on_idle=None,
    lock_duration=LOCK,
    dead_lettering_on_expiration=True,
    enable_batched_operations=True,
)
LEGACY_PROPERTIES: Final = attrs.evolve(QUEUE_PROPERTIES, lock_duration=LEGACY_LOCK)
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
_MARK: Final = "/x-servicebus-transfer/"
_ORDERED: Final = "/x-servicebus-transfer/ordered/"
_HEARTBEATS: Final = "/x-pairgate-syphons"
_LEASES: Final = "/x-pairgate-order"
_OWNER: Final = "/x-pairgate-primary/"
_ENVELOPE_BYTES: Final = 4096


def properties(*, legacy: bool) -> QueueProperties:
    """Properties of a new backlog queue. `legacy`: a legacy syphon may receive from it, too."""
    return LEGACY_PROPERTIES if legacy else QUEUE_PROPERTIES


def is_backlog(queue: EntityPath) -> bool:
    """True if a queue has the name of a backlog queue, so that its messages have an envelope."""
    return _MARK in queue.key


def largest(queue: EntityPath, limit: int) -> int:
    """
    Return the size of the largest message of a queue, in bytes, where that of an entity is `limit`.

    A backlog queue has room for the envelope on top, so that a message which the entity takes can
    be diverted too.
    """
    return limit + (_ENVELOPE_BYTES if is_backlog(queue) else 0)


def queue_name(label: str, index: int) -> EntityPath:
    return EntityPath(f"{queue_prefix(label)}{index}")


def ordered_queue(label: str, index: int) -> EntityPath:
    """A backlog queue of ordered entities. Only syphons that keep the order can receive from it."""
    return EntityPath(f"{label}{_ORDERED}{index}")


def ordered_queues(label: str) -> tuple[EntityPath, ...]:
    """All backlog queues of ordered entities."""
    return tuple(ordered_queue(label, index) for index in range(ORDERED_QUEUES))


def is_ordered(queue: EntityPath) -> bool:
    """True if it is an `ordered_queue`, whatever the label."""
    return _ORDERED in queue.key


def queue_prefix(label: str) -> str:
    return f"{label}/x-servicebus-transfer/"


def marker_prefix(label: str) -> str:
    """The prefix of the queue whose name ends with the fingerprint of the backlog's owner."""
    return f"{label}{_OWNER}"


def heartbeat_queue(label: str) -> EntityPath:
    """The queue beside the backlog in which syphons leave their heartbeats."""
    return EntityPath(f"{label}{_HEARTBEATS}")


def is_of_pair(queue: EntityPath) -> bool:
    """True if pairs make the queue for themselves: a backlog queue, or one beside it."""
    beside = (_HEARTBEATS, _LEASES)
    return is_backlog(queue) or _OWNER in queue.key or queue.key.endswith(beside)


def is_heartbeat_queue(queue: EntityPath) -> bool:
    """True if it is the `heartbeat_queue` of a pair, whatever the label."""
    return queue.key.endswith(_HEARTBEATS)


def lease_queue(label: str) -> EntityPath:
    """The queue beside the backlog whose sessions are the leases of the ordered queues."""
    return EntityPath(f"{label}{_LEASES}")


def is_lease_queue(queue: EntityPath) -> bool:
    """True if it is the `lease_queue` of a pair, whatever the label."""
    return queue.key.endswith(_LEASES)


def queues_to_try(queues: Sequence[EntityPath], rng: random.Random) -> list[EntityPath]:
    """All queues, each once, in random order."""
    shuffled = list(queues)
    rng.shuffle(shuffled)
    return shuffled
