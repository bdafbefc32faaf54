"""
Empties one backlog queue.

Each message is moved, parked (dead-lettered with its reason), or rests: it stays locked while its
entity is held, and is given back when the hold ends, so that it neither spins nor waits for its
lock. Messages that aren't ours stay untouched until their lock runs out, and so do messages with a
wrong MAC, for a grace.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.capabilities import KeepsMessages
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, Unwrapped
from gateway.domain.envelope_fields import Malformed, NotOurs, WrongMac
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.events import LeftUntouched
from gateway.domain.lock_ends import USUAL_LOCK, LockEnds
from gateway.domain.message import Abandon, Delivery
from gateway.pairing.caution import Caution
from gateway.pairing.grace import Grace
from gateway.pairing.hand import Batch, Hand
from gateway.pairing.holds import Holds
from gateway.pairing.mover import Mover
from gateway.pairing.options import SyphonOptions
from gateway.pairing.transfer import Cargo, Copy, Progress, Transferred
from gateway.ports import Broker, Observer, Receiver, WallClock

MAX_RESTING: Final = 10_000  # handles per queue; what is beyond comes back when its lock runs out
SCAN_PAUSE: Final = 0.6  # seconds between batches in which nothing could be moved, at least
LONGEST_SCAN_PAUSE: Final = 5.0
PATIENCE: Final = 1.5  # attempt time-outs until the next batch is begun without waiting
MALFORMED: Final = "EnvelopeMalformed"


@attrs.frozen
class Resting:
    """A message that its entity keeps from being moved."""

    handle: Delivery  # without the message
    until: float  # by Trio's clock: so long its lock may hold

    @classmethod
    def of(cls, delivery: Delivery, now: datetime) -> "Resting":
        ends = LockEnds.of(delivery.locked_until, now, trio.current_time())
        return cls(delivery.handle, ends.latest)

    @property
    def is_locked(self) -> bool:
        return self.until > trio.current_time()


@attrs.define(eq=False, kw_only=True)
class Drain:
    """Moves messages from one backlog queue to the primary."""

    primary: Broker
    source: Broker
    queue: EntityPath
    envelope: Envelope
    options: SyphonOptions
    holds: Holds
    transferred: Transferred
    progress: Progress
    wrong_macs: Grace  # by the id of the key
    caution: Caution
    clock: WallClock
    observer: Observer
    depth: int | None = None  # as the source told last
    _resting: dict[str, list[Resting]] = attrs.field(factory=dict, init=False)
    _given_back: trio.Event = attrs.field(factory=trio.Event, init=False)  # set for a moment

    async def run(self) -> BrokerError:
        """Drain until the queue can't be read any more; return why. What is in hand is released."""
        limit = self.options.attempt_timeout
        try:
            with trio.move_on_after(limit) as scope:
                async with self.source.open_receiver(self.queue) as receiver:
                    scope.deadline = math.inf
                    error = await self._drain(receiver, self._mover(receiver))
                    scope.deadline = trio.current_time() + limit
                return error
        except BrokerError as error:
            return error
        finally:
            self._resting.clear()
        return Unavailable(f"{self.queue} could not be opened or left within {limit:g} s")

    async def _drain(self, receiver: Receiver, mover: Mover) -> BrokerError:
        limit = self.options.attempt_timeout
        hand = Hand(largest=self.options.batch, patience=PATIENCE * limit)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    deliveries = await receiver.receive(hand.limit)
                except BrokerError as error:
                    with trio.move_on_after(limit):  # what the primary has by then is known
                        await hand.wait_empty()
                    nursery.cancel_scope.cancel()
                    return error
                batch = hand.take(deliveries)
                nursery.start_soon(self._handle, batch, deliveries, hand, mover, nursery)
                await hand.wait_for_room()
                if hand.stuck:
                    with trio.move_on_after(self._scan_pause(hand.limit)):
                        await self._given_back.wait()

    async def _handle(
        self,
        batch: Batch,
        deliveries: Sequence[Delivery],
        hand: Hand,
        mover: Mover,
        nursery: trio.Nursery,
    ) -> None:
        """Move each entity's messages in a task of its own."""
        groups = await self._open_all(deliveries, batch, mover)

        async def move(cargo: Sequence[Cargo], wait_until: float | None = None) -> None:
            entity = cargo[0].unwrapped.entity
            resting = await mover.move(entity, cargo, wait_until=wait_until)
            batch.moved += len(cargo) - len(resting)
            batch.gently |= self.holds.window(entity) < self.holds.largest
            self._rest(entity, resting, mover, nursery)

        async with trio.open_nursery() as moving:
            for cargo in groups:
                new, suspects, moment = self.caution.split(cargo)
                if new:
                    moving.start_soon(move, new)
                if suspects:
                    moving.start_soon(move, suspects, moment)
        hand.end(batch)

    async def _open_all(
        self, deliveries: Sequence[Delivery], batch: Batch, mover: Mover
    ) -> list[list[Cargo]]:
        """Open the envelopes; settle what needs no transfer; the rest by entity."""
        groups: dict[str, list[Cargo]] = defaultdict(list)
        untouched: dict[str, int] = defaultdict(int)
        async with trio.open_nursery() as settling:
            for delivery in deliveries:
                try:
                    unwrapped = self._open(delivery)
                except NotOurs as error:
                    untouched[str(error)] += 1
                    _forget(mover.receiver, delivery)
                except Malformed as error:
                    batch.moved += 1
                    settling.start_soon(mover.park, delivery, MALFORMED, str(error))
                else:
                    copy = self._copy(delivery, unwrapped)
                    if copy in self.transferred:
                        batch.moved += 1
                        settling.start_soon(mover.complete, delivery, copy)
                        continue
                    cargo = Cargo(copy=copy, delivery=delivery, unwrapped=unwrapped)
                    if mover.take(cargo):
                        groups[unwrapped.entity.key].append(cargo)
        for reason, messages in untouched.items():
            self.observer.report(LeftUntouched(queue=self.queue, messages=messages, reason=reason))
        return list(groups.values())

    def _open(self, delivery: Delivery) -> Unwrapped:
        """
        What was diverted, and when it expires.

        Raises:
            NotOurs: it is to be left untouched, at least for now.
            Malformed: it is to be parked.
        """
        try:
            unwrapped = self.envelope.unwrap(delivery.message)
        except WrongMac as error:
            if self.wrong_macs.lasted(error.key_id) < self.options.gone_grace:
                raise NotOurs(str(error)) from error
            raise
        if unwrapped.expires is not None or unwrapped.time_to_live is None:
            return unwrapped
        if delivery.enqueued is None:
            return unwrapped
        # The legacy client doesn't say when; it began to live when it was diverted, or is due.
        begin = max(delivery.enqueued, unwrapped.message.scheduled or delivery.enqueued)
        try:
            return attrs.evolve(unwrapped, expires=begin + unwrapped.time_to_live)
        except OverflowError:  # past the year 9999
            return unwrapped

    def _copy(self, delivery: Delivery, unwrapped: Unwrapped) -> Copy:
        identity = unwrapped.attempt or str(delivery.message.message_id)
        return self.queue.key, delivery.sequence_number, identity

    def _rest(
        self,
        entity: EntityPath,
        cargo: Sequence[Cargo],
        mover: Mover,
        nursery: trio.Nursery,
    ) -> None:
        """
        Keep a handle of each, to give it back when the entity isn't held any more.

        The receiver keeps no more either, so that a long outage is a matter of handles.
        """
        for one in cargo:
            _forget(mover.receiver, one.delivery)
        for resting in self._resting.values():
            resting[:] = [each for each in resting if each.is_locked]
        room = MAX_RESTING - sum(map(len, self._resting.values()))
        now = self.clock()
        handles = [Resting.of(one.delivery, now) for one in cargo[:room]]
        if not handles:
            return
        if entity.key not in self._resting:
            nursery.start_soon(self._give_back, entity, mover.receiver)
        rests = self._resting.setdefault(entity.key, [])
        rests += handles
        rests.sort(key=lambda one: one.handle.sequence_number)  # what was tried is the first again

    async def _give_back(self, entity: EntityPath, receiver: Receiver) -> None:
        """First one, which tries the entity: what is given back stands before all others."""
        limit = PATIENCE * self.options.attempt_timeout
        await self.holds.wait_release(entity)
        while self.holds.failed(entity):
            await self._release(self._resting[entity.key], receiver, most=1)
            if await self.holds.wait_proof(entity, limit):
                break
            await self.holds.wait_release(entity)
        await self._release(self._resting.pop(entity.key), receiver)

    async def _release(
        self, resting: list[Resting], receiver: Receiver, most: float = math.inf
    ) -> None:
        released = 0
        while resting and released < most:
            one = resting.pop(0)
            if not one.is_locked:
                continue
            with trio.move_on_after(self.options.attempt_timeout):
                with suppress(BrokerError):  # it comes back by itself when its lock runs out
                    await receiver.settle(one.handle, Abandon())
                    released += 1
        self._given_back.set()  # a drain that pauses looks at once
        self._given_back = trio.Event()

    def _scan_pause(self, limit: int) -> float:
        """
        Slow enough to be cheap in a long outage, quick enough to see the whole queue in one lock,
        so that a healthy entity's messages wait no longer behind those of a held one. Past some
        10,000 held messages in one queue that isn't kept: looking would cost more than it gives.
        """
        if self.depth is None:
            return SCAN_PAUSE
        batches = max(1.0, self.depth / limit)
        return min(LONGEST_SCAN_PAUSE, max(SCAN_PAUSE, USUAL_LOCK / 4 / batches))

    def _mover(self, receiver: Receiver) -> Mover:
        return Mover(
            primary=self.primary,
            receiver=receiver,
            receiver_queue=self.queue,
            holds=self.holds,
            options=self.options,
            transferred=self.transferred,
            progress=self.progress,
            clock=self.clock,
            observer=self.observer,
        )


def _forget(receiver: Receiver, delivery: Delivery) -> None:
    """It stays locked for a while, and nothing but its lock is needed."""
    if isinstance(receiver, KeepsMessages):
        receiver.forget_message(delivery)
