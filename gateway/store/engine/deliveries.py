"""The results of queue operations: delivered messages, and which receivers must be woken."""

from collections.abc import Sequence

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.values import value
from gateway.store.engine.records import Row


@value
class TakenRow:
    """
    A row that was delivered. `token` and `locked_until` (wall clock) are set if it is locked; `at`
    is the time of the delivery (wall clock).
    """

    row: Row
    deliveries: int
    token: str | None = None
    locked_until: int | None = None
    at: int | None = None


@attrs.define(kw_only=True)
class News:
    """
    The messages that became available in a queue since the last report, and when (monotonic) the
    queue must be looked at again.
    """

    active: int  # messages; or sessions, if the queue requires them
    dead: int
    transfer: int
    # Held sessions in which messages became available, or whose lock ended.
    sessions: frozenset[str] = frozenset()
    quarantined: Sequence[int] = ()
    damaged: Sequence[str] = ()  # ids of sessions whose state is damaged
    due: float | None = None


@attrs.frozen
class StepReport:
    """
    The effect of some steps on others: news by path, and when (monotonic) the namespace has due
    work.

    A path whose news is None names a queue that was changed or deleted, or whose news is unknown:
    all receivers that wait there must look again. `faults` are the bugs that ended steps.
    """

    news: Sequence[tuple[EntityPath, News | None]] = ()
    next_due_work: float | None = None
    faults: Sequence[tuple[EntityPath, Exception]] = ()
