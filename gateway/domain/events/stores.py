"""Events of the embedded broker about its store."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class Quarantined(Event):
    """A stored message can't be read any more. It was set aside, and an operator must look."""

    level = "error"

    queue: EntityPath
    sequence_number: int


@attrs.frozen(kw_only=True)
class SessionStateDamaged(Event):
    """The stored state of a session is corrupt; its messages aren't affected. Reported once."""

    level = "error"

    queue: EntityPath
    session_id: str


@attrs.frozen(kw_only=True)
class RequestFailed(Event):
    """A bug ended one request to the embedded broker; its changes were rolled back."""

    level = "error"

    entity: EntityPath
    traceback: str
