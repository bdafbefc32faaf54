"""
Drills of this process: begun and ended by operators, and over when their time is up.

In a gateway with workers the parent begins and ends them, and each worker cuts its own way to the
namespace as the parent does.
"""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.events.control import ControlCalled
from gateway.domain.operators.control import Operator
from gateway.extensions.drill.events import DrillBegan, DrillEnded
from gateway.extensions.drill.interceptor import Cut
from gateway.extensions.drill.order import Drill, DrillAnswer, DrillOrder, DrillState
from gateway.ports import Observer, WallClock
from gateway.wire.pairgate import admin_json

BEGIN: Final = "drill"
END: Final = "end-drill"


@attrs.define(eq=False, kw_only=True)
class Drills:
    """
    Executes orders for drills. At most one drill is under way; it isn't stored, so that it ends
    with the process.
    """

    clock: WallClock
    observer: Observer
    cuts: Mapping[str, Cut]  # by namespace, the primary first; empty: drills aren't allowed
    longest: float  # seconds
    # Called with each drill that begins and its duration in seconds, and with None at its end.
    followers: list[Callable[[Drill | None, float], None]] = attrs.field(factory=list, init=False)
    _drill: Drill | None = attrs.field(default=None, init=False)
    _began: float = attrs.field(default=0.0, init=False)  # as `trio.current_time()`
    _deadline: float = attrs.field(default=0.0, init=False)
    _orders: Changes = attrs.field(factory=Changes, init=False)

    @property
    def drill(self) -> Drill | None:
        """The drill that is under way."""
        return None if trio.current_time() >= self._deadline else self._drill

    @property
    def left(self) -> float:
        """Seconds until the end of the drill that is under way."""
        return 0.0 if self.drill is None else self._deadline - trio.current_time()

    def state(self) -> DrillState:
        return DrillState(allowed=bool(self.cuts), longest=self.longest, drill=self.drill)

    def begin(self, order: DrillOrder, operator: Operator) -> DrillAnswer:
        """
        Begin a drill, and report it with its operator; the way is cut when this returns. An order
        with the same targets and fault as the drill that is under way changes nothing.

        Raises:
            NotSupported: the configuration doesn't allow drills.
            InvalidRequest: another drill is under way, the drill is too long, or there is no such
                namespace.
        """
        name = self._checked(order)
        self._stop_if_over()
        before = self.state()
        if (running := self._drill) is not None:
            given = (name, order.targets, order.fault, order.delay)
            if given != (running.namespace, running.targets, running.fault, running.delay):
                raise InvalidRequest(f"a drill is under way: {running.text}")
        now = self.clock()
        drill = Drill(
            namespace=name,
            targets=order.targets,
            fault=order.fault,
            delay=order.delay,
            reason=order.reason,
            operator=operator.name,
            since=now,
            until=now + timedelta(seconds=order.seconds),
        )
        self.observer.report(
            ControlCalled.by(
                operator,
                BEGIN,
                changed=running is None,
                targets=drill.targets,
                reason=drill.reason,
                until=drill.until,
            )
        )
        if running is None:
            self._begin(drill, order.seconds)
        return DrillAnswer(action=BEGIN, changed=running is None, before=before, after=self.state())

    def end(self, operator: Operator) -> DrillAnswer:
        """Restore the way, and report who did. Without a drill nothing changes."""
        self._stop_if_over()
        before, running = self.state(), self._drill
        targets = () if running is None else running.targets
        self.observer.report(
            ControlCalled.by(operator, END, changed=running is not None, targets=targets)
        )
        if running is not None:
            self._restore(operator.name)
        return DrillAnswer(
            action=END, changed=running is not None, before=before, after=self.state()
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, end each drill whose time is up; at the end, the one under way."""
        task_status.started()
        try:
            while True:
                ends = self._deadline if self._drill is not None else float("inf")
                with trio.move_on_at(ends):
                    await self._orders.wait_next()
                self._stop_if_over()
        finally:
            if self._drill is not None:
                self._restore("")

    def _checked(self, order: DrillOrder) -> str:
        """The name of the order's namespace."""
        if not self.cuts:
            raise NotSupported(
                "the configuration doesn't allow drills: it needs `[drill]` with `allowed = true`"
            )
        if order.seconds > self.longest:
            raise InvalidRequest(f"seconds: at most {self.longest:g} expected (drill.max_duration)")
        names = list(self.cuts)
        name = names[0] if order.namespace is None else order.namespace
        if name not in self.cuts:
            raise InvalidRequest(f"namespace: {' or '.join(names)} expected, got {name!r:.100}")
        return name

    def _begin(self, drill: Drill, seconds: float) -> None:
        self._drill, self._began = drill, trio.current_time()
        self._deadline = self._began + seconds
        self.observer.report(
            DrillBegan(
                namespace=drill.namespace,
                target=" ".join(drill.targets),
                fault=drill.fault.value,
                seconds=seconds,
                operator=drill.operator,
                reason=drill.reason,
            )
        )
        self.cuts[drill.namespace].begin(drill, self._deadline)
        self._notify_followers(drill, seconds)
        self._orders.notify()

    def _stop_if_over(self) -> None:
        if self._drill is not None and trio.current_time() >= self._deadline:
            self._restore("")

    def _restore(self, ended_by: str) -> None:
        drill, self._drill = self._drill, None
        assert drill is not None, "the callers have checked"
        self.cuts[drill.namespace].restore()
        self._notify_followers(None, 0.0)
        self.observer.report(
            DrillEnded(
                namespace=drill.namespace,
                target=" ".join(drill.targets),
                fault=drill.fault.value,
                seconds=round(trio.current_time() - self._began, 3),
                ended_by=ended_by,
            )
        )
        self._orders.notify()

    def _notify_followers(self, drill: Drill | None, seconds: float) -> None:
        for follow in self.followers:
            follow(drill, seconds)


def drill_message(drill: Drill | None, seconds: float) -> Mapping[str, Any]:
    """
    The message to a worker about the drill that is under way, with its remaining seconds; None:
    about its end.
    """
    value = None if drill is None else admin_json.value_of(drill)
    return {"drill": value, "seconds": seconds}


@attrs.define(eq=False)
class DrillReplica:
    """
    The worker's side. A drill ends at its time by itself, even if the parent has ended before.
    """

    cuts: Mapping[str, Cut]  # by namespace
    _drill: Drill | None = attrs.field(default=None, init=False)

    def apply(self, message: Mapping[str, Any]) -> None:
        """Begin or end the drill of the message, if it is about drills."""
        if "drill" not in message:
            return
        if self._drill is not None:
            self.cuts[self._drill.namespace].restore()
            self._drill = None
        if message["drill"] is not None:
            value = json.dumps(message["drill"]).encode()
            drill = self._drill = admin_json.parse_answer(value, Drill, "a drill")
            self.cuts[drill.namespace].begin(drill, trio.current_time() + message["seconds"])
