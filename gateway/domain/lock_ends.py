"""
When a lock that was taken ends, by the monotonic clock of who took it.

The namespace says it as a date of its own wall clock. That one and ours may differ, and either may
be set: so the date is looked at once, when the lock is taken or renewed, and trusted only as far
as it agrees with how long a lock usually holds.
"""

import math
from datetime import datetime
from typing import Final

import attrs

# Seconds: where a queue says nothing else, and a backlog queue's, as the legacy client makes it.
USUAL_LOCK: Final = 60.0


@attrs.frozen
class LockEnds:
    """It is renewed before the earliest, and isn't taken for lost before the latest."""

    earliest: float
    latest: float

    @classmethod
    def of(cls, locked_until: datetime | None, date: datetime, now: float) -> "LockEnds":
        """Of a lock that was taken or renewed just now; None: it holds until it's settled."""
        if locked_until is None:
            return ENDLESS
        left = (locked_until - date).total_seconds()
        shortest = min(left, USUAL_LOCK) if left > 0 else USUAL_LOCK
        return cls(now + shortest, now + max(left, USUAL_LOCK))


ENDLESS: Final = LockEnds(math.inf, math.inf)
OVER: Final = LockEnds(-math.inf, -math.inf)  # the namespace says so
