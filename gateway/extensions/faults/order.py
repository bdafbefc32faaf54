"""
The faults that an operator asks for, as values, and their control calls.

Nothing here looks at a clock: dates are arguments, in UTC.
"""

import enum
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from math import inf
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import (
    EVERYTHING,
    check_reason,
    check_targets,
    matches,
)
from gateway.wire.pairgate.control_call import ControlCall, NoKeys

MOST: Final = 100  # faults in force: each operation of a client looks at all of them


class FaultKind(enum.Enum):
    """The fate of an operation that meets the fault."""

    BUSY = "busy"  # refused: the namespace asks to wait `delay` seconds
    FAIL = "fail"  # refused: the namespace is down
    DETACH = "detach"  # not done, with an unknown outcome: the link is detached
    DROP = "drop"  # not done: the client's connection ends
    LOSE = "lose"  # done, and the client's connection ends before the answer
    DELAY = "delay"  # done, `delay` seconds late


class FaultOperation(enum.Enum):
    """The operations of clients that may meet a fault."""

    SEND = "send"
    RECEIVE = "receive"
    SETTLE = "settle"
    RENEW = "renew"


# A settlement and a renewal have no link that would be detached: their answers are refusals.
_OF_KIND: Final[Mapping[FaultKind, Collection[FaultOperation]]] = {
    FaultKind.DETACH: (FaultOperation.SEND, FaultOperation.RECEIVE)
}


def operations_of(kind: FaultKind) -> Collection[FaultOperation]:
    """The operations that a fault of this kind can meet."""
    return _OF_KIND.get(kind, tuple(FaultOperation))


@attrs.frozen(kw_only=True)
class FaultOrder:
    """
    An operator's order to add a fault. Times are seconds.

    Raises:
        InvalidRequest: a pattern or an operation is malformed, or a number is out of its limits.
    """

    kind: FaultKind
    entities: tuple[str, ...] = (EVERYTHING,)  # names and patterns
    operations: tuple[str, ...] = ()  # of `FaultOperation`; none: all that the kind can meet
    clients: tuple[str, ...] = (EVERYTHING,)  # names of policies and accounts, and patterns
    count: int | None = None  # operations that meet it, after which it ends; None: any number
    seconds: float | None = None  # after which it ends; None: when it is cleared
    delay: float = 1.0  # of `BUSY` and `DELAY`
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        check_targets(self.entities)
        if not self.clients or not all(self.clients):
            raise InvalidRequest("clients: names of policies, or patterns, expected")
        known = [each.value for each in operations_of(self.kind)]
        for name in self.operations:
            if name not in known:
                raise InvalidRequest(
                    f"operations: {' or '.join(known)} expected for {self.kind.value},"
                    f" got {name!r:.60}"
                )
        if self.count is not None and self.count < 1:
            raise InvalidRequest(f"count: 1 or more expected, got {self.count}")
        for key, value in (("seconds", self.seconds), ("delay", self.delay)):
            if value is not None and not 0.0 < value < inf:
                raise InvalidRequest(f"{key}: a number above 0 expected, got {value:g}")
        check_reason(self.reason)

    def meets(self, operation: FaultOperation, entity: EntityPath, client: str) -> bool:
        """True if that client's operation on that entity meets the fault."""
        if operation not in operations_of(self.kind):
            return False
        if self.operations and operation.value not in self.operations:
            return False
        names = {entity.key, entity.parent_key, entity.topic.key}
        return any(matches(each, name) for each in self.entities for name in names) and any(
            matches(each, client) for each in self.clients
        )


@attrs.frozen(kw_only=True)
class Fault:
    """A fault that is in force, or has just ended."""

    id: str
    kind: FaultKind
    entities: tuple[str, ...]
    operations: tuple[str, ...]  # none: all that the kind can meet
    clients: tuple[str, ...]
    left: int | None  # operations that will still meet it; None: any number
    times: int  # operations that have met it
    delay: float  # seconds
    reason: str
    operator: str
    since: datetime
    until: datetime | None  # its end, if it isn't reached before; None: until it is cleared

    @property
    def text(self) -> str:
        """The fault in a few words, for people."""
        what = "/".join(self.operations) or "every operation"
        whose = "" if self.clients == (EVERYTHING,) else f" by {' '.join(self.clients)}"
        left = "" if self.left is None else f", {self.left} more"
        until = "" if self.until is None else f", until {self.until.astimezone(UTC):%H:%M:%S} UTC"
        met = f"{what} on {' '.join(self.entities)}{whose}"
        return f"{self.kind.value} of {met}{left}{until}; {self.times} so far"


@attrs.frozen(kw_only=True)
class FaultState:
    """The faults that are in force, and whether this process allows any."""

    allowed: bool
    faults: tuple[Fault, ...] = ()


@attrs.frozen(kw_only=True)
class FaultsToClear:
    """An operator's order to end faults, by their ids; none: all of them."""

    ids: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class FaultAnswer:
    """The result of an order. `faults` are those that it has added or ended."""

    action: str
    changed: bool
    faults: tuple[Fault, ...]
    after: FaultState


_AUDITED: Final = ("changed", "faults")

FAULTS: Final = ControlCall(
    name="faults",
    method="GET",
    summary="the faults that are in force for clients of the embedded namespace",
    request=NoKeys,
    answer=FaultState,
    refusals=(501,),
    missing="is no gateway, and has no faults",
)
ADD_FAULT: Final = ControlCall(
    name="add-fault",
    summary="adds a fault that clients of the embedded namespace meet",
    request=FaultOrder,
    answer=FaultAnswer,
    audited=_AUDITED,
)
CLEAR_FAULTS: Final = ControlCall(
    name="clear-faults",
    summary="ends faults",
    request=FaultsToClear,
    answer=FaultAnswer,
    audited=_AUDITED,
)
