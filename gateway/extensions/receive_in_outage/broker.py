"""The pair, with receivers that get diverted messages from the backlog as well."""

import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.brokers.joined.receiver import open_joined_receiver
from gateway.brokers.joined.sequence import inward_number, outward
from gateway.brokers.joined.session_names import first_sessions
from gateway.capabilities import (
    Peeks,
    SessionReceiver,
    Sessions,
    described,
)
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.message import Delivery, ReceiveMode
from gateway.extensions.receive_in_outage.backlog_receiver import BacklogOpening, shown
from gateway.extensions.receive_in_outage.options import ReceiveInOutageOptions
from gateway.extensions.receive_in_outage.sessions import open_two_sided_session
from gateway.extensions.receive_in_outage.sides import BACKLOG, PRIMARY, BothSides
from gateway.forwarding_broker import ReceiveWrapper
from gateway.frontends.outages import Outages
from gateway.offering import offered, required
from gateway.pairing.entity_cache import EntityCache
from gateway.ports import Broker, Receiver, WallClock

_AT_ONCE: Final = 16  # queues of a page that the secondary is asked about
_PATIENCE: Final = 5.0  # seconds for the counts of a page


@attrs.define(eq=False, kw_only=True)
class TwoSidedBroker(ReceiveWrapper):
    """
    A `Broker` whose entities that have a backlog queue for themselves, by `options`, are received
    from at both namespaces. Sends are the pair's.
    """

    broker: Broker
    secondary: Broker
    label: str
    options: ReceiveInOutageOptions
    entity_cache: EntityCache
    opening: BacklogOpening
    rng: random.Random
    clock: WallClock
    _outages: Outages = attrs.field(init=False)
    _outages_of_backlog: Outages = attrs.field(init=False)
    _silent: set[int] = attrs.field(factory=set, init=False)  # sides that kept a session waiting

    def __attrs_post_init__(self) -> None:
        self._outages, self._outages_of_backlog = Outages(self.broker), Outages(self.secondary)

    @property
    def inner(self) -> Broker:
        return self.broker

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        """As `Broker.open_receiver`: of both sides, if the entity has a queue on the backlog."""
        queue = self.options.queue_of(self.label, entity)
        if queue is None:
            return self.broker.open_receiver(entity, mode)
        sides = self._sides(entity, queue)
        return open_joined_receiver(sides, entity, mode, clock=self.clock, rng=self.rng)

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """
        As `Sessions.open_session`, at both sides. In receive-and-delete mode at the primary alone,
        as a message of the backlog is locked until it can be read.
        """
        queue = self.options.queue_of(self.label, entity, sessions=True)
        has_sessions = offered(self.secondary, Sessions) is not None
        if queue is None or not has_sessions or mode is not ReceiveMode.PEEK_LOCK:
            return required(self.broker, Sessions).open_session(entity, session_id, mode)
        sides = self._sides(entity, queue)
        return open_two_sided_session(
            sides, session_id, self._silent, clock=self.clock, rng=self.rng
        )

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """
        As `Sessions.list_sessions`, of both sides; while one can't be asked, of the other alone. By
        the date of their states the primary's, where these are.

        Raises:
            BrokerError: the primary can't be asked, and the backlog has no sessions.
        """
        at_home, there = required(self.broker, Sessions), offered(self.secondary, Sessions)
        queue = self.options.queue_of(self.label, entity, sessions=True)
        if queue is None or there is None or updated_since is not None:
            return await at_home.list_sessions(
                entity, updated_since=updated_since, skip=skip, top=top
            )
        found = set[str]()
        failure: BrokerError | None = None
        try:
            found.update(await first_sessions(at_home, entity, skip + top))
        except BrokerError as error:
            if not error.counts_as_outage:
                raise
            failure = error
        with suppress(BrokerError):
            found.update(await first_sessions(there, queue, skip + top))
        if failure is not None and not found:
            raise failure
        return sorted(found)[skip : skip + top]

    def _sides(self, entity: EntityPath, queue: EntityPath) -> BothSides:
        return BothSides(
            primary=self.broker,
            secondary=self.secondary,
            entity=entity,
            queue=queue,
            opening=self.opening,
            outages=self._outages,
            outages_of_backlog=self._outages_of_backlog,
            rng=self.rng,
        )

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """
        As `Peeks.peek`: the messages of the primary, then those of the backlog. While the primary
        can't be asked, those of the backlog alone.

        Raises:
            BrokerError: the primary can't be asked, and the backlog shows nothing.
        """
        peeks, known = required(self.broker, Peeks), self.entity_cache.of(entity)
        requires_session = known is not None and known.requires_session is True
        queue = self.options.queue_of(self.label, entity, sessions=requires_session)
        if queue is None:
            return await peeks.peek(entity, from_sequence=from_sequence, limit=limit)
        place, number = inward_number(max(from_sequence, 0))
        found: Sequence[Delivery] = ()
        failure: BrokerError | None = None
        if place == PRIMARY:
            try:
                found = await peeks.peek(entity, from_sequence=number, limit=limit)
            except BrokerError as error:
                if not error.counts_as_outage:
                    raise
                failure = error
            number = 0
        if not found:
            found = await self._peek_backlog(entity, queue, number, limit)
        if not found and failure is not None:
            raise failure
        return found

    async def _peek_backlog(
        self, entity: EntityPath, queue: EntityPath, number: int, limit: int
    ) -> Sequence[Delivery]:
        peeks = offered(self.secondary, Peeks)
        if peeks is None:
            return ()
        while True:
            try:
                peeked = await peeks.peek(queue, from_sequence=number, limit=limit)
            except BrokerError:
                return ()  # as without that side
            found = [outward(each, BACKLOG) for each in shown(self.opening, entity, peeked)]
            if found or not peeked:
                return found
            number = peeked[-1].sequence_number + 1

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`, with the messages of the backlog among the active ones."""
        return await self._with_backlog(await self.broker.inspect(entity))

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """As `Describes.describe`, and as `inspect`."""
        return await self._with_backlog(await described(self.broker, entity))

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`, and as `inspect`; a count that takes long is unknown."""
        found = list(await self.broker.list_queues(prefix, skip=skip, top=top))
        limiter = trio.CapacityLimiter(_AT_ONCE)

        async def count(place: int, info: EntityInfo) -> None:
            async with limiter:
                found[place] = await self._with_backlog(info)

        with trio.move_on_after(_PATIENCE):
            async with trio.open_nursery() as nursery:
                for place, info in enumerate(found):
                    if self._queue_of(info) is not None:
                        found[place] = attrs.evolve(info, active=None)
                        nursery.start_soon(count, place, info)
        return found

    def _queue_of(self, info: EntityInfo) -> EntityPath | None:
        return self.options.queue_of(self.label, info.path, sessions=info.requires_session)

    async def _with_backlog(self, info: EntityInfo) -> EntityInfo:
        queue = self._queue_of(info)
        if queue is None or info.active is None:
            return info
        try:
            waiting = await self.secondary.inspect(queue)
        except EntityNotFound:
            return info  # nothing was diverted there
        except BrokerError:
            return attrs.evolve(info, active=None)
        if waiting.active is None:
            return attrs.evolve(info, active=None)
        return attrs.evolve(
            info,
            active=info.active + waiting.active,
            locked_here=info.locked_here + waiting.locked_here,
            other_consumers=max(info.other_consumers, waiting.other_consumers),
            lag=max(info.lag, waiting.lag),
        )
