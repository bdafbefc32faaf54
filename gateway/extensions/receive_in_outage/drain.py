"""
A syphon's drain of a backlog queue that is received from, too.

The usual drain keeps the locks of messages that it can't move. Here a receiver would get none of
them in the outage. So this drain receives while the primary answers, and then gives back at once
what it can't move: in an outage it holds no message.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities.settling import settle_all
from gateway.domain.backlog import owner_of
from gateway.domain.copies import CopyEvent, CopyStep
from gateway.domain.dead_letters import MALFORMED
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Unwrapped
from gateway.domain.envelope_fields import Malformed, NotOurs
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.message import Abandon, Delivery
from gateway.pairing.syphon.backlog_message import BacklogMessage
from gateway.pairing.syphon.drained_queue import DrainedQueue
from gateway.pairing.syphon.mover import Mover
from gateway.ports import Receiver

# Seconds for which the primary counts as well after its answer. It is asked before messages are
# handed over to it: in an outage each of them would be held for an attempt.
FRESH: Final = 1.0
# Seconds after a suspension until a receive that waits is cut. The first diverted message arrives
# in the same milliseconds: the namespace may have locked it for a request that is cut then.
LEFT: Final = 1.0
# Of a lock, for that question. The mover renews a lock at a third: there is room for both.
HELD_SHARE: Final = 1 / 3


@attrs.define(eq=False, kw_only=True)
class OwnDrain:
    """Moves the messages of one entity to the primary, as far as no receiver has taken them."""

    at: DrainedQueue
    _answered: float = attrs.field(default=-math.inf, init=False)  # by Trio's clock
    # True: the primary didn't answer. No message is received before it does.
    _is_away: bool = attrs.field(default=False, init=False)

    @property
    def _entity(self) -> EntityPath:
        entity = owner_of(self.at.queue)
        assert entity is not None, "the drain is of such queues alone"
        return entity

    async def run(self) -> BrokerError:
        """As `Drains.run`."""
        limit = self.at.options.attempt_timeout
        while True:
            await self.at.pauses.wait_resumed(self.at.queue)
            await self.at.backoffs.wait_until_resumed(self._entity)
            if self._is_away and not await self._is_primary_well():
                continue
            try:
                with trio.move_on_after(limit) as scope:
                    async with self.at.source.open_receiver(self.at.queue) as receiver:
                        scope.deadline = math.inf
                        await self._drain(receiver)
                        scope.deadline = trio.current_time() + limit
            except BrokerError as error:
                return error
            finally:
                self.at.copies.forget_unsent(self.at.queue.key)
            if scope.cancelled_caught:
                queue = self.at.queue
                return Unavailable(f"{queue} could not be opened or left within {limit:g} s")

    async def _drain(self, receiver: Receiver) -> None:
        """Move messages until the entity is suspended, or the queue is paused."""
        mover = self._mover(receiver)
        while not self.at.backoffs.is_suspended(self._entity):
            await self.at.backoffs.wait_for_more()
            deliveries = await self._receive(receiver)
            if not deliveries:
                return
            self.at.progress.record_received()
            suspended = self.at.backoffs.is_suspended(self._entity)
            if suspended or not await self._is_primary_well():
                await self._give_back(receiver, deliveries)
                return
            await self._move(mover, deliveries)

    async def _receive(self, receiver: Receiver) -> Sequence[Delivery]:
        """Wait for messages; none, once the entity is suspended or the queue is paused."""
        found: Sequence[Delivery] = ()
        failure: BrokerError | None = None
        limit = self.at.progress.within_lock(self.at.options.batch, self.at.info.shortest_lock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_suspended, nursery.cancel_scope)
            try:
                with self.at.pauses.until_paused(self.at.queue):
                    found = await receiver.receive(limit)
            except BrokerError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return found

    async def _cancel_when_suspended(self, receiving: trio.CancelScope) -> None:
        await self.at.backoffs.wait_until_suspended(self._entity)
        await trio.sleep(LEFT)
        receiving.cancel()

    async def _is_primary_well(self) -> bool:
        """Ask the primary, unless it has just answered. False: the entity backs off."""
        began = trio.current_time()
        # The messages are held meanwhile, and no lock is renewed before they are moved.
        seconds = min(self.at.options.attempt_timeout, HELD_SHARE * self.at.info.shortest_lock)
        if began < self._answered + FRESH:
            return True
        error: BrokerError = Unavailable(f"no answer from {self._entity} within {seconds:g} s")
        with trio.move_on_after(seconds):
            try:
                await self.at.primary.probe(self._entity)
            except BrokerError as refusal:
                error = refusal
            else:
                self._answered = trio.current_time()
        # A send tells what else may be wrong with the entity.
        self._is_away = self._answered < began and error.counts_as_outage
        if not self._is_away:
            return True
        options = self.at.options
        self.at.backoffs.back_off(self._entity, options.retry, str(error), outage_at=began)
        return False

    async def _move(self, mover: Mover, deliveries: Sequence[Delivery]) -> None:
        """Move, dead-letter or give back each message."""
        for messages in (await self._open_all(mover, deliveries)).values():
            new, suspects, moment = self.at.redelivery_guard.split(messages)
            for part, wait_until in ((new, None), (suspects, moment)):
                if not part:
                    continue
                entity = part[0].unwrapped.entity
                unmoved = await mover.move(entity, part, wait_until=wait_until)
                self.at.copies.advance(CopyEvent.RELEASED, [each.copy for each in unmoved])
                if unmoved and entity == self._entity:  # another's would come again at once
                    await self._give_back(mover.receiver, [each.delivery for each in unmoved])

    async def _open_all(
        self, mover: Mover, deliveries: Sequence[Delivery]
    ) -> dict[str, list[BacklogMessage]]:
        """Unwrap the messages; settle those that need no transfer; return the others by entity."""
        groups: dict[str, list[BacklogMessage]] = defaultdict(list)
        untouched: dict[str, int] = defaultdict(int)
        now = trio.current_time()
        for delivery in deliveries:
            try:
                unwrapped = self.at.open(delivery)
            except NotOurs as error:
                untouched[str(error)] += 1
            except Malformed as error:
                await mover.dead_letter(delivery, MALFORMED, str(error))
            else:
                message = self._message(mover.receiver, delivery, unwrapped, now)
                step = mover.claim(message)
                if step is CopyStep.COMPLETE:
                    await mover.complete(delivery, message.copy)
                elif step is CopyStep.MOVE:
                    groups[unwrapped.entity.key].append(message)
        for reason, messages in untouched.items():
            self.at.report_untouched(messages, reason)
        return groups

    def _mover(self, receiver: Receiver) -> Mover:
        return self.at.mover(receiver)

    def _message(
        self, receiver: Receiver, delivery: Delivery, unwrapped: Unwrapped, now: float
    ) -> BacklogMessage:
        return BacklogMessage.of(self.at.queue, delivery, unwrapped, now)

    async def _give_back(self, receiver: Receiver, deliveries: Sequence[Delivery]) -> None:
        """Release the locks, for receivers; a lock that isn't released ends by itself."""
        back = [(each.handle, Abandon(delivered=False)) for each in deliveries]
        await settle_all(receiver, back, self.at.options.attempt_timeout)
