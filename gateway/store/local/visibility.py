"""Storage Queue's way of receiving, from a namespace that Pairgate keeps itself."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import attrs

from gateway.domain.billing import Operation
from gateway.domain.clocks.times import MICROSECOND, Now, to_date
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.events.gateway import MovedToPoison
from gateway.domain.message import Delivery, Message
from gateway.domain.storage_queue import (
    UNLIMITED,
    PopReceipt,
    TakenMessage,
    TermsOf,
    poison_queue,
)
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.forwarding import Forward
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.queue_checks import accept
from gateway.store.engine.records import Row
from gateway.store.engine.visibility import Poison
from gateway.store.local.broker import LocalBroker
from gateway.store.local.receiver import to_delivery

T = TypeVar("T")

# Messages per step and state: one step reads them all while other steps wait.
CLEAR_STEP: Final = 64
_NO_MESSAGE: Final = Message()


@attrs.frozen
class LocalVisibility:
    """
    `capabilities.Visibility`. Receipts survive a restart if the store does.

    Each call is metered as one operation, as Storage Queue bills it.
    """

    _broker: LocalBroker

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> TakenMessage:
        """
        As `Visibility.put`. The receipt of a duplicate, or of a forwarded message, is invalid.
        """
        span = hidden // MICROSECOND
        try:
            incoming = self._broker.incoming(message)
        except MessageError as error:
            raise InvalidRequest(str(error)) from error

        def work(space: Namespace, now: Now) -> Row:
            space.check_room()
            queue = space.find_or_create(entity, now)
            sent = incoming
            # Hidden in this queue: the target of the forwarding wouldn't hide it.
            if span and queue.forwards:
                sent = attrs.evolve(incoming, scheduled=to_date(now.wall + span))
            (place,) = queue.send([sent], now)
            row = accept(sent, place, queue.properties, now)
            return queue.visibility.hide_new(row, span, now) if span else row

        row = await self._broker.run_on(entity, work, cost=incoming.size, billed=None)
        self._broker.meter.request(Operation.SEND, messages=1)
        return self._taken(row, message)

    async def sent(self, entity: EntityPath, message_id: str) -> PopReceipt | None:
        """As `Visibility.sent`, if the broker was told to remember sent messages."""
        recent = self._broker.hooks.recent
        sequence = None if recent is None else recent.sequence_of(entity.key, message_id)
        return None if sequence is None else PopReceipt(sequence, 0)

    async def dequeue(
        self, entity: EntityPath, limit: int, terms_of: TermsOf
    ) -> Sequence[TakenMessage]:
        """
        As `Visibility.dequeue`: poison messages are moved in the same transaction. A message that
        can't be read is quarantined.
        """

        gone: list[Row] = []

        def step(space: Namespace, now: Now) -> tuple[list[Row], bool]:
            gone.clear()  # a step may run again
            queue = _receivable(space, entity, now)
            terms = terms_of(queue.properties.user_metadata)
            poison = None
            if terms.poison_after is not None:
                onward = Forward(poison_queue(queue.path), lambda _: _made(space, queue.path, now))
                poison = Poison(terms.poison_after, onward, gone.append)
            return queue.visibility.dequeue(limit, terms.hidden // MICROSECOND, now, poison)

        while True:
            rows, more = await self._broker.run_on(entity, step, billed=None)
            self._report(entity, gone)
            read = ((row, self._read(entity, row)) for row in rows)
            taken = [self._taken(row, message) for row, message in read if message is not None]
            # Else all messages that were looked at were moved, and there are more.
            if taken or not more:
                billed = Operation.RECEIVE if taken else Operation.EMPTY
                self._broker.meter.request(billed, len(taken))
                return taken

    async def peek(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        found: list[Delivery] = []
        last: int | None = -1
        while last is not None and len(found) < limit:
            peek = _peek_after(last, limit - len(found))
            rows, last = await self._on_queue(entity, peek, is_large_read=True)
            read = ((row, self._read(entity, row)) for row in rows)
            found += [self._delivery(row, message) for row, message in read if message is not None]
        self._broker.meter.request(Operation.PEEK)
        return found

    async def change(
        self, entity: EntityPath, receipt: PopReceipt, hidden: timedelta, body: bytes | None = None
    ) -> TakenMessage:
        """As `Visibility.change`."""
        span = hidden // MICROSECOND
        row = await self._on_queue(
            entity, lambda queue, now: queue.visibility.change(receipt, span, body, now)
        )
        self._broker.meter.request(Operation.RENEW)
        return self._taken(row, _NO_MESSAGE)

    async def remove(self, entity: EntityPath, receipt: PopReceipt) -> None:
        await self._on_queue(entity, lambda queue, now: queue.visibility.remove(receipt, now))
        self._broker.meter.settled(1)

    async def clear(self, entity: EntityPath) -> None:
        """As `Visibility.clear`, in as many steps as necessary."""
        last: int | None = -1
        while last is not None:
            last = await self._on_queue(entity, _clear_after(last))
        self._broker.meter.request(Operation.SETTLE)

    async def _on_queue(
        self, entity: EntityPath, work: Callable[[Queue, Now], T], *, is_large_read: bool = False
    ) -> T:
        return await self._broker.run_on(
            entity,
            lambda space, now: work(_receivable(space, entity, now), now),
            billed=None,
            is_large_read=is_large_read,
        )

    def _report(self, entity: EntityPath, gone: list[Row]) -> None:
        for row in gone:
            self._broker.report(
                MovedToPoison(
                    queue=entity,
                    to=poison_queue(entity),
                    sequence_number=row.number,
                    deliveries=row.deliveries,
                )
            )
        gone.clear()

    def _read(self, entity: EntityPath, row: Row) -> Message | None:
        try:
            return self._broker.unpack(row.content)
        except MessageError:
            self._broker.post_on_queue(entity, lambda q, _now: q.visibility.quarantine(row))
            return None

    def _taken(self, row: Row, message: Message) -> TakenMessage:
        receipt = PopReceipt(row.sequence, row.stamp, row.deliveries)
        return TakenMessage(delivery=self._delivery(row, message), receipt=receipt)

    def _delivery(self, row: Row, message: Message) -> Delivery:
        """
        The message, numbered by its sequence: a queue that is created again begins with 1 again,
        and Storage Queue's ids are made of the number.
        """
        shift = self._broker.shift
        until = None if row.due is None else row.shown(row.due, shift)
        unique = attrs.evolve(row, number=row.sequence)
        return to_delivery(TakenRow(unique, row.deliveries, locked_until=until), message, shift)


def _receivable(space: Namespace, entity: EntityPath, now: Now) -> Queue:
    queue = space.find(entity)
    queue.check_receivable()
    queue.sweep(now)
    queue.entity.touch(now)
    return queue


def _made(space: Namespace, queue: EntityPath, now: Now) -> Queue:
    """
    The poison queue of that queue, created if necessary with the properties that Storage Queue's
    clients use.
    """
    path = poison_queue(queue)
    if space.known(path) is None:
        space.create(path, UNLIMITED, now)
        space.concern(path)
    return space.find(path)


def _peek_after(sequence: int, limit: int) -> Callable[[Queue, Now], tuple[list[Row], int | None]]:
    return lambda queue, now: queue.visibility.peek(sequence, limit, now)


def _clear_after(sequence: int) -> Callable[[Queue, Now], int | None]:
    return lambda queue, _now: queue.visibility.clear(sequence, CLEAR_STEP)
