"""
Dates as microseconds since 1970 UTC, and a moment on both clocks.

An int compares the same way in SQL and in Python.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from gateway.domain.values import value

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_END_OF_TIME: Final = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // MICROSECOND


def to_micros(date: datetime) -> int:
    return (date - EPOCH) // MICROSECOND


def to_date(micros: int) -> datetime:
    return EPOCH + timedelta(0, 0, micros)


def moved(date: datetime, span: timedelta) -> datetime | None:
    """The date plus the span, which may be negative; None: before the year 1, or after 9999."""
    try:
        return date + span
    except OverflowError:
        return None


def later(micros: int, duration: timedelta) -> int | None:
    """The date after `duration`; None: later than the year 9998, which means never."""
    date = micros + duration // MICROSECOND
    return date if date < _END_OF_TIME else None


@value
class Now:
    """
    The same moment on both clocks.

    Dates that users see (enqueued, scheduled, expires) are on the wall clock. Locks use the
    monotonic clock, so that setting the wall clock doesn't end every lock at once.
    """

    wall: int  # microseconds since 1970
    monotonic: float  # seconds
    untrusted_until: float = (
        -math.inf
    )  # monotonic; after a step of the wall clock nothing is due until then
    before: int | None = None  # as `wall`, without the step; None: the wall clock isn't in doubt
    # Microseconds by which large steps have moved the wall clock, now and at `before`. The own date
    # of a namespace is without them: its messages live on as if the clock had always been right.
    shift: int = 0
    shift_before: int = 0
    own: int = attrs.field(init=False)  # the own date of the namespace, in microseconds

    @own.default
    def _own(self) -> int:
        return self.wall - self.shift

    @property
    def trusted(self) -> bool:
        return self.monotonic >= self.untrusted_until

    @property
    def earliest(self) -> int:
        """The earlier candidate for the date, in microseconds: for events that mustn't be early."""
        return self.wall if self.before is None else min(self.wall, self.before)

    @property
    def latest(self) -> int:
        """The later candidate for the date, in microseconds: for spans that mustn't end early."""
        return self.wall if self.before is None else max(self.wall, self.before)

    @property
    def own_latest(self) -> int:
        """The later candidate for the own date: for spans that mustn't end early."""
        return self.own if self.before is None else max(self.own, self.before - self.shift_before)

    def when(self, wall: int) -> float:
        """The time on the monotonic clock at which the wall clock shows `wall`."""
        return max(self.monotonic + (wall - self.wall) / 1e6, self.untrusted_until)
