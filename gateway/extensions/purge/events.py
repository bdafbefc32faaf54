"""Event of a purge."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class BacklogPurged(Event):
    """An operator deleted messages of a backlog queue, which never arrive at the primary."""

    level = "warning"

    queue: str
    messages: int
    left: int  # that others had locked
    operator: str
