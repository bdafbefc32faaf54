"""
The end of a lock, by the monotonic clock of the receiver.

The namespace reports the end as a date of its own wall clock. That clock may differ from ours, and
both may be set. The date is therefore read once, when the lock is acquired or renewed, and trusted
only as far as it agrees with the lock duration of the queue, or the usual one.
"""

import math
from datetime import datetime
from typing import Final

import attrs

# Seconds, if the lock duration of a queue isn't known.
USUAL_LOCK: Final = 60.0


@attrs.frozen
class LockEnds:
    """A lock is renewed before `earliest`, and doesn't count as lost before `latest`."""

    earliest: float
    latest: float

    @classmethod
    def of(
        cls, locked_until: datetime | None, date: datetime, now: float, usual: float = USUAL_LOCK
    ) -> "LockEnds":
        """
        The end of a lock that was acquired or renewed just now. `locked_until` None: the lock
        lasts until the message is settled.

        `usual`: the lock duration of the queue, in seconds.
        """
        if locked_until is None:
            return ENDLESS
        left = (locked_until - date).total_seconds()
        shortest = min(left, usual) if left > 0 else usual
        return cls(now + shortest, now + max(left, usual))


ENDLESS: Final = LockEnds(math.inf, math.inf)
OVER: Final = LockEnds(-math.inf, -math.inf)  # the namespace says so
