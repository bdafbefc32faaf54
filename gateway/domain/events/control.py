"""Events of control by operators."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class ControlCalled(Event):
    """An operator steered this process, or tried to: with `changed` false, nothing was to do."""

    action: str
    target: str  # the entities, patterns or backlog queues, separated by spaces
    reason: str
    operator: str  # the name of the access policy or the user
    peer: str  # the address of the call
    until: str  # the date at which it ends by itself; empty: an operator must end it
    changed: bool


@attrs.frozen(kw_only=True)
class ControlEnded(Event):
    """The end of an operator's order has come: the entities return, or the syphon resumes."""

    action: str  # that took effect now: failback or resume
    target: str
    operator: str  # of the order that ended
