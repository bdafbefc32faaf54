"""Event of a redrive."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class DeadLettersRedriven(Event):
    """Dead letters were moved back into their queues, by an operator's command."""

    messages: int
    left: int  # selected messages that couldn't be moved
    reason: str = ""  # as the operator gave it
    queue: str = ""  # empty: those of the backlog
