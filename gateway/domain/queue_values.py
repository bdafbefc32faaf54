"""What queues answer: messages as they are handed out, and whom steps concern."""

from collections.abc import Sequence

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.stored import Row
from gateway.domain.values import value


@value
class Taken:
    """A row as it's handed out, for which time; `token` and `locked_until` (wall) if locked."""

    row: Row
    deliveries: int
    token: str | None = None
    locked_until: int | None = None


@attrs.define(kw_only=True)
class News:
    """What became available in a queue, and when to look again (monotonic)."""

    active: int  # messages; sessions, where the queue has them
    dead: int
    transfer: int
    sessions: frozenset[str] = frozenset()  # held ones in which something has changed
    quarantined: Sequence[int] = ()
    damaged: Sequence[str] = ()  # sessions whose state is
    due: float | None = None


@attrs.frozen
class Report:
    """
    Whom some steps concern, and when (monotonic) the namespace has errands to run.

    No news of a path: there's no such queue (any more).
    """

    news: Sequence[tuple[EntityPath, News | None]] = ()
    next_errand: float | None = None
