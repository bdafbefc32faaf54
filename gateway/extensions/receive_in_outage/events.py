"""The event of a backlog queue that can't be received from."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class BacklogNotReceived(Event):
    """
    Receivers of the entity don't get what is diverted: its backlog queue is missing, or the
    gateway's credentials may not receive from it.
    """

    level = "warning"

    entity: EntityPath
    queue: EntityPath
    reason: str
