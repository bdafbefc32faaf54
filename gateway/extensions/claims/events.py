"""Events about bodies in the claim store."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class ClaimBackingOff(Event):
    """A message's body can't be read from the claim store now: the message waits for it."""

    level = "warning"
    same = ("queue",)
    crowd = ("queue",)

    queue: EntityPath
    claim: str
    reason: str


@attrs.frozen(kw_only=True)
class ClaimLost(Event):
    """A message's body is missing or damaged: the message was dead-lettered (a red state)."""

    level = "error"

    queue: EntityPath
    claim: str
    reason: str
    description: str


@attrs.frozen(kw_only=True)
class ClaimCopyDropped(Event):
    """A duplicate arrived long after its message was completed, and was completed as well."""

    queue: EntityPath
    claim: str


@attrs.frozen(kw_only=True)
class ClaimLeftBehind(Event):
    """An unneeded body couldn't be marked or removed: it will be removed because of its age."""

    level = "warning"

    claim: str
    reason: str


@attrs.frozen(kw_only=True)
class ClaimsCollected(Event):
    """A collection of unneeded bodies in the claim store has ended."""

    kept: int
    removed: int


@attrs.frozen(kw_only=True)
class ClaimCollectionFailed(Event):
    """A collection of unneeded bodies in the claim store failed; the next one follows."""

    level = "warning"

    reason: str
