"""
Counts the operations that a cloud bills for messaging, by kind, per message and per idle day.

Service Bus: each call of its interface is an operation. A message is billed per started 64 KiB, and
a batch is billed as its messages are. Receiving a message and completing it are two operations,
renewing its lock is another one, and so is a receive that returns no message. (Azure
pricing details of Service Bus, "How is the Operations meter calculated for queues and topics?";
"Batching doesn't affect the number of billable messaging operations", in its best practices for
performance.)

Storage Queue: each request is one operation, whether it carries 32 messages or none.
(Azure Storage team, "Understanding Windows Azure Storage Billing"; Queue Storage pricing.)
"""

import enum
from collections.abc import Mapping
from contextvars import ContextVar
from math import inf
from typing import Final

import attrs
from attrs import field

from gateway.domain.status.figures import LEAST, TOTAL, counter, gauge

UNIT: Final = 64 * 1024  # bytes of a message that are one operation
DAY: Final = 86_400.0  # seconds
# Seconds after the last message until a namespace counts as idle: the last settlements and receives
# of the work are over by then.
QUIET: Final = 60.0
_SERVERS_FAULT: Final = 500  # of HTTP


class Operation(enum.Enum):
    """
    A request, as a cloud counts it. Where a namespace pushes messages, each arrival of messages
    counts as a request, and waiting doesn't.
    """

    RECEIVE = "receive"  # with messages
    EMPTY = "empty"  # a receive without messages
    SETTLE = "settle"
    RENEW = "renew"
    PEEK = "peek"
    INSPECT = "inspect"  # asks about entities: depth, a probe, a list
    MANAGE = "manage"  # creates, changes or deletes entities; heartbeats of syphons
    SEND = "send"

    # Hashed by identity, since a hash by name in Python code is slow and needed for each message.
    __hash__ = object.__hash__


UPKEEP: Final = ContextVar("upkeep", default=False)
"""
True while a task sends Pairgate's own messages, such as heartbeats. Such a send counts as
`Operation.MANAGE`, so that a namespace without other messages is idle.
"""

WORK: Final = frozenset({Operation.RECEIVE, Operation.SETTLE, Operation.SEND})
"""Operations that only messages cause: after one of them, a namespace isn't idle for `QUIET`."""
_OF_MESSAGES: Final = WORK | {Operation.RENEW}


def units(messages: int, size: int) -> int:
    """
    The operations that Service Bus bills for that many messages of `size` bytes in total.

    The messages of a batch count as equally large, since their own sizes aren't known.
    """
    if size <= UNIT:  # the usual case
        return messages
    return messages * max(1, -(-size // (UNIT * messages))) if messages else 0


def is_billed(status: int) -> bool:
    """True if a request with that HTTP status is billed: refusals are, server errors aren't."""
    return status < _SERVERS_FAULT


@attrs.frozen(kw_only=True)
class UsageReport:
    """The counts up to a moment. Times are seconds."""

    operations: Mapping[Operation, int] = field(
        metadata=counter(
            "pairgate_{place}billed_operations",
            "Operations as a cloud would bill them.",
            labels=("operation",),
        )
    )
    sent: int = field(  # messages
        metadata=TOTAL
        | gauge(
            "pairgate_{place}billed_operations_per_message",
            "Operations per processed message, since the start.",
            of=lambda usage: usage.per_message,
        )
    )
    received: int = field(metadata=TOTAL)  # messages
    idle_operations: int = field(  # while the namespace was idle
        metadata=TOTAL
        | gauge(
            "pairgate_{place}billed_operations_per_idle_day",
            "Operations billed in a day without messages, by the idle time since the start.",
            of=lambda usage: usage.per_idle_day,
        )
    )
    idle_seconds: float = field(metadata=LEAST)  # all processes are idle while none works

    @property
    def total(self) -> int:
        return sum(self.operations.values())

    @property
    def messages(self) -> int:
        """Messages that passed through. Each received one was sent, maybe by another process."""
        return max(self.sent, self.received)

    @property
    def per_message(self) -> float | None:
        """
        The average number of billed operations per message; None: there was no message yet. Empty
        receives and inspections aren't included; `per_idle_day` has them.
        """
        if not self.messages:
            return None
        return sum(self.operations.get(each, 0) for each in _OF_MESSAGES) / self.messages

    @property
    def per_idle_day(self) -> float | None:
        """Billed operations of a day without messages; None: not idle for a minute yet."""
        if self.idle_seconds < QUIET:
            return None
        return self.idle_operations / self.idle_seconds * DAY


@attrs.define(eq=False)
class OperationCounter:
    """
    Counts the operations on one namespace or one queue. `now` is in seconds of a monotonic clock.
    """

    operations: dict[Operation, int] = attrs.field(
        factory=lambda: dict.fromkeys(Operation, 0), init=False
    )
    sent: int = attrs.field(default=0, init=False)
    received: int = attrs.field(default=0, init=False)
    _idle_operations: int = attrs.field(default=0, init=False)
    _idle_seconds: float = attrs.field(default=0.0, init=False)
    _idle_from: float = attrs.field(default=inf, init=False)

    def start(self, now: float) -> None:
        """Begin to measure idle time."""
        self._idle_from = now + QUIET

    def count(
        self, operation: Operation, now: float, operations: int = 1, messages: int = 0
    ) -> None:
        """Count operations that were done now, and the messages that they sent or received."""
        self.operations[operation] += operations
        if operation is Operation.SEND:
            self.sent += messages
        elif operation is Operation.RECEIVE:
            self.received += messages
        if operation in WORK:
            if now > self._idle_from:
                self._idle_seconds += now - self._idle_from
            self._idle_from = now + QUIET
        elif now >= self._idle_from:
            self._idle_operations += operations

    def report(self, now: float) -> UsageReport:
        return UsageReport(
            operations=dict(self.operations),
            sent=self.sent,
            received=self.received,
            idle_operations=self._idle_operations,
            idle_seconds=self._idle_seconds + max(0.0, now - self._idle_from),
        )
