"""Event of a move, for the log."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class EntityMoved(Event):
    """The side that an entity leaves is empty: all of it is at the other one."""

    entity: EntityPath
    to: str  # old or new
    messages: int  # that were moved so far, beside those that receivers have got
    doubtful: int  # ids that may be on both sides
    left: int  # messages that stay where they are
