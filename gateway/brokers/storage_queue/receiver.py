"""
Receiving from Storage Queue, which has no long polls: a receive that finds nothing asks again after
a pause.

  take        Get Messages hides up to 32 messages for the queue's lock duration
  renew       Update Message hides the message again, and returns another receipt
  abandon     Update Message shows the message at once, behind all others
  dead-letter hide it again (is the receipt still valid?), put it into the poison queue, delete it
  complete    Delete Message
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import attrs
import trio

from gateway.brokers.looks import Looks
from gateway.brokers.storage_queue.arrivals import ArrivalNotifier
from gateway.brokers.storage_queue.deliveries import Held, Numbers, Taken, read_taken, read_token
from gateway.brokers.storage_queue.peer import AccountQueue
from gateway.brokers.storage_queue.poison import PoisonQueue
from gateway.domain.backoff import Backoff, jittered
from gateway.domain.bounded import Bounded
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
from gateway.domain.held_deliveries import HeldDeliveries
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
from gateway.domain.texts import check_reason
from gateway.ports import WallClock
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.body import build_body, build_text_body
from gateway.wire.storage_queue.metadata import parse_metadata

_MAX_HELD: Final = 10_000  # locks that are remembered, to be released at the end
MAX_KEPT: Final = 64 * 1024 * 1024  # bytes of their messages; the oldest are dropped first
_TOO_OFTEN: Final = "MaxDeliveryCountExceeded"


@attrs.define(eq=False, kw_only=True)
class StorageQueueReceiver:
    """
    `ports.Receiver`, with `KeepsMessages`, `HidesMessages`, `SettlesByToken` and
    `ReceivesAvailable`. Shows all messages that it still holds at the end.
    """

    _queue: AccountQueue
    _poison: PoisonQueue | None  # None: this is a dead-letter queue
    _mode: ReceiveMode
    _poll: Backoff
    _notifier: ArrivalNotifier
    _numbers: Numbers
    _clock: WallClock
    _rng: random.Random
    _max_kept: int = MAX_KEPT
    _properties: QueueProperties | None = None
    _held: HeldDeliveries[Held] = attrs.field(factory=lambda: HeldDeliveries(_MAX_HELD))
    _adopted: dict[str, Held] = attrs.field(factory=dict)  # by lock token; not given back
    # Delete requests of a message that may have deleted it: without an answer yet, or for good.
    _maybe_gone: Bounded[str, int] = attrs.field(factory=lambda: Bounded(_MAX_HELD))
    looks: Looks = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.looks = Looks(clock=self._clock, release=self._show)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. The next receive gets what a cancelled one had asked for.

        While the service is busy, it waits as long as the service asks.
        """
        looks = 0
        while True:
            seen = self._notifier.notifications
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
            if await self._notifier.wait(seen, pause):
                looks = 0

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`; nothing while the service is busy."""
        try:
            return await self.poll(limit)
        except Busy:
            return ()

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`."""
        lock = None if lock is None else min(lock, timedelta(seconds=storage.MAX_VISIBILITY))
        most = min(limit, storage.MAX_MESSAGES)
        found = await self.looks.receive(partial(self._request, most, lock), most, lock=lock)
        return found if self._mode is ReceiveMode.PEEK_LOCK else await self._taken_away(found)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`. A message that was abandoned as often as the queue allows is
        dead-lettered; if its content was dropped, on its next delivery.

        Raises:
            LockLost: the content that the settlement needs was dropped; the message is delivered
                again.
            NotSupported: a deferral, or the dead-lettering of a dead letter.
        """
        held = self._held_of(delivery)
        try:
            match settlement:
                case Complete():
                    await self._delete(held)
                case Abandon():
                    await self._abandon(held, settlement)
                case DeadLetter():
                    check_reason(settlement)
                    await self._dead_letter(held, settlement)
                case Defer():
                    raise NotSupported(
                        "Azure Storage can't defer a message; complete, abandon or dead-letter it"
                    )
        except LockLost:
            self._held.pop(held.token)
            raise
        self._held.pop(held.token)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`."""
        await self._read_properties()
        return await self.hide(delivery, self._lock)

    async def change_body(self, delivery: Delivery, body: bytes) -> datetime:
        """
        As `ChangesBody.change_body`.

        Raises:
            LockLost: also if the message was dropped: its other fields would be lost.
        """
        return await self.hide(delivery, self._lock, body)

    async def hide(
        self, delivery: Delivery, duration: timedelta, body: bytes | None = None
    ) -> datetime:
        """As `HidesMessages.hide`, with whole seconds, rounded up; a body as in `change_body`."""
        held = self._held_of(delivery)
        text = None if body is None else _text_of(held, body)
        try:
            locked_until = await self._hide(held, duration, text)
        except LockLost:
            self._held.pop(held.token)
            raise
        if body is not None and held.message is not None:
            held.message = attrs.evolve(held.message, body=body)
            self._held.weigh(held.token, len(body))
        if not duration:
            self._notifier.notify(1)
        return locked_until

    @property
    def renews_in_place(self) -> bool:
        """As `SettlesByToken.renews_in_place`: each Update Message returns another pop receipt."""
        return False

    def hand_out(self, delivery: Delivery) -> bytes | None:
        """As `SettlesByToken.hand_out`: None for a message that is more than a text."""
        held = self._held_of(delivery)
        token = None if held.id in self._maybe_gone else held.handed_out()
        if token is not None:
            self._held.pop(held.token)
        return token

    @contextmanager
    def adopt(self, token: bytes) -> Iterator[Delivery]:
        """
        As `SettlesByToken.adopt`. The delivery can't be dead-lettered, as its message isn't here;
        one that is abandoned too often is dead-lettered on its next delivery.
        """
        held = read_token(token, self._numbers.new_token())
        self._adopted[held.token] = held
        try:
            yield Delivery(message=Message(), sequence_number=0, lock_token=held.token)
        finally:
            del self._adopted[held.token]

    def forget_message(self, delivery: Delivery) -> None:
        """As `KeepsMessages.forget_message`."""
        held = self._held.get(delivery.lock_token)
        if held is not None:
            self._forget_message(held)

    async def give_back(self) -> None:
        """Show all held messages, the oldest first, as far as the service can be reached."""
        await trio.lowlevel.checkpoint()
        self.looks.close()
        await self._show_all(list(self._held))

    async def _show(self, deliveries: Sequence[Delivery]) -> None:
        found = [self._held.get(each.lock_token) for each in deliveries]
        await self._show_all([each for each in found if each is not None])

    async def _show_all(self, all_held: Sequence[Held]) -> None:
        for held in all_held:
            self._held.pop(held.token)
            with suppress(BrokerError):  # the message's lock expires instead
                await self._hide(held, timedelta(0))
                self._notifier.notify(1)

    # --- receiving

    async def _request(self, limit: int, wanted: timedelta | None) -> list[Delivery]:
        await self._read_properties()
        lock = wanted or self._lock
        asked = self._clock()
        hidden = -(-lock // timedelta(seconds=1))  # rounded up
        answer = await self._queue.peer.run(
            storage.GetMessages(queue=self._queue.name, limit=limit, visibility=hidden)
        )
        items = answer.items if isinstance(answer, storage.Messages) else ()
        found: list[Delivery] = []
        problem: BrokerError | None = None
        for item in items:
            number = self._numbers.of(self._queue.name, item.message_id)
            token = self._numbers.new_token()
            taken = read_taken(item, lock, asked, number=number, token=token)
            self._maybe_gone.pop(taken.held.id, None)
            try:
                if await self._is_for_somebody(taken):
                    found.append(self._hold(taken))
            except BrokerError as error:  # delivered again after its lock expires
                problem = error
        if problem is not None and not found:
            raise problem
        return found

    async def _is_for_somebody(self, taken: Taken) -> bool:
        """
        True if the message is to be delivered. A message that has expired, is scheduled for later,
        or was delivered too often is deleted, hidden or dead-lettered instead.
        """
        held, message, now = taken.held, taken.delivery.message, self._clock()
        if self._poison is None:
            return True
        if taken.is_expired:
            await self._delete(held)
            return False
        scheduled = message.scheduled
        if scheduled is not None and scheduled > now:
            longest = timedelta(seconds=storage.MAX_VISIBILITY)
            await self._hide(held, min(scheduled - now, longest))
            return False
        if held.deliveries > self._most:
            await self._dead_letter(held, self._too_often())
            return False
        return True

    async def _taken_away(self, locked: Sequence[Delivery]) -> list[Delivery]:
        """
        Delete the messages; return the deleted ones. The others are delivered again after their
        locks expire.
        """
        await trio.lowlevel.checkpoint()
        found: list[Delivery] = []
        problem: BrokerError | None = None
        for delivery in locked:
            try:
                # The message may be deleted: a second delivery is better than none.
                with suppress(OutcomeUnknown):
                    await self._delete(self._held_of(delivery))
            except BrokerError as error:
                problem = error
            else:
                found.append(attrs.evolve(delivery, lock_token=None, locked_until=None))
            self._held.pop(delivery.lock_token)
        if problem is not None and not found:
            raise problem
        return found

    def _hold(self, taken: Taken) -> Delivery:
        self._held.add(taken.held.token, taken.held, weight=taken.weight)
        if self._held.weight > self._max_kept:
            for held in self._held:
                self._forget_message(held)
                if self._held.weight <= self._max_kept:
                    break
        return taken.delivery

    def _forget_message(self, held: Held) -> None:
        held.message = None
        self._held.weigh(held.token, 0)

    async def _read_properties(self) -> None:
        """
        Read the properties that the queue was created with; without the right to read them, assume
        the defaults.
        """
        if self._properties is not None:
            return
        await trio.lowlevel.checkpoint()
        try:
            answer = await self._queue.peer.run(storage.GetMetadata(queue=self._queue.name))
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

    # --- settling

    def _held_of(self, delivery: Delivery) -> Held:
        token = delivery.lock_token or ""
        held = self._held.get(token) or self._adopted.get(token)
        if held is None:
            raise LockLost(
                "the delivery isn't locked by this receiver any more; unless the message was"
                " settled, it is delivered again"
            )
        return held

    async def _delete(self, held: Held) -> None:
        """
        Delete the message.

        Raises:
            LockLost: another client has it, or it was deleted; unless an earlier request of this
                receiver may have deleted it.
        """
        async with held.request:
            await self._delete_now(held)

    async def _delete_now(self, held: Held) -> None:
        operation = storage.DeleteMessage(
            queue=self._queue.name, message_id=held.id, pop_receipt=held.receipt
        )
        maybe_gone = self._maybe_gone
        maybe_gone[held.id] = maybe_gone.get(held.id, 0) + 1  # also if this request is cancelled
        try:
            await self._queue.peer.run(operation)
        except MessageNotFound as error:
            if maybe_gone.get(held.id) == 1:  # no other request, neither before nor meanwhile
                del maybe_gone[held.id]
                raise LockLost(str(error)) from error
        except BrokerError as error:
            if error.outcome is not Outcome.UNKNOWN and held.id in maybe_gone:
                maybe_gone[held.id] -= 1
                if not maybe_gone[held.id]:
                    del maybe_gone[held.id]
            raise
        maybe_gone.pop(held.id, None)

    async def _abandon(self, held: Held, settlement: Abandon) -> None:
        is_last = self._poison is not None and held.deliveries >= self._most
        if is_last and held.message is not None:
            why = attrs.evolve(self._too_often(), properties=settlement.properties)
            await self._dead_letter(held, why)
            return
        body = None
        if settlement.properties:
            message = _kept_of(held)
            properties = {**message.properties, **settlement.properties}
            amended = attrs.evolve(message, properties=properties)
            body = build_body(amended, held.expires)
        await self._hide(held, timedelta(0), body)
        self._notifier.notify(1)

    async def _hide(self, held: Held, hidden: timedelta, body: bytes | None = None) -> datetime:
        """
        Hide the message for that long from now on; return when it becomes visible.

        Raises:
            LockLost: another client has it, or it was deleted.
            OutcomeUnknown: also if an earlier request of this receiver may have deleted it.
        """
        async with held.request:
            return await self._hide_now(held, hidden, body)

    async def _hide_now(self, held: Held, hidden: timedelta, body: bytes | None) -> datetime:
        asked = self._clock()
        seconds = -(-hidden // timedelta(seconds=1))  # rounded up
        operation = storage.UpdateMessage(
            queue=self._queue.name,
            message_id=held.id,
            pop_receipt=held.receipt,
            visibility=seconds,
            body=body,
        )
        try:
            answer = await self._queue.peer.run(operation)
        except MessageNotFound as error:
            if held.id in self._maybe_gone:
                raise OutcomeUnknown(
                    f"a deletion had no answer, and may be done: {error}"
                ) from error
            raise LockLost(str(error)) from error
        if isinstance(answer, storage.Updated):
            held.receipt = answer.pop_receipt
        return asked + timedelta(seconds=seconds)

    async def _dead_letter(self, held: Held, why: DeadLetter) -> None:
        if self._poison is None:
            raise NotSupported("a dead letter can't be dead-lettered")
        message = _kept_of(held)
        await self._hide(held, self._lock)
        await self._poison.put(message, why)
        with suppress(LockLost):  # another client was faster: then it is in both queues
            await self._delete(held)

    def _too_often(self) -> DeadLetter:
        return DeadLetter(
            reason=_TOO_OFTEN,
            description=f"delivered {self._most} times, and never completed",
        )


def _text_of(held: Held, body: bytes) -> bytes:
    """The text of the message with that body."""
    if held.is_text:
        return build_text_body(held.id, body)
    return build_body(attrs.evolve(_kept_of(held), body=body), held.expires)


def _kept_of(held: Held) -> Message:
    if held.message is None:
        raise LockLost(
            "the content of this message was dropped, since too many messages are unsettled;"
            " it is delivered again"
        )
    return held.message
