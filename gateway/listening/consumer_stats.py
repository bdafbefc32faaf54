"""A listener's counts, and the operations that a cloud would bill for them."""

from collections.abc import Mapping
from typing import Final

import attrs
import trio

from gateway.domain.billing import Operation, OperationCounter, UsageReport
from gateway.domain.entity import EntityPath
from gateway.domain.health.distribution import LATENCIES, Distribution, Histogram
from gateway.listening.scaling.lock_tuning import LockAdvice

MOST_ERRORS: Final = 20  # kinds; handlers are foreign code
OTHER: Final = "_OTHER"  # OpenTelemetry's name for further ones


@attrs.define(eq=False)
class ConsumerStats:
    """Counts of one queue."""

    operations: OperationCounter = attrs.field(factory=OperationCounter)
    completed: int = 0
    failed: int = 0  # handler calls
    poisoned: int = 0
    too_late: int = 0  # settlements
    advice: LockAdvice | None = None
    # By the class of the handler's error; empty: it succeeded.
    _handled: dict[str, Histogram] = attrs.field(factory=dict, init=False)

    def count(self, operation: Operation, messages: int = 0) -> None:
        """Count one request, and the messages that it sent or received."""
        self.operations.count(operation, trio.current_time(), messages=messages)

    def record_handled(self, error: Exception | None, seconds: float) -> None:
        """Count a call of the handler."""
        name = "" if error is None else type(error).__name__
        if name not in self._handled and len(self._handled) > MOST_ERRORS:
            name = OTHER
        self._handled.setdefault(name, Histogram(LATENCIES)).record(seconds)

    def handled(self) -> Mapping[str, Distribution]:
        """The seconds that the handler took, by the class of its error; empty: it succeeded."""
        return {name: histogram.read() for name, histogram in self._handled.items()}

    def usage(self) -> UsageReport:
        """The billed operations up to now."""
        return self.operations.report(trio.current_time())


@attrs.frozen(kw_only=True)
class QueueState:
    """A snapshot of one queue of a listener."""

    queue: EntityPath
    depth: int | None  # None: the namespace doesn't report it, or didn't answer
    active_tasks: int  # receiving now; the others are idle
    total_tasks: int
    locked: int  # messages
    completed: int
    failed: int
    poisoned: int
    too_late: int
    advice: LockAdvice | None
    usage: UsageReport
    handled: Mapping[str, Distribution] = attrs.field(factory=dict)  # seconds, as `ConsumerStats`

    @property
    def operations(self) -> Mapping[Operation, int]:
        """Requests made to the namespace, by kind. Kinds with a count of zero are omitted."""
        return {kind: count for kind, count in self.usage.operations.items() if count}

    @property
    def billed(self) -> int:
        return self.usage.total
