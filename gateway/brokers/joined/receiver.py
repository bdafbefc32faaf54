"""
Receives from several queues as from one.

Each queue has a task that receives from it while a call of `receive` waits. Messages that other
queues deliver meanwhile are kept for the next call. So no receive is cancelled because another
queue was faster, which in a namespace that is polled would lock messages that no receive returns.
If no call waits for `LINGER` seconds, the tasks stop receiving and give back the kept messages, but
those of sessions.

    receive ◀── _ready ◀─┬── task of the queue at place 0 ◀── its receiver
                         ├── task of the queue at place 1 ◀── its receiver
                         └── ...                 at most one batch of each is kept
"""

import math
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar

import attrs
import trio

from gateway.brokers.joined.queues import JoinedQueues, JoinedSource
from gateway.brokers.joined.sequence import by_place
from gateway.brokers.joined.settling import JoinedSettling, takes_back
from gateway.brokers.task_scope import TaskScope
from gateway.capabilities import (
    ChangesBody,
    Enlists,
    KeepsMessages,
    Polls,
    ReceivesAvailable,
    ReceivesDeferred,
)
from gateway.changes import Changes
from gateway.domain.clocks.lock_ends import USUAL_LOCK
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, MessageNotFound, Outcome
from gateway.domain.message import Abandon, Complete, Delivery, ReceiveMode
from gateway.offering import offered, required
from gateway.ports import Receiver, WallClock

C = TypeVar("C")

# Seconds after a `receive` before the messages that are kept for the next are given back.
LINGER: Final = 0.5
_PATIENCE: Final = 2.0  # seconds for a leading queue to be opened, beside others that are open
_GRACE: Final = 0.5  # seconds for the other queues, once the leading one has said that it is empty
# Capabilities of the receiver that has the delivery, whatever the others can.
_OF_ONE_DELIVERY: Final = frozenset((ChangesBody, Enlists, KeepsMessages, ReceivesDeferred))
_CLOSE_TIMEOUT: Final = 5.0


class _KeptDelivery(NamedTuple):
    """A delivery that no call has returned yet, and the end of its lock by Trio's clock."""

    source: JoinedSource
    delivery: Delivery
    until: float


@asynccontextmanager
async def open_joined_receiver(
    queues: JoinedQueues,
    entity: EntityPath,
    mode: ReceiveMode,
    *,
    clock: WallClock,
    rng: random.Random,
) -> AsyncIterator["JoinedReceiver"]:
    """
    Open a receiver of all these queues, which are the entity to clients. Returns as soon as one of
    them is open.

    Raises:
        BrokerError: none could be opened; the error of the first.
    """
    receiver = JoinedReceiver(queues=queues, entity=entity, mode=mode, clock=clock, rng=rng)
    async with TaskScope() as scope:
        scope.nursery.start_soon(receiver.run)
        await receiver.opened()
        yield receiver


