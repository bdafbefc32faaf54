"""
The messages of one queue and where they go on their own: to be available when they are due, away
or to the dead letters when they expire, on to another queue where theirs forwards them.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, MessageNotFound, MessageTooLarge
from gateway.domain.holdings import Account, Holdings
from gateway.domain.message import MAX_REASON_LENGTH, DeadLetter, Properties
from gateway.domain.packing import Packing
from gateway.domain.sessions import Sessions
from gateway.domain.stored import Now, Row, State, Storage

# What Service Bus writes into the properties of a message that it moves on its own.
EXPIRED: Final = DeadLetter(
    reason="TTLExpiredException", description="The message expired and was dead lettered."
)
TOO_MANY_DELIVERIES: Final = "MaxDeliveryCountExceeded"
NO_SESSION: Final = DeadLetter(
    reason="Session ID is null.",
    description="An entity that requires sessions takes no message without a session id.",
)


class TooManyHops(BrokerError):
    """A message was forwarded as often as it may be. Never leaves the namespace."""


# Service Bus's words; for the others the error's own name says it.
_TRANSFER_REASONS: Final[dict[type[BrokerError], str]] = {
    TooManyHops: "MaxTransferHopCountExceeded"
}
SWEEP: Final = 200  # rows that one operation moves on its own; the next one goes on
_CAN_EXPIRE: Final = frozenset({State.ACTIVE, State.DEFERRED})


@attrs.define(eq=False, kw_only=True)
class Entity:
    """What a queue is. Dates are microseconds since 1970; `used` is on the monotonic clock."""

    path: EntityPath
    properties: QueueProperties
    created: int
    updated: int
    max_message_size: int  # bytes
    version: int = 0
    accessed: int = 0  # 0: not since the namespace was opened
    used: float | None = None

    def touch(self, now: Now) -> None:
        self.accessed, self.used = now.wall, now.monotonic


class Target(Protocol):
    """A queue that messages of others come to."""

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        """Take a message that was forwarded so often; never refuses."""
        ...


class Onward(Protocol):
    """Where messages go instead of staying in a queue."""

    @property
    def to_sender(self) -> bool:
        """Whether who sends is told of a refusal; else the message is kept aside."""
        ...

    def targets(self, row: Row, hops: int, now: Now) -> Sequence[Target]:
        """
        Raises:
            BrokerError: it can't go on, and why.
        """
        ...


@attrs.define(eq=False)
class Contents:
    """One queue's. `onward` and `onward_dead` say where its messages and dead letters go."""

    entity: Entity
    storage: Storage
    next_sequence: Callable[[], int]  # ever higher, never the same again
    account: Account
    sessions: Sessions | None
    packing: Packing
    onward: Onward | None = None
    onward_dead: Onward | None = None
    holdings: Holdings = attrs.field(init=False)
    _unfinished: bool = False  # more are ready to go on than one sweep takes

    def __attrs_post_init__(self) -> None:
        self.holdings = Holdings(self.storage.rows, self.account)

    def reload(self) -> None:
        """Forget what is in memory, and begin with what is stored."""
        self.holdings.reload()
        if self.sessions is not None:
            self.sessions.reload()

    def find(self, sequence: int, state: State) -> Row:
        """
        Raises:
            MessageNotFound: there is none of that state.
        """
        row = self.storage.rows.get(sequence)
        if row is None or row.state is not state:
            raise MessageNotFound(f"{self.entity.path}: no {state.name.lower()} message {sequence}")
        return row

    # --- in

    def add(self, rows: Sequence[Row]) -> None:
        self.holdings.add(rows)
        if self.sessions is not None:
            for row in rows:
                self._note_session(row)

    def give_back(self, row: Row, now: Now) -> None:
        """What was locked isn't any more."""
        if not self.fit(row, now) or row.state is State.DEFERRED:
            return
        if self.sessions is not None and row.state is State.ACTIVE:
            self.sessions.give_back(row)
        else:
            self.holdings.give_back(row)

    def fit(self, row: Row, now: Now) -> bool:
        """Whether a row may be handed out; one that may not goes where it belongs."""
        properties = self.entity.properties
        if row.damaged:
            self.holdings.quarantine(row)
        elif self._is_expired(row, now):
            if properties.dead_lettering_on_expiration:
                self.bury(row, EXPIRED, now)
            else:
                self.holdings.remove(row)
        elif row.state is State.ACTIVE and row.deliveries >= properties.max_delivery_count:
            self.bury(row, _too_many_deliveries(row), now)
        else:
            return True
        return False

    def amended(self, row: Row, properties: Properties) -> Row:
        """
        A locked row whose message has these properties too, from now on.

        Raises:
            InvalidRequest: AMQP can't say them.
            MessageTooLarge: the message is above the limit with them.
        """
        stored = self.storage.rows.get(row.sequence) if properties else None
        if stored is None or stored.damaged:
            return row
        content, size = self.packing.amended(stored.content, properties)
        if size > max(self.entity.max_message_size, row.size):
            limit = self.entity.max_message_size
            raise MessageTooLarge(f"with its new properties it has {size} bytes, of {limit}")
        return self.holdings.rewrite(row, content, size)

    # --- what becomes due

    def sweep(self, now: Now) -> None:
        """Do what time has brought about: scheduled and expired messages, and what goes on."""
        holdings = self.holdings
        if holdings.next_due is not None and holdings.next_due <= now.wall and now.trusted:
            for row in self.storage.rows.due(now.wall, SWEEP):
                self._enqueue(row)
            holdings.look_for_due()
        if holdings.next_expiry is not None and holdings.next_expiry <= now.wall and now.trusted:
            for row in holdings.expired(now, SWEEP):
                self.fit(row, now)
            holdings.look_for_expiry()
        self._unfinished = False
        if self.onward is not None and holdings.count(State.ACTIVE) > 0:
            self._send_on(self.onward, now)

    def next_date(self, now: Now) -> float | None:
        """When (monotonic) `sweep` finds something to do; it may be less than it seems."""
        if self._unfinished:
            return now.monotonic
        due, expiry = self.holdings.next_due, self.holdings.next_expiry
        if due is None or (expiry is not None and expiry < due):
            due = expiry
        return None if due is None else now.when(due)

    def is_due(self, now: Now) -> bool:
        """Whether there was more for the last sweep to do than it does at once."""
        date = self.next_date(now)
        return date is not None and date <= now.monotonic

    def _enqueue(self, row: Row) -> None:
        """
        Service Bus too gives a scheduled message its sequence number when it's due.

        One that was hidden keeps its own, by which it is asked for.
        """
        if row.stamp:
            self.holdings.show(row, attrs.evolve(row, state=State.ACTIVE, due=None))
            return
        active = attrs.evolve(
            row,
            sequence=self.next_sequence(),
            state=State.ACTIVE,
            due=None,
            original=row.sequence,
        )
        self.holdings.replace(row, active)
        self._note_session(active)

    def _note_session(self, row: Row) -> None:
        if self.sessions is not None and row.state is State.ACTIVE:
            self.sessions.note(row)

    def _is_expired(self, row: Row, now: Now) -> bool:
        live = row.state not in _CAN_EXPIRE or row.expires is None or row.expires > now.wall
        return not live and now.trusted

    # --- out

    def bury(self, row: Row, why: DeadLetter, now: Now) -> None:
        """Move a row to the dead letters, here or wherever those are forwarded to."""
        dead = attrs.evolve(
            row,
            sequence=self.next_sequence(),
            state=State.DEAD,
            expires=None,
            original=row.first,
            reason=why.reason,
            description=why.description,
        )
        if self.onward_dead is None or row.state is State.DEAD:
            self.holdings.replace(row, dead)
            return
        stored = self.storage.rows.get(row.sequence)  # `row` may be without its content
        if stored is None:
            raise RuntimeError(f"row {row.sequence} is gone while it's locked")
        self.holdings.remove(row)
        dead = attrs.evolve(dead, content=stored.content, source=self.entity.path.name)
        self.pass_on(dead, self.onward_dead, 1, now)

    def move(self, row: Row, why: DeadLetter, targets: Sequence[Target], now: Now) -> None:
        """Move a row, with its content, to other queues; it doesn't expire there."""
        self.holdings.remove(row)
        moved = attrs.evolve(
            row,
            expires=None,
            reason=why.reason,
            description=why.description,
            source=self.entity.path.name,
        )
        for target in targets:
            target.arrive(moved, 1, now)

    def bury_new(self, row: Row, why: DeadLetter, hops: int, now: Now) -> None:
        """The same with a row that isn't stored yet."""
        dead = attrs.evolve(
            row,
            state=State.DEAD,
            expires=None,
            reason=why.reason,
            description=why.description,
            source=self.entity.path.name,
        )
        if self.onward_dead is None:
            self.add([attrs.evolve(dead, source=row.source)])
        else:
            self.pass_on(dead, self.onward_dead, hops, now)

    def pass_on(self, row: Row, onward: Onward, hops: int, now: Now) -> None:
        """Hand over a row that isn't stored (any more); keep it aside where it can't go on."""
        try:
            targets = onward.targets(row, hops, now)
        except BrokerError as error:
            kept = _kept_aside(row, self.next_sequence(), error)
            self.holdings.add([kept])
            if kept.deliveries:  # what is added counts none by itself
                self.storage.rows.count_delivery(kept, kept.deliveries, durable=False)
            return
        for target in targets:
            target.arrive(row, hops, now)

    def _send_on(self, onward: Onward, now: Now) -> None:
        rows = self.holdings.next(State.ACTIVE, SWEEP)
        self._unfinished = len(rows) == SWEEP
        for row in rows:
            if self.fit(row, now):
                self.holdings.remove(row)
                self.pass_on(row, onward, 1, now)


def _too_many_deliveries(row: Row) -> DeadLetter:
    return DeadLetter(
        reason=TOO_MANY_DELIVERIES,
        description=f"Message could not be consumed after {row.deliveries} delivery attempts.",
    )


def _kept_aside(row: Row, sequence: int, error: BrokerError) -> Row:
    """
    A row as it stands in the transfer dead-letter sub-queue.

    It may have been removed a moment ago, so it needs a number that was never used.
    """
    description = str(error)
    if row.reason is not None:
        description = f"{description}; it was dead-lettered for {row.reason}: {row.description}"
    return attrs.evolve(
        row,
        sequence=sequence,
        original=row.first,
        state=State.TRANSFER,
        expires=None,
        reason=_TRANSFER_REASONS.get(type(error), type(error).__name__),
        description=description[:MAX_REASON_LENGTH],
    )
