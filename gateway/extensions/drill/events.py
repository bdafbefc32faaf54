"""Events of drills."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class DrillBegan(Event):
    """A drill cuts this process's way to a namespace, or to some of its entities."""

    level = "warning"

    namespace: str
    target: str  # the entities and patterns, separated by spaces; `*`: the whole namespace
    fault: str
    seconds: float  # after which it ends by itself
    operator: str
    reason: str


@attrs.frozen(kw_only=True)
class DrillEnded(Event):
    """The way to the namespace is restored."""

    namespace: str
    target: str
    fault: str
    seconds: float  # that it was cut for
    ended_by: str  # the operator who took the order back; empty: its time was up
