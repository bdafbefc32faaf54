"""Counts the operations on one namespace as a cloud would bill them. Each adapter has one meter."""

from collections.abc import Callable

import attrs
import trio

from gateway.domain.billing import UPKEEP, Operation, OperationCounter, UsageReport, units


@attrs.define(eq=False)
class Meter:
    """
    Counts the operations that a namespace has answered, refusals included where they are billed.

    An adapter calls it where it talks to its namespace, so that retries, paging and operations of
    the adapter's own are counted, too.
    """

    clock: Callable[[], float] = trio.current_time  # seconds, never going back
    heard: Callable[[Operation], None] | None = None  # called with each operation
    _operations: OperationCounter = attrs.field(factory=OperationCounter, init=False)

    def start(self) -> None:
        """Note that the namespace is open: from now on its idle time is counted."""
        self._operations.start(self.clock())

    def request(self, operation: Operation, messages: int = 0) -> None:
        """Count a request that is billed as one operation, whatever its content."""
        operation, messages = _judged(operation, messages)
        self._operations.count(operation, self.clock(), messages=messages)
        if self.heard is not None:
            self.heard(operation)

    def carried(self, operation: Operation, messages: int, size: int) -> None:
        """
        Count messages that were transferred, with their total size in bytes; each is billed by its
        size.
        """
        now, billed = self.clock(), units(messages, size)
        operation, messages = _judged(operation, messages)
        self._operations.count(operation, now, billed, messages)
        if self.heard is not None:
            self.heard(operation)

    def settled(self, messages: int) -> None:
        """Count settlements, each billed by itself even if one request carried several."""
        self._operations.count(Operation.SETTLE, self.clock(), messages)
        if self.heard is not None:
            self.heard(Operation.SETTLE)

    def usage(self) -> UsageReport:
        """The operations counted up to now."""
        return self._operations.report(self.clock())


def _judged(operation: Operation, messages: int) -> tuple[Operation, int]:
    """The operation to count, and its messages; heartbeats are management without messages."""
    if operation is Operation.SEND and UPKEEP.get():
        return Operation.MANAGE, 0
    return operation, messages
