"""
Moves one entity's backlog messages to the primary.

A message is completed on the backlog only after the primary has accepted it. `domain.copies` has
the states of a copy on that way; the mover sends, settles and renews locks. If a lock expires all
the same, the message is delivered again: `domain.copies` decides if this syphon sends it again,
and another syphon may send a duplicate.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.capabilities.settling import settle_all, settle_one
from gateway.domain.clocks.lifetime import remaining
from gateway.domain.clocks.times import Now
from gateway.domain.copies import Copies, CopyEvent, CopyId, CopyStep
from gateway.domain.dead_letters import EXPIRED
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    MESSAGE_FAULTS,
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    NotSupported,
    Outcome,
    PartlyAccepted,
)
from gateway.domain.events.gateway import DeadLettered, Syphoned, SyphonFailed
from gateway.domain.message import (
    MAX_REASON_LENGTH,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Settlement,
    Value,
    derive_message,
)
from gateway.moments import Moments
from gateway.pairing.options import BacklogTimeToLive, SyphonOptions
from gateway.pairing.sending import send_in_time, unanswered
from gateway.pairing.syphon.backlog_message import BacklogMessage, Progress
from gateway.pairing.syphon.backoff import EntityBackoffs, Permit
from gateway.pairing.syphon.primary_load import PATIENCE
from gateway.pairing.syphon.slow_start import SLOWER, RequestRoom
from gateway.ports import Broker, Observer, Receiver, WallClock

LATE: Final = 3.0  # attempt time-outs until a send without an answer is cancelled
GIVING_UP: Final = 1.0  # seconds, at most, that the cancellation takes
LOCK_SHARE: Final = 3.0  # a lock is renewed when a third of it is over
# Less than the third after which a lock is renewed. Renewals aren't spread over time either:
# spread, they cost duplicates in the model of a hundred gateways.
RENEWED: Final = 0.29  # of a lock: one that was renewed within that time is not due yet
SHORTEST_LOCK: Final = 0.3
_DONE: Final = Complete()
GONE: Final = (EntityNotFound, EntityDisabled)


@attrs.define(eq=False, kw_only=True)
class Mover:
    """Sends to the primary and settles at one receiver of the backlog."""

    primary: Broker
    receiver: Receiver
    receiver_queue: EntityPath
    backoffs: EntityBackoffs
    options: SyphonOptions
    copies: Copies
    progress: Progress
    clock: WallClock
    moments: Moments
    observer: Observer
    lock: Callable[[], float]  # the shortest lock of that queue, in seconds
    # The messages share the lock of a session, which the drain renews instead of the mover.
    in_session: bool = False
    one_by_one: bool = False  # each send has one message
    # True once the backlog hasn't confirmed a dead-lettering.
    unconfirmed: bool = attrs.field(default=False, init=False)
    # The messages whose copies are received or sending, to give them the lock of a new delivery.
    _claimed: dict[CopyId, BacklogMessage] = attrs.field(factory=dict, init=False)

    def claim(self, message: BacklogMessage) -> CopyStep:
        """
        Return what must be done with a message that was just delivered.

        MOVE: the message is claimed, and the caller must `move` it. KEEP: its copy is claimed
        already, and now has this delivery's lock: a claimed copy is delivered again if its lock has
        expired, for example while the machine was suspended. COMPLETE: the caller must `complete`
        it.
        """
        step = self.copies.deliver(message.copy)
        if step is CopyStep.MOVE:
            self._claimed[message.copy] = message
        elif step is CopyStep.KEEP:
            self._claimed[message.copy].delivery = message.delivery
        return step

    async def move(
        self,
        entity: EntityPath,
        backlog_messages: Sequence[BacklogMessage],
        *,
        wait_until: float | None = None,
    ) -> Sequence[BacklogMessage]:
        """
        Move the messages, dead-letter those that never can be moved, and return those that are
        suspended with their entity. No claim is left.

        With `wait_until` nothing is sent before that time, and then one message at first, twice as
        many in each further send.

        After a cancellation, messages that were sent and not completed arrive twice.
        """
        claimed = list(backlog_messages)
        async with trio.open_nursery() as nursery:
            if not self.in_session:
                nursery.start_soon(self._keep_locked, claimed)
            if wait_until is not None:
                await trio.sleep_until(wait_until)
            await self._move_all(entity, claimed, len(claimed) if wait_until is None else 1)
            nursery.cancel_scope.cancel()
        self._release(CopyEvent.SUSPENDED, claimed)
        return claimed

    async def _move_all(self, entity: EntityPath, claimed: list[BacklogMessage], most: int) -> None:
        """
        Move the messages and remove them from `claimed`, until the entity is suspended.

        The first send has at most `most` messages.
        """
        singly = self.one_by_one
        while claimed:
            async with self.backoffs.load.room(entity) as room:
                permit = await self._begin(entity, claimed)
                if permit is None:
                    return
                window = self.progress.within_rate(min(most, permit.most))
                chunk = claimed[: 1 if singly else window]
                error = await self._send(chunk, permit, room)
            rest = [] if error is None else [one for one in chunk if one.copy in self._claimed]
            accepted = [one for one in chunk if one.copy not in self._claimed] if rest else chunk
            if accepted:
                await self._complete_all(entity, accepted)
                del claimed[: len(chunk)]
                claimed[:0] = rest
            if error is None:
                most *= 2
            elif isinstance(error, MESSAGE_FAULTS) and len(rest) > 1:
                singly = True  # to find the message at fault
            elif self._is_final(entity, error):
                await self._dead_letter_all(rest, type(error).__name__, str(error))
                del claimed[: len(rest)]
                if self.in_session and self.unconfirmed:  # nothing may pass that message
                    return
            else:
                return

    async def _begin(self, entity: EntityPath, claimed: list[BacklogMessage]) -> Permit | None:
        """
        Begin a send once the rate limit and the primary's answers allow it. Messages that have
        expired by then are dead-lettered. None: the entity is suspended, or no message is left.
        """
        load = self.backoffs.load
        while claimed:
            await self.progress.wait_for_rate_limit()
            if load.is_in_doubt:
                await load.wait_judged()
            elif load.must_ask(entity):
                if not await load.ask(entity):
                    return None
            elif not await self._dead_lettered_expired(claimed):
                return self.backoffs.begin(entity)
        return None

    async def _send(
        self, chunk: Sequence[BacklogMessage], permit: Permit, room: RequestRoom
    ) -> BrokerError | None:
        """
        Send to the primary; return the error, if any. `room` is left early if no answer comes. The
        entity backs off after an error that isn't the message's.

        A send without an answer goes on for a while, while its entity backs off (`_watch`). If the
        primary then accepts it, its messages are completed instead of sent again.
        """
        self.progress.spend(len(chunk))
        entity = permit.entity
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, permit, len(chunk), room)
            try:
                error = await self._transfer(entity, chunk)
                self.backoffs.finish(permit, error)
                if error is not None and not self._is_final(entity, error):
                    self._back_off(permit, error, len(chunk))
            finally:
                self.backoffs.release(permit)  # after a cancellation, too
            nursery.cancel_scope.cancel()
        return error

    async def _transfer(
        self, entity: EntityPath, chunk: Sequence[BacklogMessage]
    ) -> BrokerError | None:
        """Send once. No checkpoint lies between the primary's answer and the state SENT."""
        now = self.moments.now()
        messages = [_restored(each, now, self.options) for each in chunk]
        seconds, began = LATE * self.options.attempt_timeout, trio.current_time()
        copies = [each.copy for each in chunk]
        self.copies.advance(CopyEvent.HANDED_OVER, copies)
        try:
            await send_in_time(self.primary, entity, messages, seconds)
        except PartlyAccepted as partly:
            pairs = list(zip(chunk, messages, strict=True))
            accepted = [each for each, message in pairs if partly.has_accepted(message)]
            rest = [each.copy for each, message in pairs if not partly.has_accepted(message)]
            self._release(CopyEvent.ACCEPTED, accepted)
            self.copies.advance(CopyEvent.FAILED, rest)
            error = partly.why if accepted else partly
        except BrokerError as failed:
            self.copies.advance(CopyEvent.FAILED, copies)
            error = failed
        else:
            self.backoffs.confirm(entity, began, len(chunk))
            self._release(CopyEvent.ACCEPTED, chunk)
            return None
        self.backoffs.load.failed(entity, began, error)
        return error

    def _release(self, event: CopyEvent, messages: Sequence[BacklogMessage]) -> None:
        """Release the claims of messages that were accepted, dead-lettered or suspended."""
        self.copies.advance(event, [each.copy for each in messages])
        for each in messages:
            del self._claimed[each.copy]

    async def _watch(self, permit: Permit, messages: int, room: RequestRoom) -> None:
        """
        Ask the primary if the send has no answer soon. Without an answer to that, or if the send
        has none after `attempt_timeout`, its entity backs off until the send is cancelled: a second
        send would hang too, and the next batch with it.
        """
        entity, load = permit.entity, self.backoffs.load
        seconds, began = self.options.attempt_timeout, trio.current_time()
        patience = min(seconds, load.patience(messages))
        await trio.sleep(patience)
        if await load.ask(entity):
            await trio.sleep_until(began + min(seconds, PATIENCE))
            room.leave()
            await trio.sleep_until(began + min(seconds, max(PATIENCE, SLOWER * patience)))
            self.backoffs.hold(permit)
            await trio.sleep_until(began + seconds)
        else:
            self.backoffs.silent(permit)
            room.leave()
        waited = trio.current_time() - began
        late = unanswered(self.primary, entity, waited)
        self.backoffs.finish(permit, late)  # a later answer no longer counts for the entity's state
        # Suspended messages stay so if the entity backs off again then.
        least = LATE * seconds - waited + GIVING_UP
        self.backoffs.back_off(
            entity, self.options.unknown_retry, str(late), least, outage_at=began
        )

    def _is_final(self, entity: EntityPath, error: BrokerError) -> bool:
        """True if the message can never be moved. A missing entity has `gone_grace` to return."""
        if isinstance(error, GONE):
            return self.backoffs.gone_for(entity) >= self.options.gone_grace
        return isinstance(error, MESSAGE_FAULTS)

    def _back_off(self, permit: Permit, error: BrokerError, messages: int) -> None:
        unknown = error.outcome is Outcome.UNKNOWN
        least = 0.0
        if isinstance(error, Busy):
            wanted = max(error.retry_after, 0.0 if error.backs_off else self.options.busy_pause)
            least = self.backoffs.spread(wanted)
        backoff = self.options.unknown_retry if unknown else self.options.retry
        at = permit.began if error.since is None else error.since
        self.backoffs.back_off(
            permit.entity,
            backoff,
            f"{type(error).__name__}: {error}",
            least,
            outage_at=at if error.counts_as_outage else None,
            in_doubt=messages if unknown else 0,
        )

    async def _dead_lettered_expired(self, claimed: list[BacklogMessage]) -> bool:
        """Dead-letter expired messages. False: none has expired, and no checkpoint was passed."""
        now = self.moments.now()
        expired = [
            each for each in claimed if each.can_expire and has_expired(each, now, self.options)
        ]
        if not expired:
            return False
        await self._dead_letter_all(expired, EXPIRED, "the time to live ended on the backlog")
        claimed[:] = [each for each in claimed if each not in expired]
        return True

    # Settling at the backlog.

    async def _complete_all(self, entity: EntityPath, chunk: Sequence[BacklogMessage]) -> None:
        """
        Complete messages that the primary has accepted. Those for which the backlog is too busy are
        completed later, as another syphon would move them again after the end of their locks.
        """
        self.progress.record_move()
        self.observer.report(
            Syphoned(entity=entity, queue=self.receiver_queue, messages=len(chunk))
        )
        left = chunk
        while left:
            began = trio.current_time()
            settlements = [(one.delivery, _DONE) for one in left]
            verdicts = await settle_all(self.receiver, settlements, self.options.attempt_timeout)
            settled = list(zip(left, verdicts, strict=True))
            completed = [each.copy for each, verdict in settled if verdict is None]
            self.copies.advance(CopyEvent.COMPLETED, completed)
            for reason in {str(verdict): None for verdict in verdicts if verdict is not None}:
                self.observer.report(SyphonFailed(queue=self.receiver_queue, reason=reason))
            left = [each for each, verdict in settled if isinstance(verdict, Busy)]
            if left:
                self.backoffs.load.backlog_busy(began)
                pauses = [each.retry_after for each in verdicts if isinstance(each, Busy)]
                await trio.sleep(self.backoffs.spread(max(pauses)))

    async def complete(self, delivery: Delivery, copy: CopyId) -> None:
        """Complete a copy that is SENT; if that fails, it is completed when it is redelivered."""
        if await self._settle(delivery, Complete()):
            self.copies.advance(CopyEvent.COMPLETED, (copy,))

    async def _dead_letter_all(
        self, chunk: Sequence[BacklogMessage], reason: str, description: str
    ) -> None:
        self._release(CopyEvent.DEAD_LETTERED, chunk)
        async with trio.open_nursery() as nursery:
            for each in chunk:
                origin = f" (diverted by {each.unwrapped.origin or 'a legacy client'})"
                message_id = each.unwrapped.message.message_id
                nursery.start_soon(
                    self.dead_letter, each.delivery, reason, description + origin, message_id
                )

    async def dead_letter(
        self, delivery: Delivery, reason: str, description: str, message_id: Value = None
    ) -> None:
        """
        Dead-letter a message of the backlog queue, and report it. `message_id` is its sender's;
        None: only the one on the backlog is known. If the backlog doesn't confirm it, `unconfirmed`
        is true from then on.
        """
        description = description[:MAX_REASON_LENGTH]
        if not await self._settle(delivery, DeadLetter(reason=reason, description=description)):
            self.unconfirmed = True
            return
        self.observer.report(
            DeadLettered(
                queue=self.receiver_queue,
                message_id=str(message_id or delivery.message.message_id),
                reason=reason,
                description=description,
            )
        )

    async def _settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Settle a delivery. False: not confirmed, so that the message may be delivered again."""
        limit = self.options.attempt_timeout
        verdict = await settle_one(self.receiver, delivery, settlement, limit)
        if verdict is not None:
            self.observer.report(SyphonFailed(queue=self.receiver_queue, reason=str(verdict)))
        return verdict is None

    async def _keep_locked(self, claimed: Sequence[BacklogMessage]) -> None:
        """
        Renew the locks that are due. While the backlog is too busy for that, the syphon sends and
        receives less, so that there is room for the locks that it holds.

        The locks of a batch are renewed at once: spread over a second or two, renewals leave a busy
        backlog no moment for completions, and more messages are moved twice.
        """
        began = trio.current_time()
        renewed: dict[CopyId, float] = {}
        while claimed:
            usual = self.lock()
            left = lock_left(claimed, self.clock(), usual)
            pause = left / LOCK_SHARE
            soon = self.clock() + timedelta(seconds=left + pause)
            await trio.sleep(pause)
            latest = trio.current_time() - RENEWED * usual
            busy: list[float] = []
            async with trio.open_nursery() as nursery:
                for each in claimed:
                    if renewed.get(each.copy, began) <= latest or _ends_by(each, soon):
                        nursery.start_soon(self._renew, each, renewed, busy)
            if busy:
                self.backoffs.load.backlog_busy(min(busy))

    async def _renew(
        self,
        message: BacklogMessage,
        renewed: dict[CopyId, float],
        busy: list[float],
    ) -> None:
        """Renew one lock; note the begin in `renewed`, or in `busy`."""
        began = trio.current_time()
        with trio.move_on_after(self.options.attempt_timeout):
            try:
                until = await self.receiver.renew(message.delivery)
            except NotSupported:
                return  # the lock lasts until its first date
            except BrokerError as error:
                if isinstance(error, Busy):
                    busy.append(began)
                # Another syphon may receive the message as well: a duplicate, not a loss.
                self.observer.report(SyphonFailed(queue=self.receiver_queue, reason=str(error)))
            else:
                renewed[message.copy] = began
                message.delivery = attrs.evolve(message.delivery, locked_until=until)


def lock_left(claimed: Sequence[BacklogMessage], now: datetime, usual: float) -> float:
    """Seconds until the first lock ends; at most a lock's duration, as clocks may differ."""
    dates = [each.delivery.locked_until for each in claimed]
    soonest = min([date for date in dates if date is not None and date > now], default=None)
    left = usual if soonest is None else (soonest - now).total_seconds()
    return max(min(usual, left), SHORTEST_LOCK)


def _ends_by(message: BacklogMessage, date: datetime) -> bool:
    until = message.delivery.locked_until
    return until is not None and until <= date


def has_expired(message: BacklogMessage, now: Now, options: SyphonOptions) -> bool:
    """True if the message's time to live has ended on the backlog."""
    left = _left(message, now, options)
    return left is not None and left <= timedelta(0)


def _restored(message: BacklogMessage, now: Now, options: SyphonOptions) -> Message:
    restored = message.unwrapped.message
    left = _left(message, now, options) if message.can_expire else None
    if left == restored.time_to_live:
        return restored
    return derive_message(restored, time_to_live=left)


def _left(message: BacklogMessage, now: Now, options: SyphonOptions) -> timedelta | None:
    if options.backlog_ttl is BacklogTimeToLive.RESTART:
        return message.unwrapped.time_to_live
    return remaining(message.unwrapped, now, message.stay)
