"""
What a namespace that we keep ourselves stores of a message, and what it needs of its storage.

Dates are microseconds since 1970 UTC as int: they are compared by SQL and by Python alike.
"""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import attrs

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_END_OF_TIME: Final = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // MICROSECOND


def to_micros(date: datetime) -> int:
    return (date - EPOCH) // MICROSECOND


def to_date(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def later(micros: int, duration: timedelta) -> int | None:
    """The date after `duration`; None where that is past the year 9998: never."""
    date = micros + duration // MICROSECOND
    return date if date < _END_OF_TIME else None


@attrs.frozen
class Now:
    """
    One moment on both clocks.

    Dates that a user can see (enqueued, scheduled, expires) are on the wall clock. Locks run on
    the monotonic one: a wall clock that is set must not take every lock away at once.
    """

    wall: int  # microseconds since 1970
    monotonic: float  # seconds
    held_until: float = -math.inf  # monotonic; the wall clock was set: until then nothing is due

    @property
    def trusted(self) -> bool:
        return self.monotonic >= self.held_until

    def when(self, wall: int) -> float:
        """The moment on the monotonic clock when the wall clock shows `wall`."""
        return max(self.monotonic + (wall - self.wall) / 1e6, self.held_until)


class State(enum.IntEnum):
    """Where a message of a queue is. Locked ones are ACTIVE or DEAD: locks aren't stored."""

    ACTIVE = 0
    SCHEDULED = 1
    DEAD = 2  # in the dead-letter sub-queue


@attrs.frozen(kw_only=True)
class Incoming:
    """A message on its way in: what the rules look at, and what only the storage knows to read."""

    content: Any
    size: int  # bytes, encoded
    time_to_live: timedelta | None = None
    scheduled: datetime | None = None


@attrs.frozen(kw_only=True)
class Row:
    """A stored message. `deliveries` have been begun so far; `due` is set while it is scheduled."""

    sequence: int
    state: State
    enqueued: int
    size: int
    content: Any
    due: int | None = None
    expires: int | None = None
    deliveries: int = 0
    original: int | None = None  # the sequence number that it was given first, if it had another
    reason: str | None = None
    description: str | None = None
    damaged: bool = False  # its checksum doesn't fit: never to be served


@attrs.frozen
class Total:
    messages: int
    bytes: int


class Rows(Protocol):
    """
    The messages of one queue, by sequence number. Answers by index, never by a scan.

    What a method changes is durable when the batch that it runs in is.
    """

    def add(self, rows: Iterable[Row]) -> None: ...

    def get(self, sequence: int) -> Row | None: ...

    def after(self, state: State, sequence: int, limit: int) -> Sequence[Row]:
        """Rows of one state with a higher sequence number, in order."""
        ...

    def due(self, wall: int, limit: int) -> Sequence[Row]:
        """Scheduled rows whose time has come, the earliest first."""
        ...

    def expired(self, since: int, wall: int, limit: int) -> Sequence[Row]:
        """ACTIVE rows that expire after `since` and not after `wall`, the earliest first."""
        ...

    def next_due(self) -> int | None:
        """The earliest date of the scheduled rows."""
        ...

    def next_expiry(self, since: int) -> int | None:
        """The earliest expiry of the ACTIVE rows, of those after `since`."""
        ...

    def count_delivery(self, row: Row, deliveries: int, *, durable: bool) -> None:
        """Note how often a row was delivered; `durable`: with this batch, not with a later one."""
        ...

    def replace(self, old: Row, new: Row) -> None:
        """Put `new` in the place of `old`; size and content are the same."""
        ...

    def remove(self, sequence: int) -> None: ...

    def quarantine(self, sequence: int) -> None:
        """Put a row aside where nothing serves it and an operator finds it."""
        ...

    def totals(self) -> Mapping[State, Total]:
        """Count everything; the only answer that takes as long as there are messages."""
        ...
