"""
Moves one entity's backlog messages to the primary.

The source is settled only after the primary has the message: that one order is the product.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.capabilities import SettlesMany
from gateway.domain import envelope
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Unwrapped
from gateway.domain.errors import (
    MESSAGE_FAULTS,
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    NotSupported,
    Outcome,
    OutcomeUnknown,
)
from gateway.domain.events import Parked, Syphoned, SyphonFailed
from gateway.domain.lock_ends import USUAL_LOCK, LockEnds
from gateway.domain.message import (
    MAX_REASON_LENGTH,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Settlement,
)
from gateway.pairing.holds import Holds
from gateway.pairing.options import BacklogTimeToLive, SyphonOptions
from gateway.pairing.standings import Attempt
from gateway.pairing.transfer import Cargo, Copy, Progress, Transferred
from gateway.ports import Broker, Observer, Receiver, WallClock

LATE: Final = 3.0  # attempt time-outs until a send without an answer is given up
GIVING_UP: Final = 1.0  # seconds, at most, until that is noted
LOCK_SHARE: Final = 3.0  # a lock is renewed when a third of it is over
SHORTEST_LOCK: Final = 0.3
EXPIRED: Final = "TTLExpiredException"
_DONE: Final = Complete()
GONE: Final = (EntityNotFound, EntityDisabled)


@attrs.define(eq=False, kw_only=True)
class Mover:
    """Sends to the primary and settles at one receiver of the backlog."""

    primary: Broker
    receiver: Receiver
    receiver_queue: EntityPath
    holds: Holds
    options: SyphonOptions
    transferred: Transferred
    progress: Progress
    clock: WallClock
    observer: Observer
    _in_hand: dict[Copy, Cargo] = attrs.field(factory=dict, init=False)

    def take(self, cargo: Cargo) -> bool:
        """
        Take a message in hand, to move it; False: it already is, and now has this delivery's lock.

        Such a one comes again when its lock has ended, as in a long pause of the machine, and what
        its first send came to may not be known yet.
        """
        held = self._in_hand.setdefault(cargo.copy, cargo)
        held.delivery = cargo.delivery
        return held is cargo

    async def move(
        self, entity: EntityPath, cargo: Sequence[Cargo], *, wait_until: float | None = None
    ) -> Sequence[Cargo]:
        """
        Of what was taken move what can be moved, park what never can; return what has to rest.

        With a moment to wait for they go gently after it: one at first, then twice as many.

        Cancelled, what was sent and not completed is still on the backlog: it comes twice.
        """
        in_hand = list(cargo)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_locked, in_hand)
            if wait_until is not None:
                await trio.sleep_until(wait_until)
            await self._move_all(entity, in_hand, self.options.batch if wait_until is None else 1)
            nursery.cancel_scope.cancel()
        self._put_down(in_hand)
        return in_hand

    async def _move_all(self, entity: EntityPath, in_hand: list[Cargo], most: int) -> None:
        """
        Take from `in_hand` what is moved or parked, until the entity is held.

        First at most that many go at once.
        """
        singly = False
        while in_hand:
            await self.progress.pace()
            if await self._parked_expired(in_hand):
                continue
            trial = self.holds.trial(entity)
            if trial is None and self.holds.held(entity):
                return
            window = self.progress.at_once(min(most, self.holds.window(entity)))
            chunk = in_hand[: 1 if trial or singly else window]
            error = await self._send(entity, chunk, trial)
            if error is None:
                await self._complete_all(entity, chunk)
                most *= 2
            elif isinstance(error, MESSAGE_FAULTS) and len(chunk) > 1:
                singly = True  # to find the one that is at fault
                continue
            elif self._is_final(entity, error):
                await self._park_all(chunk, type(error).__name__, str(error))
            else:
                self._hold(entity, error)
                return
            del in_hand[: len(chunk)]

    async def _send(
        self, entity: EntityPath, chunk: Sequence[Cargo], trial: Attempt | None
    ) -> BrokerError | None:
        """
        Send to the primary; return the error, if any.

        A send that gets no answer in time isn't cut off at once: the entity is held meanwhile,
        and if it turns out done, its messages are completed instead of sent again.
        """
        self.progress.spend(len(chunk))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hold_if_late, entity)
            try:
                error = await self._transfer(entity, chunk)
                if trial is not None:
                    self.holds.end_trial(trial, error)
            finally:
                if trial is not None:
                    self.holds.release(trial)  # of a transfer that was cancelled
            nursery.cancel_scope.cancel()
        return error

    async def _transfer(self, entity: EntityPath, chunk: Sequence[Cargo]) -> BrokerError | None:
        """One send. Nothing is awaited between its answer and the note that it is done."""
        now = self.clock()
        messages = [_restored(cargo.unwrapped, now, self.options) for cargo in chunk]
        seconds = LATE * self.options.attempt_timeout
        try:
            with trio.move_on_after(seconds) as scope:
                await self.primary.send(entity, messages)
        except BrokerError as error:
            return error
        if scope.cancelled_caught:
            return OutcomeUnknown(f"no answer from {entity} within {seconds:g} s")
        self.holds.confirm(entity)
        for cargo in chunk:
            self.transferred.remember(cargo.copy)
        self._put_down(chunk)
        return None

    def _put_down(self, cargo: Iterable[Cargo]) -> None:
        """What comes again from now on is known to be on the primary, or is dealt with anew."""
        for one in cargo:
            del self._in_hand[one.copy]

    async def _hold_if_late(self, entity: EntityPath) -> None:
        seconds = self.options.attempt_timeout
        await trio.sleep(seconds)
        # Until the send is given up: a second one would hang too, and the next batch with it.
        # What rests stays where it is if the entity is held anew then.
        least = (LATE - 1.0) * seconds + GIVING_UP
        self.holds.hold(entity, self.options.hold, f"no answer within {seconds:g} s", least)

    def _is_final(self, entity: EntityPath, error: BrokerError) -> bool:
        """Whether the message can never be moved; an entity that is gone may come back."""
        if isinstance(error, GONE):
            return self.holds.gone_for(entity) >= self.options.gone_grace
        return isinstance(error, MESSAGE_FAULTS)

    def _hold(self, entity: EntityPath, error: BrokerError) -> None:
        unknown = error.outcome is Outcome.UNKNOWN
        least = max(error.retry_after, self.options.busy_pause) if isinstance(error, Busy) else 0.0
        backoff = self.options.hold if unknown else self.options.retry
        self.holds.hold(entity, backoff, f"{type(error).__name__}: {error}", least)

    async def _parked_expired(self, in_hand: list[Cargo]) -> bool:
        """Park what has expired; False, and nothing was awaited: nothing has."""
        now = self.clock()
        expired = [cargo for cargo in in_hand if _is_expired(cargo.unwrapped, now, self.options)]
        if not expired:
            return False
        await self._park_all(expired, EXPIRED, "the time to live ended on the backlog")
        in_hand[:] = [cargo for cargo in in_hand if cargo not in expired]
        return True

    # Settling at the backlog.

    async def _complete_all(self, entity: EntityPath, chunk: Sequence[Cargo]) -> None:
        self.progress.note()
        self.observer.report(
            Syphoned(entity=entity, queue=self.receiver_queue, messages=len(chunk))
        )
        if isinstance(self.receiver, SettlesMany):
            await self._complete_together(self.receiver, chunk)
            return
        async with trio.open_nursery() as nursery:
            for cargo in chunk:
                nursery.start_soon(self.complete, cargo.delivery, cargo.copy)

    async def _complete_together(self, receiver: SettlesMany, chunk: Sequence[Cargo]) -> None:
        verdicts: Sequence[BrokerError | None] = ()
        with trio.move_on_after(self.options.attempt_timeout):
            try:
                verdicts = await receiver.settle_many([(one.delivery, _DONE) for one in chunk])
            except BrokerError as error:
                verdicts = [error] * len(chunk)
        for cargo, verdict in zip(chunk, verdicts, strict=False):  # none where there is no answer
            if verdict is None:
                self.transferred.forget(cargo.copy)
        for reason in {str(verdict): None for verdict in verdicts if verdict is not None}:
            self.observer.report(SyphonFailed(queue=self.receiver_queue, reason=reason))

    async def complete(self, delivery: Delivery, copy: Copy) -> None:
        """Complete a copy that the primary has; forget it once that is confirmed."""
        if await self._settle(delivery, Complete()):
            self.transferred.forget(copy)

    async def _park_all(self, chunk: Sequence[Cargo], reason: str, description: str) -> None:
        self._put_down(chunk)
        async with trio.open_nursery() as nursery:
            for cargo in chunk:
                origin = f" (diverted by {cargo.unwrapped.origin or 'a legacy client'})"
                nursery.start_soon(self.park, cargo.delivery, reason, description + origin)

    async def park(self, delivery: Delivery, reason: str, description: str) -> None:
        """Dead-letter a message on its backlog queue, with why."""
        description = description[:MAX_REASON_LENGTH]
        if await self._settle(delivery, DeadLetter(reason=reason, description=description)):
            self.observer.report(
                Parked(
                    queue=self.receiver_queue,
                    message_id=str(delivery.message.message_id),
                    reason=reason,
                    description=description,
                )
            )

    async def _settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """False: it isn't confirmed. The message comes again, and is then known or parked anew."""
        with trio.move_on_after(self.options.attempt_timeout) as scope:
            try:
                await self.receiver.settle(delivery, settlement)
            except BrokerError as error:
                self.observer.report(SyphonFailed(queue=self.receiver_queue, reason=str(error)))
                return False
        return not scope.cancelled_caught

    async def _keep_locked(self, in_hand: Sequence[Cargo]) -> None:
        while in_hand:
            await trio.sleep(self._lock_left(in_hand) / LOCK_SHARE)
            async with trio.open_nursery() as nursery:
                for cargo in in_hand:
                    nursery.start_soon(self._renew, cargo)

    async def _renew(self, cargo: Cargo) -> None:
        with trio.move_on_after(self.options.attempt_timeout):
            try:
                until = await self.receiver.renew(cargo.delivery)
            except NotSupported:
                return  # its lock holds until it said
            except BrokerError as error:
                # It may be delivered to another syphon as well: a duplicate, not a loss.
                self.observer.report(SyphonFailed(queue=self.receiver_queue, reason=str(error)))
            else:
                cargo.delivery = attrs.evolve(cargo.delivery, locked_until=until)

    def _lock_left(self, in_hand: Sequence[Cargo]) -> float:
        """Seconds until the first lock ends; no more than a usual one, as clocks may differ."""
        now = self.clock()
        left = [LockEnds.of(c.delivery.locked_until, now, 0.0).earliest for c in in_hand]
        return max(min([USUAL_LOCK, *left]), SHORTEST_LOCK)


def _is_expired(unwrapped: Unwrapped, now: datetime, options: SyphonOptions) -> bool:
    left = _left(unwrapped, now, options)
    return left is not None and left <= timedelta(0)


def _restored(unwrapped: Unwrapped, now: datetime, options: SyphonOptions) -> Message:
    left = _left(unwrapped, now, options)
    message = unwrapped.message
    if left == message.time_to_live:
        return message
    return attrs.evolve(message, time_to_live=left)


def _left(unwrapped: Unwrapped, now: datetime, options: SyphonOptions) -> timedelta | None:
    if options.backlog_ttl is BacklogTimeToLive.RESTART:
        return unwrapped.time_to_live
    return envelope.remaining(unwrapped, now)
