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
from typing import Any, Final

import attrs

from gateway.brokers.joined.receiver import open_joined_receiver
from gateway.brokers.joined.sequence import by_place, inward_number, outward, outward_number
from gateway.brokers.routing_broker import RoutingBroker
from gateway.brokers.task_scope import TaskScope
from gateway.capabilities import (
    Peeks,
    Schedules,
    SessionReceiver,
    described,
)
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, MessageNotFound, NotSupported
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.domain.operators.control import matches
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.numbers import MovedNumbers
from gateway.extensions.move.session import SessionSearch
from gateway.extensions.move.sides import MovedQueue, elsewhere
from gateway.extensions.move.stages import OLD
from gateway.offering import required
from gateway.ports import Broker, Receiver, WallClock

_COUNTS: Final = ("active", "dead_lettered", "scheduled", "deferred", "transfer_dead_lettered")


@attrs.define(eq=False, kw_only=True)
class MovedBroker(RoutingBroker):
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

    def elsewhere(self, entity: EntityPath) -> NotSupported:
        """As `RoutingBroker.elsewhere`: a transaction is one of the old side."""
        return elsewhere(entity)

    def source_of(self, entity: EntityPath) -> Broker:
        """The side that is received from, as far as its clients have to be at one."""
        return self.sides[self.book.receives_from(entity)[0]]

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


def _sum(count: int | None, other: EntityInfo | None, name: str) -> int | None:
    further = None if other is None else getattr(other, name)
    return None if count is None or further is None else count + further
