"""Receives from a namespace that Pairgate keeps itself."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

import attrs
import trio

from gateway.brokers.meter import Meter
from gateway.capabilities import TransactedSettlement
from gateway.capabilities.settling import SettlementDoubts
from gateway.domain.billing import Operation
from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InternalError, MessageError, Unavailable
from gateway.domain.held_deliveries import HeldDeliveries
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Delivery,
    Message,
    MessageState,
    ReceiveMode,
    Settlement,
)
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import DEFERRED, State
from gateway.store.local.notifier import Notifier

T = TypeVar("T")

_STATES: Final = {
    **dict.fromkeys(DEFERRED, MessageState.DEFERRED),
    State.SCHEDULED: MessageState.SCHEDULED,
}


class QueueRunner(Protocol):
    """The operations of its broker that a receiver needs."""

    @property
    def meter(self) -> Meter: ...

    @property
    def shift(self) -> int: ...

    def on_queue(
        self,
        entity: EntityPath,
        work: Callable[[Queue, Now], T],
        *,
        undo: Callable[[T], None] | None = None,
    ) -> Awaitable[T]: ...

    def post_on_queue(self, entity: EntityPath, work: Callable[[Queue, Now], None]) -> None: ...

    def unpack(self, content: Any) -> Message: ...


@attrs.define(eq=False, kw_only=True)
class LocalReceiver:
    """Receives messages of one queue. Closing it makes its locked messages available again."""

    _broker: QueueRunner
    _entity: EntityPath
    _mode: ReceiveMode
    _state: State
    _notifier: Notifier
    # Lock tokens, with the ends of the locks by Trio's clock.
    _held: HeldDeliveries[str] = attrs.field(factory=HeldDeliveries)
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts)
    # The lock tokens of what cancelled receives take, which no later receive may overtake.
    _cancelled: list[list[str]] = attrs.field(factory=list, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. If cancelled, messages in transit become available again at once,
        without counting as delivered; in receive-and-delete mode they are lost.
        """
        return await self._notifier.find(self._state, lambda: self.receive_available(limit))

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`. If cancelled, as `receive`."""
        while True:
            taken = await self._run_taking(lambda queue, now: self._receive_from(queue, limit, now))
            deliveries = [made for each in taken if (made := self._read(each)) is not None]
            if deliveries or not taken:
                return deliveries

    @property
    def takes_back_uncounted(self) -> bool:
        """As `TakesBack.takes_back_uncounted`."""
        return True

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """As `ReceivesDeferred.receive_deferred`."""
        taken = await self._run_taking(
            lambda queue, now: self._receive_deferred_from(queue, sequence_numbers, now)
        )
        return [made for each in taken if (made := self._read(each)) is not None]

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`. Any receiver of the queue may settle messages that another one
        received.
        """
        token = delivery.lock_token
        with self._doubts.settling(delivery.lock_token):
            await self._broker.on_queue(
                self._entity, lambda queue, now: self._settle_on(queue, token, settlement, now)
            )
        self._broker.meter.settled(1)
        self._held.pop(token)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`: all settlements are in one transaction."""

        def work(queue: Queue, now: Now) -> list[BrokerError | None]:
            return [
                self._verdict_on(queue, delivery.lock_token, settlement, now)
                for delivery, settlement in settlements
            ]

        for delivery, _ in settlements:
            self._doubts.begin(delivery.lock_token)
        try:
            verdicts = await self._broker.on_queue(self._entity, work)
        except BrokerError as error:
            await trio.lowlevel.checkpoint()
            verdicts = [
                self._doubts.resolve(delivery.lock_token, error) for delivery, _ in settlements
            ]
            if isinstance(error, InternalError) and len(settlements) > 1:
                # a bug ended one settlement, and therefore all of them
                return [await self._settle_alone(*each) for each in settlements]
            return verdicts
        verdicts = [
            self._doubts.resolve(delivery.lock_token, verdict)
            for (delivery, _), verdict in zip(settlements, verdicts, strict=True)
        ]
        self._broker.meter.settled(len(settlements))
        for (delivery, _), verdict in zip(settlements, verdicts, strict=True):
            if verdict is None:
                self._held.pop(delivery.lock_token)
        return verdicts

    async def _settle_alone(self, delivery: Delivery, settlement: Settlement) -> BrokerError | None:
        try:
            await self.settle(delivery, settlement)
        except BrokerError as error:
            await trio.lowlevel.checkpoint()
            return error
        return None

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        """As `Enlists.enlist`: the lock is checked when the transaction is committed."""
        return TransactedSettlement(self, delivery, settlement)

    def settle_in(self, namespace: Namespace, work: TransactedSettlement, now: Now) -> None:
        """
        Settle a delivery within a step of a transaction.

        Raises:
            BrokerError: as `settle`; the step must be undone.
        """
        namespace.concern(self._entity)
        queue = namespace.find_or_create(self._entity, now)
        self._settle_on(queue, work.delivery.lock_token, work.settlement, now)

    def forget(self, delivery: Delivery) -> None:
        """Note that a delivery was settled in a transaction."""
        self._held.pop(delivery.lock_token)

    async def renew(self, delivery: Delivery) -> datetime:
        token = delivery.lock_token

        def work(queue: Queue, now: Now) -> tuple[int, float]:
            return queue.renew(token, now), now.monotonic + _seconds(queue)

        with self._doubts.using(token):
            until, end = await self._broker.on_queue(self._entity, work)
        self._broker.meter.request(Operation.RENEW)
        self._held.renew(token, end)
        return to_date(until)

    def close(self) -> None:
        """
        Make all locked messages available again soon; their delivery counts. It doesn't for those
        that a receive in progress takes, which raises `Unavailable` then.
        """
        self._is_closed = True
        if self._held:
            self._give_back(list(self._held), delivered=True)
            self._held.clear()

    # Overridden for sessions.

    def _receive_from(self, queue: Queue, limit: int, now: Now) -> list[TakenRow]:
        return queue.receive(self._state, limit, self._mode, now)

    def _receive_deferred_from(
        self, queue: Queue, numbers: Sequence[int], now: Now
    ) -> list[TakenRow]:
        return queue.receive_deferred(numbers, self._mode, now, self._state)

    def _settle_on(self, queue: Queue, token: str | None, settlement: Settlement, now: Now) -> None:
        queue.settle(token, settlement, now)

    def _verdict_on(
        self, queue: Queue, token: str | None, settlement: Settlement, now: Now
    ) -> BrokerError | None:
        try:
            self._settle_on(queue, token, settlement, now)
        except BrokerError as error:  # a rule that refuses has changed nothing
            return error
        return None

    async def _run_taking(self, take: Callable[[Queue, Now], list[TakenRow]]) -> list[TakenRow]:
        tokens: list[str] = []
        cancelled, self._cancelled = self._cancelled, []

        def work(queue: Queue, now: Now) -> tuple[list[TakenRow], float]:
            for each in cancelled:  # their own release may come after this step
                queue.release(each, now, delivered=False)
            taken = take(queue, now)
            tokens[:] = [each.token for each in taken if each.token is not None]
            return taken, now.monotonic + _seconds(queue)

        def undo(result: tuple[list[TakenRow], float]) -> None:
            self._give_back(tokens, delivered=False)

        try:
            taken, end = await self._broker.on_queue(self._entity, work, undo=undo)
        except trio.Cancelled:
            self._cancelled += [*cancelled, tokens]
            raise
        if self._is_closed and tokens:
            self._give_back(tokens, delivered=False)
            raise Unavailable("the receiver is closed")
        self._record_taken(taken, end)
        return taken

    def _record_taken(self, taken: Sequence[TakenRow], end: float) -> None:
        if taken:
            size = sum([each.row.size for each in taken])
            self._broker.meter.carried(Operation.RECEIVE, len(taken), size)
        if self._held:  # a consumer that never settles doesn't fill the memory
            self._held.pop_ended(trio.current_time())
        for each in taken:
            if each.token is not None:
                self._held.add(each.token, each.token, ends=end)

    def _give_back(self, tokens: list[str], *, delivered: bool) -> None:
        if tokens:
            self._broker.post_on_queue(
                self._entity, lambda queue, now: queue.release(tokens, now, delivered=delivered)
            )

    def _read(self, taken: TakenRow) -> Delivery | None:
        try:
            message = self._broker.unpack(taken.row.content)
        except MessageError:
            self._quarantine(taken)
            return None
        return to_delivery(taken, message, self._broker.shift)

    def _quarantine(self, taken: TakenRow) -> None:
        token = taken.token
        if token is not None:
            self._held.pop(token)
            self._broker.post_on_queue(
                self._entity, lambda queue, now: queue.quarantine(token, now)
            )


def to_delivery(taken: TakenRow, message: Message, shift: int) -> Delivery:
    """
    Make the delivery that a client sees, with dates of the wall clock (`Row.shown`). A dead letter
    has its reason in the application properties.
    """
    row, locked_until = taken.row, taken.locked_until
    if row.reason is not None:
        why = {DEAD_LETTER_REASON: row.reason, DEAD_LETTER_DESCRIPTION: row.description or ""}
        message = attrs.evolve(message, properties={**message.properties, **why})
    return Delivery(
        message=message,
        sequence_number=row.number,
        lock_token=taken.token,
        delivery_count=taken.deliveries,
        enqueued=to_date(row.shown(row.enqueued, shift)),
        enqueued_sequence_number=row.earlier,
        locked_until=None if locked_until is None else to_date(locked_until),
        expires=None if row.expires is None else to_date(row.shown(row.expires, shift)),
        received=None if taken.at is None else to_date(taken.at),
        state=_STATES.get(row.state, MessageState.ACTIVE),
        dead_letter_source=row.source,
    )


def _seconds(queue: Queue) -> float:
    return queue.properties.lock_duration.total_seconds()
