"""Events of control by operators."""

from collections.abc import Sequence
from datetime import datetime
from typing import Self

import attrs

from gateway.domain.events.gateway import Event
from gateway.domain.operators.control import Operator


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

    @classmethod
    def by(
        cls,
        operator: Operator,
        action: str,
        *,
        changed: bool,
        targets: Sequence[str] = (),
        reason: str = "",
        until: datetime | None = None,
    ) -> Self:
        """The event of that operator's call."""
        return cls(
            action=action,
            target=" ".join(targets),
            reason=reason,
            operator=operator.name,
            peer=operator.peer,
            until="" if until is None else until.isoformat(),
            changed=changed,
        )


@attrs.frozen(kw_only=True)
class AuditFailed(Event):
    """The audit log lacks the line of an operator's call, which was executed or refused."""

    level = "error"

    reason: str


@attrs.frozen(kw_only=True)
class AuditRestored(Event):
    """The audit log takes lines again, after `AuditFailed`."""

    file: str
    lines: int  # that were missing, and are in it now
    missing: int  # that may not be in it


@attrs.frozen(kw_only=True)
class ControlEnded(Event):
    """The end of an operator's order has come: the entities return, or the syphon resumes."""

    action: str  # that took effect now: failback or resume
    target: str
    operator: str  # of the order that ended
