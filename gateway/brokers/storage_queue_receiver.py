"""
Receiving from Storage Queue: nothing there waits, so who finds nothing asks again after a while.

    take        Get Messages hides up to 32 for the queue's lock duration
    renew       Update Message hides it anew; the receipt is another one then
    abandon     Update Message shows it at once, behind what is there
    dead-letter it's hidden anew (is it still ours?), put into the poison queue, then deleted here
    complete    Delete Message
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.brokers.storage_queue_arrivals import Doorbell
from gateway.brokers.storage_queue_deliveries import Held, Numbers, Taken, read_taken
from gateway.brokers.storage_queue_peer import Shard
from gateway.brokers.storage_queue_poison import PoisonQueue
from gateway.domain.backoff import Backoff, jittered
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    LockLost,
    MessageNotFound,
    NotAuthorized,
    NotSupported,
    Outcome,
    OutcomeUnknown,
)
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.domain.queue_checks import check_reason
from gateway.ports import WallClock
from gateway.wire import storage_queue_operations as storage
from gateway.wire.storage_queue_body import build_body
from gateway.wire.storage_queue_metadata import parse_metadata

_MAX_HELD: Final = 10_000  # locks that are remembered, to be given back at the end
_MAX_KEPT: Final = 64 * 1024 * 1024  # bytes of their messages; the oldest ones' go first
_TOO_OFTEN: Final = "MaxDeliveryCountExceeded"


@attrs.define(eq=False, kw_only=True)
class StorageQueueReceiver:
    """
    `ports.Receiver` and `capabilities.KeepsMessages`. What it still holds at the end it gives back.
    """

    _shards: Sequence[Shard]
    _poison: PoisonQueue | None  # None: these are dead letters
    _mode: ReceiveMode
    _poll: Backoff
    _bell: Doorbell
    _numbers: Numbers
    _clock: WallClock
    _rng: random.Random
    _properties: QueueProperties | None = None
    _held: dict[str, Held] = attrs.field(factory=dict)  # by lock token
    _kept: int = 0  # bytes of their messages

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. A cancelled one may hide what it took until its lock runs out.

        Where the service is busy it waits for as long as it was asked to.
        """
        looks = 0
        while True:
            rings = self._bell.rings
            pause = 0.0
            try:
                taken = await self.poll(limit)
            except Busy as error:
                pause = jittered(error.retry_after, self._poll.jitter, self._rng)
            else:
                if taken:
                    return taken
            looks += 1
            pause = max(pause, self._poll.delay(looks, self._rng))
            if await self._bell.wait(rings, pause):
                looks = 0

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """
        As `Polls.poll`; of an entity with shards, one request to each until one has something.
        """
        lock = None if lock is None else min(lock, timedelta(seconds=storage.MAX_VISIBILITY))
        await self._read_properties()
        return await self._take(min(limit, storage.MAX_MESSAGES), lock or self._lock)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`. What is abandoned as often as the queue allows is dead-lettered; where
        its message isn't kept any more, when it is taken the next time.

        Raises:
            LockLost: its message isn't kept any more, and needed for that: it comes again.
            NotSupported: to defer, or to dead-letter what is dead-lettered.
        """
        await trio.lowlevel.checkpoint()
        held = self._held_of(delivery)
        try:
            match settlement:
                case Complete():
                    await self._delete(held)
                case Abandon():
                    await self._abandon(held, settlement)
                case DeadLetter():
                    check_reason(settlement)
                    await self._bury(held, settlement)
                case Defer():
                    raise NotSupported("Azure Storage can't put a message aside")
        except LockLost:
            self._drop(held.token)
            raise
        self._drop(held.token)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`."""
        held = self._held_of(delivery)
        try:
            return await self._hide(held, self._lock)
        except LockLost:
            self._drop(held.token)
            raise

    def forget_message(self, delivery: Delivery) -> None:
        """As `KeepsMessages.forget_message`."""
        held = self._held.get(delivery.lock_token or "")
        if held is not None:
            self._forget_message(held)

    async def give_back(self) -> None:
        """Give back what is held, oldest first, as far as the service can be reached."""
        await trio.lowlevel.checkpoint()
        for held in list(self._held.values()):
            with suppress(BrokerError):  # its lock runs out instead
                await self._hide(held, timedelta(0))

    # Taking.

    async def _take(self, limit: int, lock: timedelta) -> list[Delivery]:
        """
        From the first shard that has something, beginning with any of them.

        Raises:
            BrokerError: none has anything, and one can't be asked.
        """
        await trio.lowlevel.checkpoint()
        first = self._rng.randrange(len(self._shards))
        problem: BrokerError | None = None
        for shard in [*self._shards[first:], *self._shards[:first]]:
            try:
                if taken := await self._take_from(shard, limit, lock):
                    return taken
            except BrokerError as error:
                problem = error
        if problem is not None:
            raise problem
        return []

    async def _take_from(self, shard: Shard, limit: int, lock: timedelta) -> list[Delivery]:
        asked = self._clock()
        hidden = -(-lock // timedelta(seconds=1))  # rounded up
        answer = await shard.peer.run(
            storage.GetMessages(queue=shard.queue, limit=limit, visibility=hidden)
        )
        items = answer.items if isinstance(answer, storage.Messages) else ()
        found: list[Delivery] = []
        problem: BrokerError | None = None
        for item in items:
            number = self._numbers.of(shard.queue, item.message_id)
            token = self._numbers.new_token()
            taken = read_taken(shard, item, lock, asked, number=number, token=token)
            try:
                if await self._is_for_somebody(taken):
                    found.append(self._handed_over(taken))
            except BrokerError as error:  # it comes again when its lock has run out
                problem = error
        if problem is not None and not found:
            raise problem
        return found

    async def _is_for_somebody(self, taken: Taken) -> bool:
        """Whether it's handed over: not if it has expired, came too early, or too often."""
        held, message, now = taken.held, taken.delivery.message, self._clock()
        if self._poison is None:
            return await self._deleted(held)
        if taken.is_expired:
            await self._delete(held)
            return False
        scheduled = message.scheduled
        if scheduled is not None and scheduled > now:
            longest = timedelta(seconds=storage.MAX_VISIBILITY)
            await self._hide(held, min(scheduled - now, longest))
            return False
        if held.deliveries > self._most:
            await self._bury(held, self._too_often())
            return False
        return await self._deleted(held)

    async def _deleted(self, held: Held) -> bool:
        """In receive-and-delete mode, whether it's ours now; else there is nothing to do."""
        await trio.lowlevel.checkpoint()
        if self._mode is ReceiveMode.RECEIVE_AND_DELETE:
            with suppress(OutcomeUnknown):  # it may be gone: rather twice than never
                await self._delete(held)
        return True

    def _handed_over(self, taken: Taken) -> Delivery:
        if self._mode is ReceiveMode.RECEIVE_AND_DELETE:
            return attrs.evolve(taken.delivery, lock_token=None, locked_until=None)
        self._held[taken.held.token] = taken.held
        self._kept += taken.held.weight
        while len(self._held) > _MAX_HELD:  # the oldest: its lock ran out first
            self._drop(next(iter(self._held)))
        if self._kept > _MAX_KEPT:
            for held in self._held.values():
                self._forget_message(held)
                if self._kept <= _MAX_KEPT:
                    break
        return taken.delivery

    def _drop(self, token: str) -> None:
        held = self._held.pop(token, None)
        if held is not None:
            self._forget_message(held)

    def _forget_message(self, held: Held) -> None:
        self._kept -= held.weight
        held.forget_message()

    async def _read_properties(self) -> None:
        """What the queue was made with; without the right to ask, as of a queue without any."""
        if self._properties is not None:
            return  # noqa: ASYNC910 who asks takes messages next
        await trio.lowlevel.checkpoint()
        shard = self._shards[0]
        try:
            answer = await shard.peer.run(storage.GetMetadata(queue=shard.queue))
        except NotAuthorized:
            answer = storage.QueueMetadata()
        if isinstance(answer, storage.QueueMetadata):
            self._properties = parse_metadata(answer.metadata)

    @property
    def _lock(self) -> timedelta:
        return (self._properties or QueueProperties()).lock_duration

    @property
    def _most(self) -> int:
        return (self._properties or parse_metadata({})).max_delivery_count

    # Settling.

    def _held_of(self, delivery: Delivery) -> Held:
        held = self._held.get(delivery.lock_token or "")
        if held is None:
            raise LockLost("this delivery isn't locked by this receiver")
        return held

    async def _delete(self, held: Held) -> None:
        """
        Raises:
            LockLost: somebody else has it, or it's gone; but not where that may have been us.
        """
        await trio.lowlevel.checkpoint()
        operation = storage.DeleteMessage(
            queue=held.shard.queue, message_id=held.id, pop_receipt=held.receipt
        )
        was_asked, held.may_be_gone = held.may_be_gone, True  # also when we are cancelled
        try:
            await held.shard.peer.run(operation)
        except MessageNotFound as error:
            if not was_asked:
                raise LockLost(str(error)) from error
        except BrokerError as error:
            held.may_be_gone = was_asked or error.outcome is Outcome.UNKNOWN
            raise

    async def _abandon(self, held: Held, settlement: Abandon) -> None:
        is_last = self._poison is not None and held.deliveries >= self._most
        if is_last and held.message is not None:
            why = attrs.evolve(self._too_often(), properties=settlement.properties)
            await self._bury(held, why)
            return
        body = None
        if settlement.properties:
            message = _kept_of(held)
            properties = {**message.properties, **settlement.properties}
            amended = attrs.evolve(message, properties=properties)
            body = build_body(amended, held.expires)
        await self._hide(held, timedelta(0), body)
        self._bell.ring(1)

    async def _hide(self, held: Held, hidden: timedelta, body: bytes | None = None) -> datetime:
        """Hide it for that long from now on; return when others see it."""
        asked = self._clock()
        seconds = -(-hidden // timedelta(seconds=1))  # rounded up
        operation = storage.UpdateMessage(
            queue=held.shard.queue,
            message_id=held.id,
            pop_receipt=held.receipt,
            visibility=seconds,
            body=body,
        )
        try:
            answer = await held.shard.peer.run(operation)
        except MessageNotFound as error:
            raise LockLost(str(error)) from error
        if isinstance(answer, storage.Updated):
            held.receipt = answer.pop_receipt
        return asked + timedelta(seconds=seconds)

    async def _bury(self, held: Held, why: DeadLetter) -> None:
        if self._poison is None:
            raise NotSupported("a dead letter stays where it is")
        message = _kept_of(held)
        await self._hide(held, self._lock)
        await self._poison.put(message, why)
        with suppress(LockLost):  # somebody was faster: then it's there twice
            await self._delete(held)

    def _too_often(self) -> DeadLetter:
        return DeadLetter(
            reason=_TOO_OFTEN,
            description=f"delivered {self._most} times, and never completed",
        )


def _kept_of(held: Held) -> Message:
    if held.message is None:
        raise LockLost("too many messages were taken, and this one isn't kept any more")
    return held.message