@attrs.define(eq=False, kw_only=True)
class JoinedReceiver(JoinedSettling):
    """
    A `Receiver` whose deliveries come from all queues. It offers the capabilities that the open
    ones have in common, and of those that concern one delivery the leading queue's. In
    receive-and-delete mode messages are locked, and completed when they are returned: messages that
    are kept for the next call must not be lost.
    """

    mode: ReceiveMode
    clock: WallClock
    rng: random.Random
    _first: Receiver | None = attrs.field(default=None, init=False)
    _ready: deque[_KeptDelivery] = attrs.field(factory=deque, init=False)
    _news: Changes = attrs.field(factory=Changes, init=False)  # deliveries, errors
    _wanted: Changes = attrs.field(factory=Changes, init=False)  # calls that wait
    _limit: int = attrs.field(default=1, init=False)
    _waiting: int = attrs.field(default=0, init=False)  # calls of `receive`
    _looking: int = attrs.field(default=0, init=False)  # calls of `receive_available`
    _lasts: float = attrs.field(default=0.0, init=False)  # until when to linger
    _lingers: bool = attrs.field(default=False, init=False)
    _left: Changes = attrs.field(factory=Changes, init=False)  # calls that returned

    @property
    def inner(self) -> object:
        leading = self._leading
        return self._first if leading is None or leading.receiver is None else leading.receiver

    def offer(self, capability: type[C]) -> C | None:
        """As `Wrapper.offer`. Several kinds of namespaces can't be polled as one."""
        if capability is Polls and self.queues.leading is not None:
            return None
        if capability not in _OF_ONE_DELIVERY:
            opened = [each.receiver for each in self._sources.values() if each.receiver is not None]
            if any(offered(each, capability) is None for each in opened):
                return None
        return super().offer(capability)

    @property
    def _leading(self) -> JoinedSource | None:
        place = self.queues.leading
        return None if place is None else self._sources.get(place)

    async def opened(self) -> None:
        """
        Return when a queue can be received from: the leading one, unless it takes its time.

        Raises:
            BrokerError: none can be.
        """
        with trio.move_on_after(_PATIENCE):
            while (leading := self._leading) is not None and leading.is_undecided:
                await self._news.wait_next()
        while self._first is None or self._failure() is not None:
            seen = self._news.version
            if (error := self._failure()) is not None:
                raise error
            await self._news.wait(seen)

    async def run(self) -> None:
        """Receive from the queues that there are, until cancelled."""
        async with trio.open_nursery() as nursery:
            if not self.queues.in_order:
                nursery.start_soon(self._give_back_later)
            while True:
                seen, places = self.queues.changes.version, set(self.queues.places())
                for place in sorted(places - self._sources.keys()):
                    source = self._sources[place] = JoinedSource(place=place)
                    nursery.start_soon(self._serve, source)
                for place in self._sources.keys() - places:
                    self._remove(self._sources.pop(place))
                    self._news.notify()
                await self.queues.changes.wait(seen)

    def _remove(self, source: JoinedSource) -> None:
        """Stop receiving from the queue. Its receiver gives back the kept messages."""
        self._ready = deque(each for each in self._ready if each.source is not source)
        source.scope.cancel()

    # --- receiving

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`; oldest first in each queue. A queue that fails doesn't hold up the
        messages of the others.
        """
        if self._failure() is not None:
            for source in self._sources.values():
                source.error = None  # the next verdict is of this call
        self._limit = limit if not self._waiting else max(limit, self._limit)
        self._waiting += 1
        try:
            return await self._next(limit)
        except trio.Cancelled:
            if self._waiting == 1:
                self._stop()  # so that no message is received without a waiting call
            raise
        finally:
            self._waiting -= 1
            self._linger()

    async def _next(self, limit: int) -> Sequence[Delivery]:
        while True:
            seen = self._news.version
            taken = self._pop(limit)
            if taken and self._deletes:
                taken = await self._deleted(taken)
            if taken:
                return taken
            if (error := self._failure()) is not None:
                raise error
            self._wanted.notify()
            await self._news.wait(seen)

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """
        As `ReceivesAvailable.receive_available`: of all queues at the same time. A queue that fails
        has nothing; if all or the leading one fail, the error is raised.
        """
        await trio.lowlevel.checkpoint()  # a caller may look again and again
        taken = self._pop(limit) or await self._looked(limit)
        return await self._deleted(taken) if self._deletes else taken

    async def _looked(self, limit: int) -> list[Delivery]:
        errors: dict[int, BrokerError] = {}
        self._looking += 1
        try:
            async with trio.open_nursery() as nursery:
                for source in self._sources.values():
                    nursery.start_soon(self._poll_once, source, limit, errors, nursery.cancel_scope)
        finally:
            self._looking -= 1
            self._linger()
        taken = self._pop(limit)
        place = self.queues.leading
        if not taken and errors and (len(errors) == len(self._sources) or place in errors):
            raise next(iter(errors.values())) if place is None else errors[place]
        return taken

    async def _poll_once(
        self,
        source: JoinedSource,
        limit: int,
        errors: dict[int, BrokerError],
        look: trio.CancelScope,
    ) -> None:
        while source.is_undecided and not source.scope.cancel_called:
            await self._news.wait_next()
        if source.receiver is None:
            if source.error is not None:
                errors[source.place] = source.error
            return
        await self._interrupt(source)  # what it has on its way is what this look finds
        try:
            receiver = required(source.receiver, ReceivesAvailable)
            self._keep(source, await receiver.receive_available(limit))
        except BrokerError as error:
            errors[source.place] = error
        self._hasten(source, look)

    def _hasten(self, source: JoinedSource, look: trio.CancelScope) -> None:
        """Let no queue that hangs keep what another one has found, or the leading one's answer."""
        if self.queues.leading is None:
            return
        if source.kept:
            look.cancel()
        elif source is self._leading:
            look.deadline = min(look.deadline, trio.current_time() + _GRACE)

    async def _interrupt(self, source: JoinedSource) -> None:
        receiving = source.receiving
        if receiving is not None:
            receiving.cancel()
            while source.receiving is receiving:
                await self._news.wait_next()

    def _keep(self, source: JoinedSource, found: Sequence[Delivery]) -> None:
        if not source.scope.cancel_called:  # otherwise its receiver gives them back
            date, now = self.clock(), trio.current_time()
            for each in found:
                until = (
                    math.inf
                    if self.queues.in_order
                    else now + _seconds_locked(each.locked_until, date)
                )
                self._ready.append(_KeptDelivery(source, self._outward(source.place, each), until))
            source.kept += len(found)

    def _linger(self) -> None:
        self._lasts = trio.current_time() + LINGER
        if not self._lingers:
            self._left.notify()

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`: one request to each queue, until one has messages."""
        await trio.lowlevel.checkpoint()  # a caller's loop over kept messages lets others run
        if taken := self._pop(limit):
            return await self._deleted(taken) if self._deletes else taken
        sources = [each for each in self._sources.values() if each.receiver is not None]
        first = self.rng.randrange(len(sources)) if sources else 0
        problem: BrokerError | None = None
        for source in (*sources[first:], *sources[:first]):
            try:
                found = await required(source.receiver, Polls).poll(limit, lock)
            except BrokerError as error:
                problem = error
                continue
            if found:
                whole = [self._outward(source.place, each) for each in found]
                return await self._deleted(whole) if self._deletes else whole
        if problem is not None:
            raise problem
        return ()

    def _failure(self) -> BrokerError | None:
        """The error of the first queue, if none can be received from, or the leading one can't."""
        leading = self._leading
        if leading and leading.error is not None and not leading.error.counts_as_outage:
            return leading.error
        sources = self._sources.values()
        if not sources or any(source.error is None for source in sources):
            return None
        return next(iter(sources)).error

    @property
    def _deletes(self) -> bool:
        return self.mode is ReceiveMode.RECEIVE_AND_DELETE

    def _pop(self, limit: int) -> list[Delivery]:
        """Kept deliveries whose locks hold."""
        now, taken = trio.current_time(), list[Delivery]()
        while self._ready and len(taken) < limit:
            kept = self._ready.popleft()
            kept.source.kept -= 1
            if kept.until > now:  # otherwise the queue delivers the message again
                taken.append(kept.delivery)
        return taken

    async def _deleted(self, taken: Sequence[Delivery]) -> list[Delivery]:
        """
        Complete the deliveries; return the completed ones, which won't come again. An unknown
        outcome counts as success.
        """
        verdicts = await self.settle_many([(delivery, Complete()) for delivery in taken])
        return [
            attrs.evolve(delivery, lock_token=None, locked_until=None)
            for delivery, error in zip(taken, verdicts, strict=True)
            if error is None or error.outcome is Outcome.UNKNOWN
        ]

    async def _serve(self, source: JoinedSource) -> None:
        """Receive from one queue while calls wait, until its scope is cancelled."""
        failures = 0
        with source.scope:
            while True:
                try:
                    async with self.queues.open_receiver(source.place) as receiver:
                        source.receiver = receiver
                        source.error, failures = None, 0
                        self._first = self._first or receiver
                        self._news.notify()
                        await self._receive_from(source, receiver)
                except BrokerError as error:
                    source.receiver = None
                    failures += 1
                    await self._pause(source, error, failures)

    async def _receive_from(self, source: JoinedSource, receiver: Receiver) -> None:
        failures = 0
        while True:
            seen = self._wanted.version
            if not self._waiting or source.kept:
                await self._wanted.wait(seen)
                continue
            try:
                with trio.CancelScope() as source.receiving:
                    self._keep(source, await receiver.receive(self._limit))
                    if source.scope.cancel_called:
                        continue
                source.error, failures = None, 0
                self._news.notify()
            except BrokerError as error:  # the receiver stays open: its deliveries can be settled
                failures += 1
                await self._pause(source, error, failures)
            finally:
                source.receiving = None
                if self._looking:
                    self._news.notify()

    async def _pause(self, source: JoinedSource, error: BrokerError, failures: int) -> None:
        """Wait before the next attempt; less, if a call waits and no queue works."""
        source.error = error
        self._news.notify()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_wanted, source, nursery.cancel_scope)
            await self.queues.wait_before_retry(source.place, error, failures)
            nursery.cancel_scope.cancel()

    async def _wait_wanted(self, source: JoinedSource, pause: trio.CancelScope) -> None:
        while source.error is not None:
            await self._wanted.wait_next()
        pause.cancel()

    # --- giving back

    async def _give_back_later(self) -> None:
        while True:
            seen = self._left.version
            self._lingers = True
            while not self._in_use and self._lasts > trio.current_time():  # noqa: ASYNC110 moves
                await trio.sleep_until(self._lasts)
            self._lingers = False
            if not self._in_use:
                self._stop()
                await self.give_back()
            await self._left.wait(seen)

    @property
    def _in_use(self) -> bool:
        return self._waiting > 0 or self._looking > 0

    def _stop(self) -> None:
        """Stop receiving until a call waits again."""
        for source in self._sources.values():
            if source.receiving is not None:
                source.receiving.cancel()

    async def give_back(self) -> None:
        """
        Release the kept messages, unless the namespace would count the release as a delivery: they
        are then kept for a later call, as long as their locks hold. Those of sessions go back even
        so.
        """
        in_order = self.queues.in_order
        going = [each for each in self._ready if in_order or takes_back(each.source.receiver)]
        for kept in going:
            if kept not in self._ready:
                continue  # a call has taken it meanwhile
            self._ready.remove(kept)
            source, delivery = kept.source, kept.delivery
            source.kept -= 1
            if source.receiver is not None:
                with suppress(BrokerError):  # the message's lock expires instead
                    await source.receiver.settle(self._inward(delivery), Abandon(delivered=False))

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """
        As `ReceivesDeferred.receive_deferred`. If a queue fails, the messages of the others are
        abandoned, so that they are deferred again.
        """
        found: dict[int, Delivery] = {}
        try:
            for place, numbers in by_place(sequence_numbers).items():
                receiver = required(await self._opened_at(place), ReceivesDeferred)
                for delivery in await receiver.receive_deferred(numbers):
                    whole = self._outward(place, delivery)
                    found[whole.sequence_number] = whole
            taken = _by_number(found, sequence_numbers)
        except BaseException:
            back = [(delivery, Abandon(delivered=False)) for delivery in found.values()]
            with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                await self.settle_many(back)
            raise
        return await self._deleted(taken) if self._deletes else taken

    async def _opened_at(self, place: int) -> Receiver:
        """
        The receiver of the queue at that place, once it is open.

        Raises:
            MessageNotFound: there is no such queue, so no message has a number that leads there.
            BrokerError: the receiver can't be opened.
        """
        while True:
            seen, source = self._news.version, self._sources.get(place)
            if source is None:
                raise MessageNotFound(f"{self.entity}: no queue of it is at place {place}")
            if source.receiver is not None:
                return source.receiver
            if source.error is not None:
                raise source.error
            await self._news.wait(seen)


def _by_number(found: Mapping[int, Delivery], numbers: Sequence[int]) -> list[Delivery]:
    """
    The deliveries with these numbers, in that order.

    Raises:
        MessageNotFound: one is missing.
    """
    for number in numbers:
        if number not in found:
            raise MessageNotFound(f"{number}: a queue has returned no message with that number")
    return [found[number] for number in numbers]


def _seconds_locked(locked_until: datetime | None, date: datetime) -> float:
    """
    The seconds for which the lock of a message holds that was received just now.

    A lock that seems over shows that our clock is ahead: then the usual duration is assumed.
    """
    if locked_until is None:
        return math.inf
    left = (locked_until - date).total_seconds()
    return left if left > 0 else USUAL_LOCK
