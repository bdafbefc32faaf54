"""
Empties one backlog queue.

Each message is moved, dead-lettered with its reason, or suspended: a suspended message stays locked
while its entity is suspended, and is abandoned when the entity resumes, so that it is neither
received again and again nor delayed until its lock expires. Messages of another pair or for another
primary are left untouched until their lock expires; so are those with a wrong MAC, for
`gone_grace`.
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
from gateway.changes import Changes
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.copies import CopyEvent, CopyId, CopyStep
from gateway.domain.dead_letters import MALFORMED
from gateway.domain.entity import EntityPath
from gateway.domain.envelope_fields import Malformed, NotOurs
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.message import Abandon, Delivery
from gateway.offering import offered
from gateway.pairing.syphon.backlog_message import BacklogMessage, BacklogQueueInfo
from gateway.pairing.syphon.batch_window import MAX_BATCHES, BatchWindow, ReceivedBatch
from gateway.pairing.syphon.drained_queue import PATIENCE, DrainedQueue
from gateway.pairing.syphon.mover import Mover
from gateway.ports import Receiver

MAX_SUSPENDED: Final = 10_000  # handles per queue; the locks of further messages expire
# The pauses bound what the search for movable messages costs: each receive is billed.
SCAN_PAUSE: Final = 0.6  # seconds, at least, after a batch that moved nothing
LONGEST_SCAN_PAUSE: Final = 5.0
MOST_DOUBLINGS: Final = 4  # of `SCAN_PAUSE`, until a pause is as long as the queue's depth allows


@attrs.frozen
class Suspended:
    """A message whose entity is suspended."""

    copy: CopyId
    handle: Delivery  # without the message
    until: float  # the latest end of its lock, by Trio's clock

    @classmethod
    def of(cls, message: BacklogMessage, now: datetime, lock: float) -> "Suspended":
        """`lock` is the duration of a lock of its queue, in seconds."""
        ends = LockEnds.of(message.delivery.locked_until, now, trio.current_time(), lock)
        return cls(message.copy, message.delivery.handle, ends.latest)

    @property
    def is_locked(self) -> bool:
        return self.until > trio.current_time()


@attrs.define(eq=False, kw_only=True)
class Drain:
    """Moves messages from one backlog queue to the primary."""

    at: DrainedQueue
    max_suspended: int = MAX_SUSPENDED
    _suspended: dict[str, list[Suspended]] = attrs.field(factory=dict, init=False)
    _given_back: Changes = attrs.field(factory=Changes, init=False)

    async def run(self) -> BrokerError:
        """Drain until the queue can't be read any more; return why. All locks are released."""
        limit = self.at.options.attempt_timeout
        self.at.progress.batches += MAX_BATCHES
        try:
            with trio.move_on_after(limit) as scope:
                async with self.at.source.open_receiver(self.at.queue) as receiver:
                    scope.deadline = math.inf
                    error = await self._drain(receiver, self.at.mover(receiver))
                    scope.deadline = trio.current_time() + limit
                return error
        except BrokerError as error:
            return error
        finally:
            self.at.progress.batches -= MAX_BATCHES
            self._suspended.clear()
            self.at.copies.forget_unsent(self.at.queue.key)
        return Unavailable(f"{self.at.queue} could not be opened or left within {limit:g} s")

    async def _drain(self, receiver: Receiver, mover: Mover) -> BrokerError:
        limit = self.at.options.attempt_timeout
        batches = BatchWindow(
            largest=self.at.options.batch, patience=PATIENCE * limit, within=self._within_lock
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._skip_those_from_before, batches)
            while True:
                await self.at.pauses.wait_resumed(self.at.queue)
                if await self.at.backoffs.wait_for_more():
                    batches.start_again()
                try:
                    with self.at.pauses.until_paused(self.at.queue) as receiving:
                        deliveries = await receiver.receive(batches.most)
                except BrokerError as error:
                    with trio.move_on_after(limit):  # sends in progress may still get their answer
                        await batches.wait_empty()
                    nursery.cancel_scope.cancel()
                    return error
                if receiving.cancelled_caught:
                    continue
                self.at.progress.record_received()
                batch = batches.begin(deliveries)
                nursery.start_soon(self._handle, batch, deliveries, batches, mover, nursery)
                await batches.wait_for_room()
                if batches.stuck:
                    seconds = scan_pause(
                        self.at.info, self._suspended_count, batches.limit, batches.stuck
                    )
                    with trio.move_on_after(seconds):
                        await self._given_back.wait_next()

    def _within_lock(self, messages: int) -> int:
        return self.at.progress.within_lock(messages, self.at.info.shortest_lock)

    async def _skip_those_from_before(self, batches: BatchWindow) -> None:
        """At a return of the primary, or of an entity, wait for no batch from before it."""
        backoffs = self.at.backoffs

        def is_from_before(batch: ReceivedBatch) -> bool:
            return any(backoffs.returned_at(each) > batch.began for each in batch.entities)

        while True:
            await backoffs.wait_change()
            batches.skip(is_from_before)

    async def _handle(
        self,
        batch: ReceivedBatch,
        deliveries: Sequence[Delivery],
        batches: BatchWindow,
        mover: Mover,
        nursery: trio.Nursery,
    ) -> None:
        """Move each entity's messages in a task of its own."""
        groups = await self._open_all(deliveries, batch, mover)
        batch.entities = [group[0].unwrapped.entity for group in groups]

        async def move(
            backlog_messages: Sequence[BacklogMessage], wait_until: float | None = None
        ) -> None:
            entity = backlog_messages[0].unwrapped.entity
            unmoved = await mover.move(entity, backlog_messages, wait_until=wait_until)
            batch.moved += len(backlog_messages) - len(unmoved)
            batch.gently |= self.at.backoffs.window(entity) < self.at.backoffs.largest
            self._suspend(entity, unmoved, mover, nursery)

        async with trio.open_nursery() as moving:
            for backlog_messages in groups:
                new, suspects, moment = self.at.redelivery_guard.split(backlog_messages)
                if new:
                    moving.start_soon(move, new)
                if suspects:
                    moving.start_soon(move, suspects, moment)
        batches.finish(batch)

    async def _open_all(
        self, deliveries: Sequence[Delivery], batch: ReceivedBatch, mover: Mover
    ) -> list[list[BacklogMessage]]:
        """Unwrap the messages; settle those that need no transfer; return the others by entity."""
        groups: dict[str, list[BacklogMessage]] = defaultdict(list)
        untouched: dict[str, int] = defaultdict(int)
        now = trio.current_time()
        async with trio.open_nursery() as settling:
            for delivery in deliveries:
                try:
                    unwrapped = self.at.open(delivery)
                except NotOurs as error:
                    untouched[str(error)] += 1
                    _forget(mover.receiver, delivery)
                except Malformed as error:
                    batch.moved += 1
                    settling.start_soon(mover.dead_letter, delivery, MALFORMED, str(error))
                else:
                    message = BacklogMessage.of(self.at.queue, delivery, unwrapped, now)
                    step = mover.claim(message)
                    if step is CopyStep.COMPLETE:
                        batch.moved += 1
                        settling.start_soon(mover.complete, delivery, message.copy)
                    elif step is CopyStep.MOVE:
                        groups[unwrapped.entity.key].append(message)
        for reason, messages in untouched.items():
            self.at.report_untouched(messages, reason)
        return list(groups.values())

    def _suspend(
        self,
        entity: EntityPath,
        backlog_messages: Sequence[BacklogMessage],
        mover: Mover,
        nursery: trio.Nursery,
    ) -> None:
        """
        Keep a handle of each message, and abandon them when the entity resumes.

        The receiver drops the bodies too, so that a long outage needs memory for handles only.
        """
        for one in backlog_messages:
            _forget(mover.receiver, one.delivery)
        for suspended in self._suspended.values():
            self.at.copies.advance(
                CopyEvent.RELEASED, [each.copy for each in suspended if not each.is_locked]
            )
            suspended[:] = [each for each in suspended if each.is_locked]
        room = self.max_suspended - self._suspended_count
        now = self.at.clock()
        lock = self.at.info.longest_lock
        handles = [Suspended.of(each, now, lock) for each in backlog_messages[:room]]
        self.at.copies.advance(CopyEvent.RELEASED, [each.copy for each in backlog_messages[room:]])
        if not handles:
            return
        if entity.key not in self._suspended:
            nursery.start_soon(self._give_back, entity, mover.receiver)
        suspended = self._suspended.setdefault(entity.key, [])
        suspended += handles
        suspended.sort(key=lambda one: one.handle.sequence_number)  # the one that was tried first

    async def _give_back(self, entity: EntityPath, receiver: Receiver) -> None:
        """
        Abandon the entity's messages once it resumes: after a failure a single one first, as a try.

        An abandoned message is delivered before all others of its queue.
        """
        limit = PATIENCE * self.at.options.attempt_timeout
        await self.at.backoffs.wait_until_resumed(entity)
        while self.at.backoffs.failed(entity):
            await self._release(self._suspended[entity.key], receiver, most=1)
            if await self.at.backoffs.wait_for_outcome(entity, limit):
                break
            await self.at.backoffs.wait_until_resumed(entity)
        await self._release(self._suspended.pop(entity.key), receiver)

    async def _release(
        self, suspended: list[Suspended], receiver: Receiver, most: float = math.inf
    ) -> None:
        released = 0
        while suspended and released < most:
            one = suspended.pop(0)
            self.at.copies.advance(CopyEvent.RELEASED, (one.copy,))
            if not one.is_locked:
                continue
            with trio.move_on_after(self.at.options.attempt_timeout):
                with suppress(BrokerError):  # its lock expires by itself
                    await receiver.settle(one.handle, Abandon())
                    released += 1
        self._given_back.notify()  # a drain that pauses receives at once

    @property
    def _suspended_count(self) -> int:
        """The number of suspended messages whose handles are kept."""
        return sum(map(len, self._suspended.values()))


def scan_pause(info: BacklogQueueInfo, suspended: int, limit: int, stuck: int) -> float:
    """
    Seconds until the next batch of `limit` messages, after `stuck` batches that moved none.
    `suspended` is the number of messages whose handles are kept.

    Long enough to be cheap in a long outage; short enough to see the whole queue within one lock,
    so that messages of a healthy entity wait no longer behind those of a suspended one. Beyond some
    2,500 suspended messages in one queue (10,000 with locks of a minute) the second isn't
    guaranteed: it would cost too many requests. The first pauses are short whatever the depth,
    since the known depth may be a minute old.
    """
    if info.depth is None:
        return SCAN_PAUSE
    rounds = max(1.0, max(info.depth, suspended) / limit)
    longest = max(SCAN_PAUSE, info.longest_lock / 4 / rounds)
    quick = SCAN_PAUSE * 2.0 ** min(stuck - 1, MOST_DOUBLINGS)
    return min(LONGEST_SCAN_PAUSE, longest, quick)


def _forget(receiver: Receiver, delivery: Delivery) -> None:
    """Drop the receiver's copy of the message: it stays locked, and isn't needed to settle it."""
    if (keeps := offered(receiver, KeepsMessages)) is not None:
        keeps.forget_message(delivery)
