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

from gateway.domain.values import value

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
MAX_SEQUENCE: Final = 2**63 - 1  # all that a storage can be asked for
_END_OF_TIME: Final = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // MICROSECOND


def to_micros(date: datetime) -> int:
    return (date - EPOCH) // MICROSECOND


def to_date(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def later(micros: int, duration: timedelta) -> int | None:
    """The date after `duration`; None where that is past the year 9998: never."""
    date = micros + duration // MICROSECOND
    return date if date < _END_OF_TIME else None


@value
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
    """Where a message of a queue is. Locked ones are where they were: locks aren't stored."""

    ACTIVE = 0
    SCHEDULED = 1
    DEAD = 2  # in the dead-letter sub-queue
    DEFERRED = 3  # put aside by a receiver: only its number finds it
    TRANSFER = 4  # couldn't be forwarded: in the transfer dead-letter sub-queue


@value(kw_only=True)
class Incoming:
    """A message on its way in: what the rules look at, and what only the storage knows to read."""

    content: Any
    size: int  # bytes, encoded
    time_to_live: timedelta | None = None
    scheduled: datetime | None = None
    session: str | None = None
    message_id: str | None = None  # as text; None: no duplicate of it is ever found


@value(kw_only=True)
class Row:
    """
    A stored message. `deliveries` have been begun so far; `due` is set while it is scheduled.

    Who hides a message from others stamps it: `original` then is a number above its own, which
    no other stamp has. It stays when the message is visible again.
    """

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
    session: str | None = None
    source: str | None = None  # the queue whose dead letter it was, if that forwards them
    damaged: bool = False  # its checksum doesn't fit: never to be served

    @property
    def stamp(self) -> int:
        """Of who hid it last; 0 if nobody has."""
        return 0 if self.original is None or self.original < self.sequence else self.original

    @property
    def first(self) -> int:
        """The number that it was given first."""
        return self.original if self.original and not self.stamp else self.sequence


def without_content(row: Row, deliveries: int) -> Row:
    """A row as a lock holds it. Written out, since `evolve` takes as long as all the rest does."""
    return Row(
        sequence=row.sequence,
        state=row.state,
        enqueued=row.enqueued,
        size=row.size,
        content=None,
        due=row.due,
        expires=row.expires,
        deliveries=deliveries,
        original=row.original,
        reason=row.reason,
        description=row.description,
        session=row.session,
        source=row.source,
    )


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

    def in_session(self, session: str, sequence: int, limit: int) -> Sequence[Row]:
        """ACTIVE rows of one session with a higher sequence number, in order."""
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
        """Put `new` in the place of `old`; size, session and content are the same."""
        ...

    def rewrite(self, sequence: int, content: Any, size: int) -> None:
        """Give a row other content; all else is the same."""
        ...

    def remove(self, sequence: int) -> None: ...

    def quarantine(self, sequence: int) -> None:
        """Put a row aside where nothing serves it and an operator finds it."""
        ...

    def totals(self) -> Mapping[State, Total]:
        """Count everything; the only answer that takes as long as there are messages."""
        ...


@attrs.frozen(kw_only=True)
class SessionRecord:
    """
    What is stored of a session.

    `first` is the sequence number of its oldest ACTIVE row, or of one that was; None: it has none.
    """

    id: str
    first: int | None = None
    state: bytes | None = None
    updated: int = 0  # when the state was
    damaged: bool = False  # its checksum doesn't fit: the state is never to be served
    reported: bool = False  # and that is known


class SessionRows(Protocol):
    """The sessions of one queue that have messages or a state. Answers by index, as `Rows` does."""

    def get(self, session: str) -> SessionRecord | None: ...

    def put(self, record: SessionRecord) -> None: ...

    def remove(self, session: str) -> None: ...

    def next(self, after: int) -> SessionRecord | None:
        """The session with the lowest `first` above that number."""
        ...

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        """Names of those with messages, or of those whose state was updated after that date."""
        ...


class SeenIds(Protocol):
    """Ids of the messages that one queue took of late. Answers by index, as `Rows` does."""

    def until(self, message_id: str) -> int | None:
        """Until when that id counts as a duplicate, if it was seen."""
        ...

    def put(self, message_id: str, until: int) -> None: ...

    def forget(self, wall: int, limit: int) -> None:
        """Remove up to `limit` of those that have come to their end."""
        ...


@attrs.frozen
class Storage:
    """Everything that is stored of the content of one queue."""

    rows: Rows
    sessions: SessionRows
    seen: SeenIds
