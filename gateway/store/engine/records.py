"""
The stored form of messages and sessions, and the protocols that a storage implements.

Dates are microseconds since 1970 UTC as int, which compare alike in SQL and in Python.
"""

import bisect
import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import attrs

from gateway.domain.values import value

STATE_OVERHEAD: Final = 256  # bytes that a session's state counts beside its own
MAX_SEQUENCE: Final = 2**63 - 1  # the highest number that a storage can be asked for
# Bytes of the messages that one peek shows, beside the last of them. A page of 32 messages of a
# megabyte, asked for by many at once, filled the memory.
MOST_PEEKED: Final = 1024 * 1024


# The theory. A state says in which of three queues a message is, the queue itself or one of its two
# sub-queues, and what finds it there. Both are one number, because the next message of a receive
# must be one step in an index of queue, state and sequence.
#
# ACTIVE, DEAD and TRANSFER are found by their order. DEAD and TRANSFER are two, because a message
# that couldn't be forwarded needs another remedy than one that its receivers refused.
#
# SCHEDULED is found by a date, and becomes ACTIVE by it. A message that a receive of Storage Queue
# has hidden is SCHEDULED, too: nothing but its stamp differs (see `Row.is_hidden`).
#
# DEFERRED is found by its number only, and no date ends that. There are three, one for each queue,
# because the message returns to where it was received, and only a live message expires.
#
# There is no LOCKED. A lock is in memory, and ends with its receiver or with the process. A stored
# one would cost a write for each receive, and would outlive its holder.
class State(enum.IntEnum):
    """
    The state of a message in its queue. A lock isn't stored, so a locked message keeps its state.
    """

    ACTIVE = 0
    SCHEDULED = 1  # or hidden
    DEAD = 2  # in the dead-letter sub-queue
    DEFERRED = 3  # set aside by a receiver: found only by its sequence number
    TRANSFER = 4  # couldn't be forwarded: in the transfer dead-letter sub-queue
    # A dead letter that a receiver of its sub-queue has set aside.
    DEAD_DEFERRED = 5
    TRANSFER_DEFERRED = 6


DEFERRED_OF: Final = {
    State.ACTIVE: State.DEFERRED,
    State.DEAD: State.DEAD_DEFERRED,
    State.TRANSFER: State.TRANSFER_DEFERRED,
}
"""The state of a message that its receiver defers, by the state in which it was received."""

DEFERRED: Final = frozenset(DEFERRED_OF.values())
DEAD_LETTERS: Final = frozenset(State) - {State.ACTIVE, State.SCHEDULED, State.DEFERRED}


@value(kw_only=True)
class Incoming:
    """
    A message to enqueue: the fields that the rules need, and the content that only the storage
    reads.
    """

    content: Any
    size: int  # bytes, encoded
    time_to_live: timedelta | None = None
    scheduled: datetime | None = None
    session: str | None = None
    message_id: str | None = None  # as text; None: the message is never a duplicate


class MessageNumbers(NamedTuple):
    """
    The numbers of a new message: its `sequence` in the whole namespace, which no other message ever
    has, and the `number` that clients see. In a queue, and in each of its sub-queues, both rise
    together. No number is above its sequence.
    """

    sequence: int
    number: int


class ReservedPlaces(NamedTuple):
    """
    Places of messages that may be sent later, of the entity that was created then: if it is
    created again, it begins again with 1.
    """

    created: int
    places: Sequence[MessageNumbers]


@value(kw_only=True)
class Row:
    """
    A stored message. `sequence` and `number` are its `MessageNumbers`. `deliveries` counts the
    deliveries begun so far; `due` is set while it is scheduled or hidden. Dates are own dates (see
    `Now`), but for a scheduled message: its sender has named a date of the wall clock.

    Each time that a message is hidden it gets a new stamp: `original` is then a number above its
    sequence, unique to that stamp. The stamp stays when the message is visible again.
    """

    sequence: int
    number: int
    state: State
    enqueued: int
    size: int
    content: Any
    due: int | None = None
    expires: int | None = None
    deliveries: int = 0
    # The first number, perhaps of another entity, if the message has another one since; or its
    # stamp.
    original: int | None = None
    reason: str | None = None
    description: str | None = None
    session: str | None = None
    # The queue that dead-lettered the message, if that queue forwards its dead letters.
    source: str | None = None
    damaged: bool = False  # the checksum doesn't match: the message must never be served

    @property
    def stamp(self) -> int:
        """Identifies the last time that the message was hidden; 0 if it never was."""
        return 0 if self.original is None or self.original < self.sequence else self.original

    @property
    def is_hidden(self) -> bool:
        return self.state is State.SCHEDULED and self.stamp > 0

    @property
    def has_own_dates(self) -> bool:
        return self.is_hidden or self.state is not State.SCHEDULED

    def shown(self, date: int, shift: int) -> int:
        """A date of the message on the wall clock, which large steps have moved by `shift`."""
        return date + shift if shift and self.has_own_dates else date

    @property
    def first(self) -> int:
        """The number that the message had first."""
        return self.earlier or self.number

    @property
    def earlier(self) -> int | None:
        """The number that the message had first, if it has another one since."""
        return self.original if self.original and not self.stamp else None


def with_own_dates(row: Row, shift: int) -> Row:
    """The row, of a scheduled message that is due or hidden, with own dates."""
    if not shift or row.has_own_dates:
        return row
    expires = None if row.expires is None else row.expires - shift
    return attrs.evolve(row, enqueued=row.enqueued - shift, expires=expires)


