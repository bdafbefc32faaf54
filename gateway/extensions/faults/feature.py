"""Faults in a gateway's process."""

from typing import Final

import attrs

from gateway.app.assembly.interceptor_rows import InterceptorRow, Place
from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.operations.control_calls import Executors
from gateway.capabilities import Visibility
from gateway.domain.operators.control import Operator
from gateway.domain.status.sections import Readings
from gateway.extensions.faults import EXTENSION
from gateway.extensions.faults.faults import Faults
from gateway.extensions.faults.interceptor import FaultInterceptor
from gateway.extensions.faults.options import FAULTS as OPTIONS
from gateway.extensions.faults.order import (
    ADD_FAULT,
    CLEAR_FAULTS,
    FaultState,
)
from gateway.extensions.faults.order import (
    FAULTS as STATE,
)
from gateway.extensions.faults.section import FAULTS as SECTION
from gateway.extensions.faults.visibility import FaultyVisibility
from gateway.frontends.admin.control import Executor, at_once
from gateway.store.local.visibility import LocalVisibility
from gateway.wire.pairgate.control_call import NoKeys


def make(plan: ProcessPlan) -> Feature:
    """The faults of a process; without `faults.allowed` each order is refused."""
    runtime = plan.runtime
    allowed = plan.config.of(OPTIONS).allowed
    return Faulting(Faults(allowed=allowed, clock=runtime.now, observer=runtime.observer))


@attrs.frozen(eq=False)
class Faulting(Feature):
    faults: Faults

    def executors(self, parts: Parts) -> Executors:
        return executors(self.faults)

    def visibility(self, own: Visibility) -> Visibility:
        met = self.faults.allowed and isinstance(own, LocalVisibility)
        return FaultyVisibility(own, self.faults) if met else own

    def readings(self) -> Readings:
        return {SECTION: lambda: self.faults.state().faults}


def executors(faults: Faults) -> Executors:
    def state(_: NoKeys, __: Operator) -> FaultState:
        return faults.state()

    def allowed() -> bool:
        return faults.allowed

    return [
        Executor(STATE, at_once(state)),
        Executor(ADD_FAULT, at_once(faults.add), allowed),
        Executor(CLEAR_FAULTS, at_once(faults.clear), allowed),
    ]


def _interceptor(place: Place) -> FaultInterceptor | None:
    feature = place.features.get(EXTENSION.name)
    is_home = place.namespace.name == place.config.home_name
    if not isinstance(feature, Faulting) or not feature.faults.allowed or not is_home:
        return None
    return FaultInterceptor(feature.faults)


FAULTS: Final = InterceptorRow(
    "faults",
    "gateway/extensions/faults/interceptor.py",
    "[faults] with allowed = true",
    _interceptor,
)
