"""
The primary with a second namespace beside it, to which entities move.

The pair stands around it: an outage of the side that sends go to is an outage of the pair, and an
entity that is failed over when its move begins returns as soon as the new side answers. Syphons
deliver to it, too. The identity of the primary stays that of the old side.

    pair ──▶ MovedBroker ─┬──▶ the primary          place 0
                          └──▶ the new namespace    place 1
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Final

import attrs

from gateway.brokers.joined.receiver import open_joined_receiver
from gateway.brokers.joined.sequence import by_place, inward_number, outward, outward_number
from gateway.brokers.task_scope import TaskScope
from gateway.capabilities import (
    Batches,
    Clears,
    DeletesByVersion,
    DeletesMessages,
    EnlistsSchedules,
    FailsFast,
    Peeks,
    PeeksState,
    Schedules,
    SessionReceiver,
    Sessions,
    TransactedCancellation,
    TransactedSend,
    TransactedWork,
    Transacts,
    Updates,
    Verifies,
    described,
    send_accepted_by,
    send_each,
    sends_in,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, MessageNotFound, NotSupported
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode
from gateway.domain.operators.control import matches
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.numbers import MovedNumbers
from gateway.extensions.move.session import SessionSearch
from gateway.extensions.move.sides import MovedQueue, elsewhere
from gateway.extensions.move.stages import OLD
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver, WallClock

_COUNTS: Final = ("active", "dead_lettered", "scheduled", "deferred", "transfer_dead_lettered")


@attrs.define(eq=False, kw_only=True)
class MovedBroker(ForwardingBroker):
    """
    A `Broker` with the capabilities of the old side. What the new side lacks of them is refused
    there. `entities` are those whose receivers can be served from both sides.
    """

    sides: tuple[Broker, Broker]
    book: MoveBook
    numbers: MovedNumbers
    entities: Sequence[str]
    rng: random.Random
    clock: WallClock

    @property
    def inner(self) -> Broker:
        return self.sides[OLD]

    def of(self, entity: EntityPath) -> Broker:
        """The side that sends to the entity go to."""
        return self.sides[self.book.sends_to(entity)]

    def whole(self, entity: EntityPath) -> Broker:
        """
        The side that has all of the entity.

        Raises:
            NotSupported: it is on its way.
        """
        move = self.book.find(entity)
        if move is not None and move.is_moving:
            raise NotSupported(f"{entity} is being moved: try again when its move is over")
        return self.of(entity)

    # --- sending

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.of(entity).send(entity, messages)

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`, if that side can fail fast."""
        side = self.of(entity)
        fails_fast = offered(side, FailsFast)
        await (side.send if fails_fast is None else fails_fast.try_send)(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """As `Diverts.send_diverting`."""
        return await send_accepted_by(self.of(entity), entity, messages)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        return await send_each(self.of(entity), entity, batches, fails_fast=fails_fast)

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`; the numbers lead to the side that has the messages."""
        place = self.book.sends_to(entity)
        found = await required(self.sides[place], Schedules).schedule(entity, messages)
        return [outward_number(number, place) for number in found]

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`, at the side where the messages are now."""
        now = [await self.numbers.find(entity, each) for each in sequence_numbers]
        places = by_place(now)
        if not places.keys() <= {0, 1}:
            raise MessageNotFound(f"{entity}: no message has such a sequence number")
        if len(places) > 1:
            raise NotSupported(f"{entity}: the messages are on both sides of a move: cancel each")
        for place, numbers in places.items():
            await required(self.sides[place], Schedules).cancel_scheduled(entity, numbers)

    async def enlist_schedule(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> TransactedSend:
        """As `EnlistsSchedules.enlist_schedule`, of an entity that isn't moved."""
        return await self._enlists(entity).enlist_schedule(entity, messages)

    def enlist_cancellation(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> TransactedCancellation:
        """As `EnlistsSchedules.enlist_cancellation`, of an entity that isn't moved."""
        return self._enlists(entity).enlist_cancellation(entity, sequence_numbers)

    def _enlists(self, entity: EntityPath) -> EnlistsSchedules:
        if self.book.sends_to(entity) != OLD:
            raise elsewhere(entity)
        return required(self.inner, EnlistsSchedules)

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`, of the old side."""
        await required(self.inner, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """
        As `Transacts.commit`, on the old side.

        Raises:
            NotSupported: a message is for an entity that is moved; nothing was done.
        """
        for each in sends_in(work):
            if self.book.sends_to(each.entity) != OLD:
                raise elsewhere(each.entity)
        await required(self.inner, Transacts).commit(work)

    # --- receiving

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        """As `Broker.open_receiver`: of the sides that the stage names, as it changes."""
        name = entity.parent.topic.name
        if not any(matches(each, name) for each in self.entities):
            return self.inner.open_receiver(entity, mode)
        queue = MovedQueue(sides=self.sides, entity=entity, book=self.book, rng=self.rng)
        return open_joined_receiver(queue, entity, mode, clock=self.clock, rng=self.rng)

    @asynccontextmanager
    async def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AsyncIterator[SessionReceiver]:
        """
        As `Sessions.open_session`. A session is at one side: once the old side is empty, it is lost
        there, and its client opens it again at the new side.
        """
        async with TaskScope() as scope:
            search = SessionSearch(book=self.book, entity=entity)
            scope.nursery.start_soon(search.hold, self.sides, session_id, mode)
            yield await search.opened()

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`, of the side that is received from."""
        sessions = required(self._receiving(entity), Sessions)
        return await sessions.list_sessions(entity, updated_since=updated_since, skip=skip, top=top)

    async def peek_state(self, entity: EntityPath, session_id: str) -> bytes | None:
        """As `PeeksState.peek_state`, of the side that is received from."""
        return await required(self._receiving(entity), PeeksState).peek_state(entity, session_id)

    def _receiving(self, entity: EntityPath) -> Broker:
        return self.sides[self.book.receives_from(entity)[0]]

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`: the messages of the old side, then those of the new one."""
        first, number = inward_number(max(from_sequence, 0))
        for place in range(first, len(self.sides)):
            if place in self.places_of(entity):
                peeks = required(self.sides[place], Peeks)
                found = await peeks.peek(
                    entity, from_sequence=number if place == first else 0, limit=limit
                )
                if found:
                    return [outward(each, place) for each in found]
        return ()

    def places_of(self, entity: EntityPath) -> Sequence[int]:
        """The sides that have messages of the entity, as far as its stage says."""
        return sorted({*self.book.receives_from(entity), self.book.sends_to(entity)})

    # --- queues

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """As `DeletesMessages.delete_messages`, of an entity that isn't on its way."""
        deletes = required(self.whole(entity), DeletesMessages)
        return await deletes.delete_messages(entity, limit, before=before, session_id=session_id)

    async def clear_queue(self, entity: EntityPath) -> None:
        """As `Clears.clear_queue`, of an entity that isn't on its way."""
        await required(self.whole(entity), Clears).clear_queue(entity)

    async def probe(self, entity: EntityPath) -> None:
        await self.of(entity).probe(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`, of the side that sends go to, with the messages of both."""
        return await self._counted(entity, await self.of(entity).inspect(entity))

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """As `Describes.describe`, and as `inspect`."""
        return await self._counted(entity, await described(self.of(entity), entity))

    async def _counted(self, entity: EntityPath, info: EntityInfo) -> EntityInfo:
        for place in self.places_of(entity):
            if place == self.book.sends_to(entity):
                continue
            try:
                other: EntityInfo | None = await self.sides[place].inspect(entity)
            except BrokerError:
                other = None
            counts: dict[str, Any] = {
                name: _sum(getattr(info, name), other, name) for name in _COUNTS
            }
            info = attrs.evolve(info, **counts)
        return info

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self.whole(entity).create_queue(entity, properties)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """As `Updates.update_queue`, of an entity that isn't on its way."""
        updates = required(self.whole(entity), Updates)
        return await updates.update_queue(entity, properties, if_version=if_version)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.whole(entity).delete_queue(entity)

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """As `DeletesByVersion.delete_version`, of an entity that isn't on its way."""
        await required(self.whole(path), DeletesByVersion).delete_version(path, version)

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`."""
        return await required(self.of(entity), Verifies).verify(entity, is_backlog=is_backlog)


def _sum(count: int | None, other: EntityInfo | None, name: str) -> int | None:
    further = None if other is None else getattr(other, name)
    return None if count is None or further is None else count + further
