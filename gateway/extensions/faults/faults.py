"""
The faults of this process: added and cleared by operators, met by operations of clients, and over
when their count or their time is up. They aren't stored: they end with the process.
"""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from math import inf
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.events.control import ControlCalled
from gateway.domain.operators.control import Operator
from gateway.extensions.faults.events import FaultAdded, FaultOver
from gateway.extensions.faults.order import (
    MOST,
    Fault,
    FaultAnswer,
    FaultOperation,
    FaultOrder,
    FaultState,
    FaultsToClear,
)
from gateway.ports import Observer, WallClock

ADD: Final = "add-fault"
CLEAR: Final = "clear-faults"


@attrs.define(eq=False, kw_only=True)
class FaultInForce:
    """A fault that operations meet. `ended` is set when none does any more."""

    order: FaultOrder
    described: Fault  # as it was added
    deadline: float  # as `trio.current_time()`
    times: int = attrs.field(default=0, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def left(self) -> int | None:
        return None if self.order.count is None else self.order.count - self.times

    def describe(self) -> Fault:
        return attrs.evolve(self.described, left=self.left, times=self.times)


@attrs.define(eq=False, kw_only=True)
class Faults:
    """Executes orders, and tells which fault an operation meets."""

    allowed: bool
    clock: WallClock
    observer: Observer
    on_added: Callable[[FaultOrder], None] = attrs.field(default=lambda _: None)
    in_force: list[FaultInForce] = attrs.field(factory=list, init=False)  # in their order
    _ids: Callable[[], int] = attrs.field(factory=lambda: count(1).__next__, init=False)

    def state(self) -> FaultState:
        self._remove_expired()
        faults = tuple(each.describe() for each in self.in_force)
        return FaultState(allowed=self.allowed, faults=faults)

    def add(self, order: FaultOrder, operator: Operator) -> FaultAnswer:
        """
        Add a fault, and report it with its operator. Each operation that begins later meets it, and
        so does each wait for messages that is pending.

        Raises:
            NotSupported: the configuration doesn't allow faults.
            InvalidRequest: there are too many.
        """
        if not self.allowed:
            raise NotSupported(
                "the configuration doesn't allow faults: it needs `[faults]` with `allowed = true`"
            )
        self._remove_expired()
        if len(self.in_force) >= MOST:
            raise InvalidRequest(f"{MOST} faults are in force, the most allowed: clear some")
        added = self._make(order, operator)
        fault = added.described
        self.observer.report(
            ControlCalled.by(
                operator,
                ADD,
                changed=True,
                targets=order.entities,
                reason=order.reason,
                until=fault.until,
            )
        )
        self.observer.report(
            FaultAdded(
                fault=fault.id,
                kind=order.kind.value,
                target=" ".join(order.entities),
                operator=operator.name,
                reason=order.reason,
            )
        )
        self.in_force.append(added)
        self.on_added(order)
        return FaultAnswer(action=ADD, changed=True, faults=(fault,), after=self.state())

    def clear(self, order: FaultsToClear, operator: Operator) -> FaultAnswer:
        """
        End the faults with these ids, or all, and report who did. Operations that they delay go on
        at once.

        Raises:
            InvalidRequest: no fault in force has one of these ids; none was ended.
        """
        self._remove_expired()
        known = {each.described.id: each for each in self.in_force}
        for name in order.ids:
            if name not in known:
                raise InvalidRequest(f"ids: no fault {name!r:.60} is in force")
        ended = [known[name] for name in dict.fromkeys(order.ids or known)]
        self.observer.report(
            ControlCalled.by(operator, CLEAR, changed=bool(ended), targets=order.ids)
        )
        faults = tuple(each.describe() for each in ended)
        for each in ended:
            self._remove(each, operator.name)
        return FaultAnswer(action=CLEAR, changed=bool(ended), faults=faults, after=self.state())

    def find(
        self, operation: FaultOperation, entity: EntityPath, client: str
    ) -> FaultInForce | None:
        """The fault that this operation meets: the first one that was added."""
        self._remove_expired()
        meeting = (each for each in self.in_force if each.order.meets(operation, entity, client))
        return next(meeting, None)

    def strike(
        self, operation: FaultOperation, entity: EntityPath, client: str
    ) -> FaultInForce | None:
        """As `find`; the operation counts, and a fault whose count is up ends."""
        found = self.find(operation, entity, client)
        if found is not None:
            found.times += 1
            if found.left == 0:
                self._remove(found, "")
        return found

    def _make(self, order: FaultOrder, operator: Operator) -> FaultInForce:
        now = self.clock()
        until = None if order.seconds is None else now + timedelta(seconds=order.seconds)
        fault = Fault(
            id=str(self._ids()),
            kind=order.kind,
            entities=order.entities,
            operations=order.operations,
            clients=order.clients,
            left=order.count,
            times=0,
            delay=order.delay,
            reason=order.reason,
            operator=operator.name,
            since=now,
            until=until,
        )
        seconds = inf if order.seconds is None else order.seconds
        return FaultInForce(order=order, described=fault, deadline=trio.current_time() + seconds)

    def _remove_expired(self) -> None:
        now = trio.current_time()
        for each in [each for each in self.in_force if each.deadline <= now]:
            self._remove(each, "")

    def _remove(self, fault: FaultInForce, ended_by: str) -> None:
        self.in_force.remove(fault)
        if ended_by:
            fault.ended.set()
        self.observer.report(
            FaultOver(
                fault=fault.described.id,
                kind=fault.order.kind.value,
                times=fault.times,
                ended_by=ended_by,
            )
        )
