"""What a listener has done, and what a cloud would bill for it."""

from collections.abc import Mapping

import attrs
import trio

from gateway.domain.billing import Bill, Operation, Tally
from gateway.domain.entity import EntityPath
from gateway.domain.lock_tuning import Advice


@attrs.define(eq=False)
class Ledger:
    """Counts of one queue."""

    tally: Tally = attrs.field(factory=Tally)
    completed: int = 0
    failed: int = 0  # handlers' errors
    poisoned: int = 0
    too_late: int = 0  # settlements
    advice: Advice | None = None

    def count(self, operation: Operation, messages: int = 0) -> None:
        """One request, with so many messages sent or received by it."""
        self.tally.count(operation, trio.current_time(), messages=messages)

    def bill(self) -> Bill:
        """What it would cost up to now."""
        return self.tally.bill(trio.current_time())


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
    bill: Bill

    @property
    def operations(self) -> Mapping[Operation, int]:
        """What was asked of the namespace so often; what never was is missing."""
        return {kind: count for kind, count in self.bill.operations.items() if count}

    @property
    def billed(self) -> int:
        return self.bill.total
