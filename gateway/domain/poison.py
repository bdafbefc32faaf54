"""
Messages that were taken too often and never removed: they go to a queue of their own, and say why.

    orders  --- taken as often as `poisonthreshold` says --->  orders-poison
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.contents import Onward
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import DeadLetter
from gateway.domain.stored import Row

SUFFIX: Final = "-poison"
REASON: Final = "PoisonThresholdExceeded"
# Of a queue of Storage Queue: as much as there can be. It has no dead letters, and 500 TiB for an
# account.
UNLIMITED: Final = QueueProperties(max_delivery_count=2**31 - 1, max_size_in_megabytes=80 * 1024)


@attrs.frozen(kw_only=True)
class Terms:
    """What a queue says of takes: `poison_after` so many of one message the next one moves it."""

    hidden: timedelta
    poison_after: int | None = None


TermsOf = Callable[[str | None], Terms]
"""What the user metadata of a queue says. A plain function, which may run in any thread."""


@attrs.frozen
class Poison:
    """What was taken `after` times goes `onward`; `note` is told of each row that went."""

    after: int
    onward: Onward
    note: Callable[[Row], None]


def poison_queue(queue: EntityPath) -> EntityPath:
    return EntityPath(f"{queue.name}{SUFFIX}")


def too_many(queue: EntityPath, deliveries: int, threshold: int) -> DeadLetter:
    """What a message of that queue says once it was moved."""
    return DeadLetter(
        reason=REASON,
        description=f"{queue}: dequeued {deliveries} times and not removed; {threshold} expected.",
    )
