"""What the messages of one queue share while they are worked on, as long as a receiver is open."""

from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import attrs
import trio

from gateway.capabilities import Polls, TakesBack
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, OutcomeUnknown
from gateway.domain.events import LockTooShort, SettledTooLate
from gateway.domain.lock_tuning import LockTuning
from gateway.domain.message import Delivery, Settlement
from gateway.listener.completions import Completions
from gateway.listener.endpoint import Endpoint
from gateway.listener.items import Item
from gateway.listener.job import Job
from gateway.listener.ledger import Ledger
from gateway.listener.locks import Locks
from gateway.listener.room import Room
from gateway.listener.triggers import Subscription
from gateway.ports import Receiver

T = TypeVar("T")

MARGIN: Final = 0.1  # of its lock is left when a handler is cancelled
LONGEST_MARGIN: Final = 5.0  # seconds
SHORTEST_LOCK: Final = 0.9  # seconds: of a lock of one, the shortest to work with, some is over


@attrs.define(eq=False, kw_only=True)
class Desk(Generic[T]):
    """One queue's messages in hand."""

    job: Job[T]
    queue: EntityPath
    receiver: Receiver
    room: Room
    endpoint: Endpoint
    locks: Locks
    ledger: Ledger
    tuning: LockTuning
    bell: Subscription
    is_draining: bool = False
    _completions: Completions = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limit = self.job.options.answer_timeout
        self._completions = Completions(receiver=self.receiver, limit=limit)

    @property
    def takes_back_uncounted(self) -> bool:
        """Whether a message that nobody has worked on comes no nearer to poison by a return."""
        return isinstance(self.receiver, TakesBack) and self.receiver.takes_back_uncounted

    async def take(self, limit: int) -> list[Delivery]:
        """
        Wait for messages; where the namespace must be polled, look once.

        Raises:
            BrokerError: as `Receiver.receive`.
        """
        receiver = self.receiver
        if isinstance(receiver, Polls):
            is_tuned = self.ledger.advice is not None and self.job.options.tune_lock
            lock = timedelta(seconds=self.tuning.lock) if is_tuned else None
            try:
                deliveries = list(await receiver.poll(limit, lock))
            except BrokerError:
                self.ledger.count(Operation.EMPTY)
                raise
        else:
            deliveries = list(await receiver.receive(limit))
        operation = Operation.RECEIVE if deliveries else Operation.EMPTY
        self.ledger.count(operation, len(deliveries))
        return deliveries

    async def complete(self, delivery: Delivery) -> BrokerError | None:
        """As `Completions.complete`."""
        self.ledger.count(Operation.SETTLE)
        return await self._completions.complete(delivery)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`, within a time limit.

        Raises:
            BrokerError: `OutcomeUnknown` when nobody answered in time.
        """
        limit = self.job.options.answer_timeout
        self.ledger.count(Operation.SETTLE)
        with trio.move_on_after(limit):
            await self.receiver.settle(delivery, settlement)
            return
        raise OutcomeUnknown(f"no answer to a settlement within {limit:g} s")

    async def renew(self, delivery: Delivery, limit: float) -> datetime:
        """
        As `Receiver.renew`, within so many seconds.

        Raises:
            BrokerError: `OutcomeUnknown` when nobody answered in time.
        """
        limit = min(limit, self.job.options.answer_timeout)
        self.ledger.count(Operation.RENEW)
        with trio.move_on_after(limit):
            return await self.receiver.renew(delivery)
        raise OutcomeUnknown(f"no answer to a renewal within {limit:g} s")

    def seconds_locked(self, locked_until: datetime | None) -> float:
        """
        How long a lock holds from now on. Where the namespace doesn't tell, or its clock or ours is
        so wrong that it ends at once, or within a second, it is taken to be as it usually is.
        """
        if locked_until is not None:
            left = (locked_until - self.job.clock()).total_seconds()
            if left >= SHORTEST_LOCK:
                return left
        return self.job.options.lock_duration

    def note_done(self, item: Item[T], seconds: float) -> None:
        self.ledger.completed += 1
        self._tune(late=False, work=seconds)
        for subscriber in self.job.subscribers:
            subscriber.on_item(item)

    def note_late(self, delivery: Delivery, seconds: float) -> None:
        """Work was done, or cut off, and its message comes again."""
        self.ledger.too_late += 1
        self._tune(late=True, work=seconds)
        message_id = str(delivery.message.message_id)
        self.job.observer.report(SettledTooLate(queue=self.queue, message_id=message_id))
        self.job.tell_error(
            self.queue, LockLost(f"the lock of message {message_id} ended before its work")
        )

    def _tune(self, *, late: bool, work: float) -> None:
        advice = self.tuning.note(late=late, work=work)
        if advice is not None:
            self.ledger.advice = advice
            event = LockTooShort(
                queue=self.queue, seconds=advice.lock, late_share=advice.late_share
            )
            self.job.observer.report(event)


def margin(seconds: float) -> float:
    """How long before the end of a lock of so many seconds its handler is cancelled."""
    return min(LONGEST_MARGIN, MARGIN * seconds)
