"""What a listener has done, and what a cloud would bill for it."""

import enum
from collections import Counter
from collections.abc import Mapping

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.lock_tuning import Advice


class Operation(enum.Enum):
    """
    One request, as a cloud counts it. Waiting for messages that a namespace pushes is none; each
    time that some arrive is one.
    """

    RECEIVE = "receive"  # with messages
    EMPTY = "empty"  # a look that found nothing
    SETTLE = "settle"
    RENEW = "renew"
    INSPECT = "inspect"
    SEND = "send"


@attrs.define(eq=False)
class Ledger:
    """Counts of one queue."""

    operations: Counter[Operation] = attrs.field(factory=Counter)
    completed: int = 0
    failed: int = 0  # handlers' errors
    poisoned: int = 0
    too_late: int = 0  # settlements
    advice: Advice | None = None

    def count(self, operation: Operation) -> None:
        self.operations[operation] += 1


@attrs.frozen(kw_only=True)
class QueueState:
    """One queue of a listener at a moment."""

    queue: EntityPath
    depth: int | None  # None: the namespace can't tell, or didn't answer
    active_tasks: int  # that take messages or look for them; the others rest
    total_tasks: int
    held: int  # messages, locked
    completed: int
    failed: int
    poisoned: int
    too_late: int
    advice: Advice | None
    operations: Mapping[Operation, int]

    @property
    def billed(self) -> int:
        return sum(self.operations.values())
