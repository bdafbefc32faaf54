"""Storage Queue's way to receive from a namespace that we keep ourselves."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import attrs
import trio

from gateway.brokers.local import LocalBroker
from gateway.brokers.local_receiver import to_delivery
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Delivery, Message
from gateway.domain.namespace import Namespace
from gateway.domain.queue import Queue
from gateway.domain.queue_checks import accept
from gateway.domain.queue_values import Taken
from gateway.domain.stored import MICROSECOND, Now, Row, to_date
from gateway.domain.visibility import Shown, Ticket

T = TypeVar("T")

# Messages of one step, of each state: all of them are read, and others wait for their turn.
CLEAR_STEP: Final = 64
_NO_MESSAGE: Final = Message()


@attrs.frozen
class LocalVisibility:
    """`capabilities.Visibility`. Tickets outlive the process, as far as the store does."""

    _broker: LocalBroker

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> Shown:
        """
        As `Visibility.put`. The ticket of a duplicate, or of what was passed on, finds nothing.
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
            if span and queue.passes_on:  # it waits here; where it goes nobody would hide it
                sent = attrs.evolve(incoming, scheduled=to_date(now.wall + span))
            (number,) = queue.send([sent], now)
            row = accept(sent, number, queue.properties, now)
            return queue.visibility.hide_new(row, span, now) if span else row

        return _shown(await self._broker.run_on(entity, work, cost=incoming.size), message)

    async def sent(self, entity: EntityPath, message_id: str) -> Ticket | None:
        """As `Visibility.sent`, where the broker has been told to remember what is sent."""
        await trio.lowlevel.checkpoint()
        recent = self._broker.recent
        number = None if recent is None else recent.number_of(entity.key, message_id)
        return None if number is None else Ticket(number, 0)

    async def take(self, entity: EntityPath, limit: int, hidden: timedelta) -> Sequence[Shown]:
        """As `Visibility.take`. A message that can't be read is put aside."""
        span = hidden // MICROSECOND
        rows = await self._on_queue(entity, lambda q, now: q.visibility.take(limit, span, now))
        return [_shown(row, read) for row in rows if (read := self._read(entity, row)) is not None]

    async def look(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        rows = await self._on_queue(entity, lambda queue, _now: queue.visibility.look(limit))
        found = ((row, self._read(entity, row)) for row in rows)
        return [_delivery(row, message) for row, message in found if message is not None]

    async def change(
        self, entity: EntityPath, ticket: Ticket, hidden: timedelta, body: bytes | None = None
    ) -> Shown:
        """As `Visibility.change`."""
        span = hidden // MICROSECOND
        row = await self._on_queue(
            entity, lambda queue, now: queue.visibility.change(ticket, span, body, now)
        )
        return _shown(row, _NO_MESSAGE)

    async def remove(self, entity: EntityPath, ticket: Ticket) -> None:
        await self._on_queue(entity, lambda queue, now: queue.visibility.remove(ticket, now))

    async def clear(self, entity: EntityPath) -> None:
        """As `Visibility.clear`, in as many steps as it takes."""
        await trio.lowlevel.checkpoint()
        last: int | None = -1
        while last is not None:
            last = await self._on_queue(entity, _clear_after(last))

    async def _on_queue(self, entity: EntityPath, work: Callable[[Queue, Now], T]) -> T:
        def step(space: Namespace, now: Now) -> T:
            queue = space.find(entity)
            queue.check_receivable()
            queue.sweep(now)
            queue.entity.touch(now)
            return work(queue, now)

        return await self._broker.run_on(entity, step)

    def _read(self, entity: EntityPath, row: Row) -> Message | None:
        try:
            return self._broker.unpack(row.content)
        except MessageError:
            self._broker.post_on_queue(entity, lambda q, _now: q.visibility.put_aside(row))
            return None


def _clear_after(sequence: int) -> Callable[[Queue, Now], int | None]:
    return lambda queue, _now: queue.visibility.clear(sequence, CLEAR_STEP)


def _shown(row: Row, message: Message) -> Shown:
    return Shown(delivery=_delivery(row, message), ticket=Ticket(row.sequence, row.stamp))


def _delivery(row: Row, message: Message) -> Delivery:
    return to_delivery(Taken(row, row.deliveries, locked_until=row.due), message)