def without_content(row: Row, deliveries: int) -> Row:
    """
    Return the row as a lock holds it. Written out, since `attrs.evolve` would take as long as all
    the rest of a delivery.
    """
    return Row(
        sequence=row.sequence,
        number=row.number,
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


Totals = Mapping[State, Total]
"""The totals of the messages in one queue; a state without messages may be missing."""


class Rows(Protocol):
    """
    The messages of one queue, by sequence. Each query uses an index, never a scan.

    A change is durable once the batch that it runs in is.
    """

    def add(self, rows: Iterable[Row]) -> None: ...

    def get(self, sequence: int) -> Row | None: ...

    def first_from(self, state: State, number: int) -> int | None:
        """
        The sequence of the first row of one state with that number or a higher one; None: there is
        none.
        """
        ...

    def after(self, state: State, sequence: int, limit: int) -> Sequence[Row]:
        """Rows of one state with a higher sequence, in order."""
        ...

    def page(self, state: State, sequence: int, limit: int, most_bytes: int) -> Sequence[Row]:
        """As `after`, but none after those that have `most_bytes` together."""
        ...

    def due(self, date: int, limit: int, *, hidden: bool) -> Sequence[Row]:
        """Hidden rows, or scheduled ones, that are due, the earliest first."""
        ...

    def expired(self, since: int, wall: int, limit: int) -> Sequence[Row]:
        """ACTIVE rows that expire after `since` and no later than `wall`, the earliest first."""
        ...

    def in_session(self, session: str, sequence: int, limit: int) -> Sequence[Row]:
        """ACTIVE rows of one session with a higher sequence, in order."""
        ...

    def next_due(self, *, hidden: bool) -> int | None:
        """The earliest due date of a hidden row, or of a scheduled one."""
        ...

    def next_expiry(self, since: int) -> int | None:
        """The earliest expiry of an ACTIVE row, among those after `since`."""
        ...

    def count_delivery(self, row: Row, deliveries: int, *, durable: bool) -> None:
        """
        Store the delivery count of a row; with `durable` in this batch, otherwise possibly later.
        """
        ...

    def replace(self, old: Row, new: Row) -> None:
        """Replace `old` by `new`, which has the same size, session and content."""
        ...

    def rewrite(self, sequence: int, content: Any, size: int) -> None:
        """Replace the content and size of a row, and nothing else."""
        ...

    def remove(self, sequence: int) -> None: ...

    def quarantine(self, sequence: int) -> None:
        """Set a row aside: nothing serves it, but an operator can find it."""
        ...

    def totals(self) -> Totals:
        """Count all messages. Takes time in proportion to their number; nothing else here does."""
        ...


@attrs.frozen(kw_only=True)
class SessionRecord:
    """
    The stored form of a session.

    `first` is the sequence of its oldest ACTIVE row, or that of an older row which has been
    removed since; None: the session has no rows.
    """

    id: str
    first: int | None = None
    state: bytes | None = None
    updated: int = 0  # when the state was set
    damaged: bool = False  # the state's checksum doesn't match: it must never be served
    reported: bool = False  # the damage was already reported

    @property
    def size(self) -> int:
        """The bytes that the state counts against the quota; 0: the session has none."""
        return 0 if self.state is None else len(self.state) + STATE_OVERHEAD


class SessionRows(Protocol):
    """
    The sessions of one queue that have messages or a state. Uses indexes only, as `Rows` does.
    """

    def get(self, session: str) -> SessionRecord | None: ...

    def put(self, record: SessionRecord) -> None: ...

    def remove(self, session: str) -> None: ...

    def next(self, after: int) -> SessionRecord | None:
        """The session with the lowest `first` above `after`."""
        ...

    def page(self, updated_since: int | None, skip: int, top: int) -> Sequence[str]:
        """
        Ids of the sessions with messages, or of those whose state was updated after that date.
        """
        ...

    def state_bytes(self) -> int:
        """
        The sum of the states' `SessionRecord.size`. Takes time in proportion to the number of
        states; nothing else here does.
        """
        ...


class SeenIds(Protocol):
    """The message ids that one queue accepted recently. Uses indexes only, as `Rows` does."""

    def until(self, message_id: str) -> int | None:
        """The date until which the id counts as a duplicate; None if the id is unknown."""
        ...

    def put(self, message_id: str, until: int) -> None: ...

    def forget(self, wall: int, limit: int) -> None:
        """Remove up to `limit` ids that no longer count as duplicates."""
        ...


def within(sizes: Iterable[int], most_bytes: int) -> int:
    """The number of first messages that have `most_bytes` together; all, if they have less."""
    sums = [*itertools.accumulate(sizes)]
    return min(bisect.bisect_left(sums, most_bytes) + 1, len(sums))


class Numbers(Protocol):
    """
    The sequence numbers of one entity: each sub-queue has its own. Each begins with 1, and each
    number is one more than the last one that a step has drawn and wasn't undone.
    """

    def next(self, state: State, count: int = 1) -> int:
        """
        Draw numbers in the queue (ACTIVE) or in a sub-queue, named by the state in which its
        messages are received; return the first of them.
        """
        ...


@attrs.frozen
class Storage:
    """All storage of one queue."""

    numbers: Numbers
    rows: Rows
    sessions: SessionRows
    seen: SeenIds
