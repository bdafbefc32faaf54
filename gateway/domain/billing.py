"""
What a cloud bills for messaging: operations, counted by kind, per message and per idle day.

Service Bus: any call of its interface is an operation. One that carries a message is billed for
each 64 KiB of it that are begun; a batch is billed as its messages are. To take a message and to
complete it are two, to renew its lock is one more, and an empty answer to a receive is one. (Azure
pricing details of Service Bus, "How is the Operations meter calculated for queues and topics?";
"Batching doesn't affect the number of billable messaging operations", in its best practices for
performance.)

Storage Queue: each request is an operation, whatever it carries: up to 32 messages, or none.
(Azure Storage team, "Understanding Windows Azure Storage Billing"; Queue Storage pricing.)
"""

import enum
from collections.abc import Mapping
from math import inf
from typing import Final

import attrs

UNIT: Final = 64 * 1024  # bytes of a message that are one operation
DAY: Final = 86_400.0  # seconds
# Seconds after the last message until a namespace counts as idle: what still belongs to the work,
# the last settlements and looks, is over by then.
QUIET: Final = 60.0
_SERVERS_FAULT: Final = 500  # of HTTP


class Operation(enum.Enum):
    """
    One request, as a cloud counts it. Waiting for messages that a namespace pushes is none; each
    time that some arrive is one.
    """

    RECEIVE = "receive"  # with messages
    EMPTY = "empty"  # a look that found nothing
    SETTLE = "settle"
    RENEW = "renew"
    PEEK = "peek"
    INSPECT = "inspect"  # asks about entities: depth, a probe, a list
    MANAGE = "manage"  # makes, changes or deletes them
    SEND = "send"

    # Counted for each message: by identity, as members are compared, and not by name in Python.
    __hash__ = object.__hash__


WORK: Final = frozenset({Operation.RECEIVE, Operation.SETTLE, Operation.SEND})
"""What only messages cause: as long as one of them was a moment ago, nothing is idle."""
_OF_MESSAGES: Final = WORK | {Operation.RENEW}


def units(messages: int, size: int) -> int:
    """
    What Service Bus bills for so many messages that have so many bytes together.

    What each of them has isn't known where they travel in one body: they count as equal.
    """
    if size <= UNIT:  # most are, all together
        return messages
    return messages * max(1, -(-size // (UNIT * messages))) if messages else 0


def is_billed(status: int) -> bool:
    """Whether an answer by HTTP with that status is: refusals are, a server's own faults aren't."""
    return status < _SERVERS_FAULT


@attrs.frozen(kw_only=True)
class Bill:
    """What was counted up to a moment. Times are seconds."""

    operations: Mapping[Operation, int]
    sent: int  # messages
    received: int  # messages
    idle_operations: int  # since nothing but looks went on
    idle_seconds: float

    @property
    def total(self) -> int:
        return sum(self.operations.values())

    @property
    def messages(self) -> int:
        """Those that went through: what is received was sent before, perhaps by somebody else."""
        return max(self.sent, self.received)

    @property
    def per_message(self) -> float | None:
        """
        What one message is billed, on the average; None: there was none yet. Looks in vain and
        questions aren't its fault: what they cost is in `per_idle_day`.
        """
        if not self.messages:
            return None
        return sum(self.operations.get(each, 0) for each in _OF_MESSAGES) / self.messages

    @property
    def per_idle_day(self) -> float | None:
        """What a day without a message would be billed; None: it wasn't idle for a minute yet."""
        if self.idle_seconds < QUIET:
            return None
        return self.idle_operations / self.idle_seconds * DAY


@attrs.define(eq=False)
class Tally:
    """
    Counts the operations on one namespace, or on one queue. `now` is in seconds, of one clock that
    never goes back.
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
        """From now on it is known whether nothing goes on."""
        self._idle_from = now + QUIET

    def count(
        self, operation: Operation, now: float, operations: int = 1, messages: int = 0
    ) -> None:
        """So many operations were done now, with so many messages sent or received by them."""
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

    def bill(self, now: float) -> Bill:
        return Bill(
            operations=dict(self.operations),
            sent=self.sent,
            received=self.received,
            idle_operations=self._idle_operations,
            idle_seconds=self._idle_seconds + max(0.0, now - self._idle_from),
        )
