"""Event of a redrive."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class DeadLettersRedriven(Event):
    """Dead letters of the backlog were moved back into the backlog, by an operator's command."""

    messages: int
    left: int  # selected messages that couldn't be moved
    reason: str = ""  # as the operator gave it
