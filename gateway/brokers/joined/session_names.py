"""The sessions of several queues that are received from as one."""

from collections.abc import Sequence
from datetime import datetime

from gateway.capabilities import Sessions
from gateway.domain.entity import EntityPath


async def first_sessions(
    sessions: Sessions, queue: EntityPath, wanted: int, *, updated_since: datetime | None = None
) -> Sequence[str]:
    """
    The first `wanted` sessions of one of the queues, as `Sessions.list_sessions`: a namespace may
    return fewer at once than it was asked for.
    """
    found: list[str] = []
    while len(found) < wanted:
        page = await sessions.list_sessions(
            queue, updated_since=updated_since, skip=len(found), top=wanted - len(found)
        )
        if not page:
            break
        found += page
    return found
