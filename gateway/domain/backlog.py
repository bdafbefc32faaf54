"""The backlog queues on the secondary: their names, properties, and the order to try them in."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from gateway.domain.entity import EntityPath, QueueProperties

# The legacy client's properties of a backlog queue; None stands for .NET's TimeSpan.MaxValue.
QUEUE_PROPERTIES: Final = QueueProperties(
    max_size_in_megabytes=5120,
    max_delivery_count=2147483647,
    default_time_to_live=None,
    auto_delete_on_idle=None,
    lock_duration=timedelta(minutes=1),
    dead_lettering_on_expiration=True,
    enable_batched_operations=True,
)


_MARK: Final = "/x-servicebus-transfer/"
ROOM: Final = 4096  # bytes that a backlog queue of our own takes beyond its namespace's limit


def is_backlog(queue: EntityPath) -> bool:
    """Whether a queue has the name of a backlog queue: its messages may carry an envelope."""
    return _MARK in queue.key


def queue_name(label: str, index: int) -> EntityPath:
    return EntityPath(f"{queue_prefix(label)}{index}")


def queue_prefix(label: str) -> str:
    return f"{label}/x-servicebus-transfer/"


def queues_to_try(queues: Sequence[EntityPath], rng: random.Random) -> list[EntityPath]:
    """All of them, each once, in random order."""
    shuffled = list(queues)
    rng.shuffle(shuffled)
    return shuffled
