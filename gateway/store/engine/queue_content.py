"""
The messages of one queue, and how they move without a client: scheduled ones become active, expired
ones are removed or dead-lettered, forwarded ones go to another queue.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    MessageNotFound,
    MessageTooLarge,
    QuotaExceeded,
)
from gateway.domain.message import MAX_REASON_LENGTH, DeadLetter, Properties
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.journal import Journal
from gateway.store.engine.message_index import MessageIndex
from gateway.store.engine.records import (
    DEFERRED,
    MessageNumbers,
    Row,
    State,
    Storage,
    with_own_dates,
)
from gateway.store.engine.sessions import Sessions

# The reasons and descriptions that Service Bus sets when it dead-letters a message by itself.
EXPIRED: Final = DeadLetter(
    reason="TTLExpiredException", description="The message expired and was dead lettered."
)
TOO_MANY_DELIVERIES: Final = "MaxDeliveryCountExceeded"
NO_SESSION: Final = DeadLetter(
    reason="Session ID is null.",
    description="An entity that requires sessions takes no message without a session id.",
)


class TooManyHops(BrokerError):
    """A message was forwarded as often as allowed. Never leaves the namespace."""


# Service Bus's reason; for other errors the reason is the name of the error's class.
_TRANSFER_REASONS: Final[dict[type[BrokerError], str]] = {
    TooManyHops: "MaxTransferHopCountExceeded"
}
# The rows that an operation moves besides its own work; the next operation continues.
SWEEP: Final = 200
# Bytes of the copies of one send, or of one forwarded message, that actions of rules have changed.
# Unchanged copies share the memory of their message.
MAX_CHANGED: Final = 64 * 2**20
_PAGE: Final = 32  # rows that are read together, only to be deleted
# Bytes of rows that a deletion reads although they are too new, and the least that each row counts:
# 4,096 small rows, or 16 MiB.
_PAST: Final = 16 * 1024 * 1024
_LEAST_PAST: Final = 4096
_CAN_EXPIRE: Final = frozenset({State.ACTIVE, State.DEFERRED})


@attrs.define(eq=False, kw_only=True)
class Entity:
    """The properties of a queue. Dates are microseconds since 1970; `used` is monotonic."""

    path: EntityPath
    properties: QueueProperties
    created: int
    updated: int
    max_message_size: int  # bytes
    version: int = 0
    accessed: int = 0  # 0: not accessed since the namespace was opened
    used: float | None = None
    journal: Journal = attrs.field(factory=Journal)

    def touch(self, now: Now) -> None:
        self.journal.record(self._was_used, self.accessed, self.used)
        self.accessed, self.used = now.wall, now.monotonic

    def use(self, monotonic: float) -> None:
        """Note that the entity is in use, though no client has accessed it."""
        self.journal.record(self._was_used, self.accessed, self.used)
        self.used = monotonic

    def _was_used(self, accessed: int, used: float | None) -> None:
        self.accessed, self.used = accessed, used


class ForwardTarget(Protocol):
    """A queue that messages are forwarded to."""

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        """Take a message that was forwarded `hops` times; never refuses."""
        ...


Copy = tuple[ForwardTarget, Row]


class Onward(Protocol):
    """A destination that messages go to instead of staying in a queue."""

    @property
    def to_sender(self) -> bool:
        """
        True if the sender is told of a refusal; otherwise the message is transfer dead-lettered.
        """
        ...

    def copies(self, row: Row, hops: int, now: Now) -> Sequence[Copy]:
        """
        The queues that get a copy of the message, each with its copy.

        Raises:
            BrokerError: the message can't be forwarded; the error says why.
        """
        ...

    def free_room(self, now: Now) -> None:
        """Expire messages of the destinations that share the quota of the entity."""
        ...


@attrs.define(eq=False)
class QueueContent:
    """
    The content of one queue. `onward` and `onward_dead` say where messages and dead letters are
    forwarded to.
    """

    entity: Entity
    storage: Storage
    next_sequence: Callable[[], int]  # each number is higher than all before
    sessions: Sessions | None
    packing: Packing
    index: MessageIndex
    onward: Onward | None = None
    onward_dead: Onward | None = None
    _unfinished: bool = False  # more messages must be forwarded than one sweep does

    @property
    def journal(self) -> Journal:
        return self.entity.journal

    @property
    def quota(self) -> int:
        """The bytes that the messages may have; those of a subscription share its topic's."""
        shared = self.index.shared
        return quota_of(self.entity.properties) if shared is None else shared.quota

    def lead(self, onward: Onward | None, onward_dead: Onward | None) -> None:
        """
        Set where messages and dead letters are forwarded to from now on; None: they stay here.
        """
        if self.sessions is not None and onward is not None and self.onward is None:
            # the receivers of sessions held these messages, so the index must find them again
            self.index.rewind(State.ACTIVE)
        self.journal.keep(self)
        self.onward, self.onward_dead = onward, onward_dead

    def reload(self) -> None:
        """Forget the state in memory, and read it again from the storage."""
        self.index.reload()
        if self.sessions is not None:
            self.sessions.reload()

    def next_place(self, state: State = State.ACTIVE) -> MessageNumbers:
        """A place in the queue, or in the sub-queue whose messages are received in that state."""
        return MessageNumbers(self.next_sequence(), self.storage.numbers.next(state))

    def next_places(self, count: int) -> list[MessageNumbers]:
        """As `next_place`, for so many messages, whose numbers are drawn at once."""
        first = self.storage.numbers.next(State.ACTIVE, count)
        return [MessageNumbers(self.next_sequence(), first + each) for each in range(count)]

    def find(self, number: int, state: State) -> Row:
        """
        Return the row with this sequence number.

        Raises:
            MessageNotFound: no message of that state has this number.
        """
        rows = self.storage.rows
        sequence = rows.first_from(state, number)
        row = None if sequence is None else rows.get(sequence)
        if row is None or row.number != number:
            raise MessageNotFound(f"{self.entity.path}: no {state.name.lower()} message {number}")
        return row

    # --- in

    def add(self, rows: Sequence[Row]) -> None:
        self.index.add(rows)
        if self.sessions is not None:
            for row in rows:
                self._record_session(row)

    def give_back(self, row: Row, now: Now) -> None:
        """Make a row available again whose lock has ended."""
        if not self.fit(row, now) or row.state in DEFERRED:
            return
        if self.sessions is not None and row.state is State.ACTIVE and self.onward is None:
            self.sessions.give_back(row)
            return
        self.index.give_back(row)
        if self.onward is not None and row.state is State.ACTIVE:
            # No receiver may take the row here, so the next sweep moves it.
            self._finish(finished=False)

    def fit(self, row: Row, now: Now) -> bool:
        """
        True if a row may be delivered. Otherwise the row was quarantined, dead-lettered for too
        many deliveries, or removed as expired.
        """
        properties = self.entity.properties
        if row.damaged:
            self.index.quarantine(row)
        elif row.state is State.ACTIVE and row.deliveries >= properties.max_delivery_count:
            # Before the expiry: the lock may have ended earlier than this sweep comes.
            self.dead_letter(row, _too_many_deliveries(row), now)
        elif row.expires is not None and self._is_expired(row, now):
            if properties.dead_lettering_on_expiration:
                self.dead_letter(row, EXPIRED, now)
            else:
                self.index.remove(row)
        else:
            return True
        return False

    def amended(self, row: Row, properties: Properties) -> Row:
        """
        Set application properties of a locked message; return its row.

        Raises:
            InvalidRequest: AMQP can't encode the properties.
            MessageTooLarge: the message would exceed the entity's limit.
            QuotaExceeded: as `check_growth`.
        """
        stored = self.storage.rows.get(row.sequence) if properties else None
        if stored is None or stored.damaged:
            return row
        content, size = self.packing.amended(stored.content, properties)
        if size > max(self.entity.max_message_size, row.size):
            limit = self.entity.max_message_size
            raise MessageTooLarge(
                f"with the new properties the message has {size} bytes, at most {limit} expected"
            )
        self.check_growth(size - row.size)
        return self.index.rewrite(row, content, size)

    def check_growth(self, added: int) -> None:
        """
        Check that a receiver may add so many bytes to a message. Receivers may still change the
        messages of a full queue, so that as many bytes again as its quota are theirs.

        Raises:
            QuotaExceeded: the messages would have more than twice the quota.
        """
        if added > 0 and self.index.used + added > 2 * self.quota:
            raise QuotaExceeded(
                f"{self.entity.path} holds {self.index.used} of {self.quota} bytes: receivers may"
                " add no more to its messages"
            )

    # --- what becomes due

    def sweep(self, now: Now) -> None:
        """Apply what time has brought: scheduled and expired messages, and messages to forward."""
        index = self.index
        if index.next_due is not None and index.next_due <= now.wall and now.trusted:
            for row in self.storage.rows.due(now.wall, SWEEP, hidden=False):
                self._enqueue(row, now)
            index.refresh_due()
        if index.next_visible is not None and index.next_visible <= now.own and now.trusted:
            for row in self.storage.rows.due(now.own, SWEEP, hidden=True):
                # The row keeps its number, because the receipt names it.
                index.show(row, attrs.evolve(row, state=State.ACTIVE, due=None))
            index.refresh_visible()
        self.expire(now)
        if self._unfinished:
            self._finish(finished=True)
        if self.onward is not None and index.count(State.ACTIVE) > 0:
            self._send_on(self.onward, now)

    def expire(self, now: Now) -> None:
        """Remove or dead-letter messages that have expired, `SWEEP` at most."""
        index = self.index
        if index.next_expiry is not None and index.next_expiry <= now.own and now.trusted:
            for row in index.expired(now, SWEEP):
                self.fit(row, now)
            index.refresh_expiry()

    def next_date(self, now: Now) -> float | None:
        """
        The monotonic time at which `sweep` may have work to do; it may then turn out to have none.
        """
        if self._unfinished:
            return now.monotonic
        index = self.index
        own = [date for date in (index.next_visible, index.next_expiry) if date is not None]
        dates = [date + now.shift for date in own]
        if index.next_due is not None:
            dates.append(index.next_due)
        return now.when(min(dates)) if dates else None

    def is_due(self, now: Now) -> bool:
        """True if the last sweep left work that was already due."""
        date = self.next_date(now)
        return date is not None and date <= now.monotonic

    def _enqueue(self, row: Row, now: Now) -> None:
        """
        Make a scheduled row active, with a new sequence number, as Service Bus does when a
        scheduled message becomes due.
        """
        active = self.placed(
            attrs.evolve(
                with_own_dates(row, now.shift), state=State.ACTIVE, due=None, original=row.number
            )
        )
        self.index.replace(row, active)
        self._record_session(active)

    def _record_session(self, row: Row) -> None:
        if self.sessions is not None and row.state is State.ACTIVE:
            self.sessions.make_available(row)

    def _is_expired(self, row: Row, now: Now) -> bool:
        live = row.state not in _CAN_EXPIRE or row.expires is None or row.expires > now.own
        return not live and now.trusted

    # --- out

    def dead_letter(self, row: Row, why: DeadLetter, now: Now) -> None:
        """Dead-letter a row, here or in the queue that dead letters are forwarded to."""
        dead = attrs.evolve(
            row,
            state=State.DEAD,
            expires=None,
            original=row.first,
            reason=why.reason,
            description=why.description,
        )
        if self.onward_dead is None or row.state is State.DEAD:
            self.index.replace(row, self.placed(dead))
            return
        stored = self.storage.rows.get(row.sequence)  # `row` may come without its content
        if stored is None:
            raise RuntimeError(f"row {row.sequence} is gone while it's locked")
        self.index.remove(row)
        dead = attrs.evolve(dead, content=stored.content, source=self.entity.path.name)
        self.forward(dead, self.onward_dead, 1, now)

    def delete(self, state: State, limit: int, before: int | None, session: str | None) -> int:
        """
        Delete up to `limit` rows of that state that aren't locked, in their order, with `before`
        only those that were enqueued earlier; return their number. `session`: only rows of that
        session.

        The order isn't that of the dates: a dead letter gets its place when it is dead-lettered,
        and keeps its date. So the search goes on past rows that are too new, as far as `_PAST`.
        """
        deleted, after, past, rows = 0, 0, 0, self.storage.rows
        while deleted < limit:
            size = limit - deleted + self.index.locked if before is None else _PAGE
            size = min(_PAGE, size)
            found = (
                rows.after(state, after, size)
                if session is None
                else rows.in_session(session, after, size)
            )
            for row in found:
                if before is not None and row.enqueued >= before:
                    past += max(row.size, _LEAST_PAST)
                elif deleted < limit and not self.index.is_locked(row):
                    self.index.remove(row)
                    deleted += 1
            if len(found) < size or past >= _PAST:
                break
            after = found[-1].sequence
        return deleted

    def move(self, row: Row, why: DeadLetter, copies: Sequence[Copy], now: Now) -> None:
        """Move a row, with its content, to other queues. The moved message doesn't expire."""
        self.index.remove(row)
        for target, copy in copies:
            moved = attrs.evolve(
                copy,
                expires=None,
                reason=why.reason,
                description=why.description,
                source=self.entity.path.name,
            )
            target.arrive(moved, 1, now)

    def dead_letter_new(self, row: Row, why: DeadLetter, hops: int, now: Now) -> None:
        """Dead-letter a row that isn't stored yet."""
        dead = attrs.evolve(
            row,
            state=State.DEAD,
            expires=None,
            reason=why.reason,
            description=why.description,
            source=self.entity.path.name,
        )
        if self.onward_dead is None:
            self.add([self.placed(attrs.evolve(dead, source=row.source))])
        else:
            self.forward(dead, self.onward_dead, hops, now)

    def forward(self, row: Row, onward: Onward, hops: int, now: Now) -> None:
        """
        Forward a row that isn't stored (any more). If the target refuses it, transfer dead-letter
        it.
        """
        try:
            copies = onward.copies(row, hops, now)
        except BrokerError as error:
            kept = self.placed(_kept_aside(row, error))
            self.index.add([kept])
            if kept.deliveries:  # `add` stores no delivery count
                self.storage.rows.count_delivery(kept, kept.deliveries, durable=False)
            return
        for target, copy in copies:
            target.arrive(copy, hops, now)

    def placed(self, row: Row) -> Row:
        """The row in a new place of the sub-queue that its state belongs to."""
        place = self.next_place(row.state)
        return attrs.evolve(row, sequence=place.sequence, number=place.number)

    def _finish(self, *, finished: bool) -> None:
        if self._unfinished is finished:
            self.journal.keep(self)
            self._unfinished = not finished

    def _send_on(self, onward: Onward, now: Now) -> None:
        rows = self.index.next(State.ACTIVE, SWEEP)
        self._finish(finished=len(rows) < SWEEP)
        for row in rows:
            # A session's receiver keeps the messages that it has locked.
            if not self.index.is_locked(row) and self.fit(row, now):
                self.index.remove(row)
                self.forward(row, onward, 1, now)


def quota_of(properties: QueueProperties) -> int:
    """The bytes that an entity's messages may have."""
    return properties.max_size_in_megabytes * 2**20


def check_changed(size: int) -> None:
    """
    Check the total size, in bytes, of the copies that actions of rules have changed.

    Raises:
        MessageTooLarge: they would take too much memory.
    """
    if size > MAX_CHANGED:
        raise MessageTooLarge(
            f"the copies that actions of rules change have more than {MAX_CHANGED} bytes"
        )


def _too_many_deliveries(row: Row) -> DeadLetter:
    return DeadLetter(
        reason=TOO_MANY_DELIVERIES,
        description=f"Message could not be consumed after {row.deliveries} delivery attempts.",
    )


def _kept_aside(row: Row, error: BrokerError) -> Row:
    """The row as it is stored in the transfer dead-letter sub-queue, but for its place there."""
    description = str(error)
    if row.reason is not None:
        description = f"{description}; it was dead-lettered for {row.reason}: {row.description}"
    return attrs.evolve(
        row,
        original=row.first,
        state=State.TRANSFER,
        expires=None,
        reason=_TRANSFER_REASONS.get(type(error), type(error).__name__),
        description=description[:MAX_REASON_LENGTH],
    )
