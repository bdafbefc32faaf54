"""Events of faults that an operator has asked for."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class FaultAdded(Event):
    """From now on clients of the embedded namespace meet a fault."""

    level = "warning"

    fault: str  # its id
    kind: str
    target: str  # the entities and patterns, separated by spaces
    operator: str
    reason: str


@attrs.frozen(kw_only=True)
class FaultOver(Event):
    """No operation meets the fault any more."""

    fault: str  # its id
    kind: str
    times: int  # operations that have met it
    ended_by: str  # the operator who cleared it; empty: its count or its time was up
