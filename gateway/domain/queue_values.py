"""What a queue answers: messages as they are handed out, and whom a step concerns."""

from collections.abc import Sequence

import attrs

from gateway.domain.stored import Row


@attrs.frozen
class Taken:
    """A row as it's handed out, for which time; `token` and `locked_until` (wall) if locked."""

    row: Row
    deliveries: int
    token: str | None = None
    locked_until: int | None = None


@attrs.define(kw_only=True)
class News:
    """Whom a step concerns: how much became available, and when to look again (monotonic)."""

    active: int = 0  # messages; sessions, where the queue has them
    dead: int = 0
    transfer: int = 0
    sessions: frozenset[str] = frozenset()  # held ones in which something has changed
    quarantined: Sequence[int] = ()
    due: float | None = None
