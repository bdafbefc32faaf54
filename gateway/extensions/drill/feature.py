"""Drills in a gateway's process, and in its workers: each cuts its own way as the parent does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from gateway.app.assembly.interceptor_rows import InterceptorRow, Place
from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.assembly.roles import LEADING
from gateway.app.assembly.services import ServiceRow, ready
from gateway.app.operations.control_calls import Executors
from gateway.domain.operators.control import Operator
from gateway.domain.status.sections import Readings
from gateway.extensions.drill import EXTENSION
from gateway.extensions.drill.drills import DrillReplica, Drills, drill_message
from gateway.extensions.drill.interceptor import Cut
from gateway.extensions.drill.options import DRILL as OPTIONS
from gateway.extensions.drill.order import DRILL, DRILLS, END_DRILL, DrillAnswer, DrillState
from gateway.extensions.drill.section import DRILL as SECTION
from gateway.frontends.admin.control import Executor, at_once
from gateway.wire.pairgate.control_call import NoKeys


def make(plan: ProcessPlan) -> Feature | None:
    """The drills of a pair; without `drill.allowed` each order is refused."""
    pairing, options = plan.config.pairing, plan.config.of(OPTIONS)
    if pairing is None:
        return None
    names = (pairing.primary, pairing.secondary) if options.allowed else ()
    drills = Drills(
        clock=plan.runtime.now,
        observer=plan.runtime.observer,
        cuts={name: Cut() for name in names},
        longest=options.max_duration,
    )
    return Drilling(drills, DrillReplica(drills.cuts))


@attrs.frozen(eq=False)
class Drilling(Feature):
    drills: Drills
    replica: DrillReplica  # of the parent's drill, in a worker

    def executors(self, parts: Parts) -> Executors:
        return executors(self.drills)

    def readings(self) -> Readings:
        return {SECTION: lambda: self.drills.drill}

    def in_force(self) -> Sequence[str]:
        drill = self.drills.drill
        return () if drill is None else (drill.text,)

    def greeting(self) -> Mapping[str, Any]:
        drill = self.drills.drill
        return {} if drill is None else drill_message(drill, self.drills.left)

    def follow(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        self.drills.followers.append(lambda drill, seconds: send(drill_message(drill, seconds)))

    def receive(self, message: Mapping[str, Any]) -> None:
        self.replica.apply(message)


def executors(drills: Drills) -> Executors:
    def state(_: NoKeys, __: Operator) -> DrillState:
        return drills.state()

    def end(_: NoKeys, operator: Operator) -> DrillAnswer:
        return drills.end(operator)

    def allowed() -> bool:
        return drills.state().allowed

    return [
        Executor(DRILLS, at_once(state)),
        Executor(DRILL, at_once(drills.begin), allowed),
        Executor(END_DRILL, at_once(end), allowed),
    ]


def _cut(place: Place) -> Cut | None:
    feature = place.features.get(EXTENSION.name)
    return feature.drills.cuts.get(place.namespace.name) if isinstance(feature, Drilling) else None


def _drills(parts: Parts) -> list[Drills]:
    feature = parts.features.get(EXTENSION.name)
    return [feature.drills] if isinstance(feature, Drilling) else []


# The core measures what a drill refuses as a failure of the namespace, and never announces it.
CUT: Final = InterceptorRow(
    "drill",
    "gateway/extensions/drill/interceptor.py",
    "[drill] and [pairing]",
    _cut,
    is_measured=True,
)
SERVICE: Final = ServiceRow("drills", LEADING, ready(_drills))
