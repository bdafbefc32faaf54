"""
One message in hand, from its delivery to its settlement.

    waits     for a place among the handlers that run, or for the endpoint to be up
    runs      the handler has it
    settles   it is done, or poison, or given back, and the namespace is told
    rests     the handler failed: the message stays locked for a while, and is then given back

All of it happens within the lock: when that is about to end and can't be renewed, whatever goes on
is cancelled, and the message comes again. A drain ends what waits and what rests, and nothing else.
"""

from math import inf
from typing import Final, Generic, TypeVar

import attrs
import trio

from gateway.domain.errors import BrokerError, LockLost, NotSupported, OutcomeUnknown
from gateway.domain.events import ItemFailed, ListenerPaused, Poisoned
from gateway.domain.lock_ends import USUAL_LOCK
from gateway.domain.message import Abandon, Complete, DeadLetter, Delivery, Settlement
from gateway.listener import poison
from gateway.listener.desk import Desk, margin
from gateway.listener.errors import EndpointDown, text_of
from gateway.listener.items import Item

T = TypeVar("T")

UNTOUCHED: Final = Abandon(delivered=False)
HALF: Final = 0.5  # of a lock has passed when it is renewed
SOONEST: Final = 1.0  # seconds between two attempts to renew


@attrs.define(eq=False, kw_only=True)
class Work(Generic[T]):
    """A message that this listener has locked."""

    desk: Desk[T]
    delivery: Delivery
    size: int
    renew_at: float = attrs.field(default=inf, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _item: Item[T] | None = attrs.field(default=None, init=False)  # that the handler has done
    _began: float | None = attrs.field(default=None, init=False)  # the handler's work
    # What becomes of the message if it is put down now; None: it can't be.
    _if_put_down: Settlement | None = attrs.field(default=UNTOUCHED, init=False)
    _verdict: Settlement | None = attrs.field(default=None, init=False)
    _is_lost: bool = attrs.field(default=False, init=False)  # the lock
    _burial: poison.Burial = attrs.field(factory=poison.Burial, init=False)

    async def run(self) -> None:
        """Return when the message is settled, or its lock about to end, or lost."""
        desk = self.desk
        seconds = desk.seconds_locked(self.delivery.locked_until)
        desk.tuning.observe(seconds)
        self._extend(seconds)
        desk.locks.watch(self)
        try:
            with self._scope:
                await self._settle(await self._judge())
            if self._scope.cancelled_caught:
                await self._end_early()
        finally:
            desk.locks.forget(self)
            desk.endpoint.leave(self)
            desk.room.release(self.size)

    def put_down(self) -> None:
        """Give the message back, unless its handler runs or it is settled."""
        if self._if_put_down is not None:
            self._scope.cancel()

    async def renew(self) -> None:
        """Extend the lock; if that fails, try again while it holds."""
        now = trio.current_time()
        left = self._scope.deadline - now
        try:
            locked_until = await self.desk.renew(self.delivery, max(0.0, left))
        except LockLost:
            self.renew_at = inf
            self._is_lost = True
            self._scope.cancel()
        except NotSupported:
            self.renew_at = inf
        except BrokerError:
            self.renew_at = trio.current_time() + max(SOONEST, HALF * left)
        else:
            self._extend(self.desk.seconds_locked(locked_until))

    def _extend(self, seconds: float) -> None:
        now = trio.current_time()
        self._scope.deadline = now + seconds - margin(seconds)
        # A clock of ours that is behind makes a lock seem longer than it is.
        soon = HALF * min(seconds, USUAL_LOCK)
        self.renew_at = now + soon if self.desk.job.options.renew else inf

    async def _judge(self) -> Settlement:
        """Have the message worked on; say what is to be done with it."""
        desk, options = self.desk, self.desk.job.options
        attempts, most = self.delivery.delivery_count, options.poison_threshold
        if most is not None and attempts > most:
            why = f"it was delivered more than {most} times"
            return poison.dead_letter(poison.TOO_MANY_ATTEMPTS, why, attempts - 1)
        try:
            item = self._parse()
        except Exception as error:  # foreign code: a format of the user's own may raise anything
            desk.job.tell_error(desk.queue, error)
            return poison.dead_letter(poison.MALFORMED, error, attempts)
        while True:
            outcome = await self._take_turn(item)
            if isinstance(outcome, EndpointDown):
                if self._pause(outcome) or await self._may_wait():
                    continue
                return UNTOUCHED
            if not isinstance(outcome, Exception):
                self._item = item
                return outcome
            return await self._judge_failure(outcome)

    async def _take_turn(self, item: Item[T]) -> Settlement | Exception:
        """Run the handler when there is a place for it, if what it needs is up."""
        desk = self.desk
        while True:
            self._if_put_down = UNTOUCHED
            if desk.is_draining:
                return UNTOUCHED
            if not desk.room.try_to_enter():
                await desk.room.enter(desk.queue.key)
            try:
                is_up = not desk.endpoint.is_down or await desk.endpoint.admit(self)
                if is_up and not desk.is_draining:  # which may have begun while we waited
                    self._if_put_down = None
                    return await self._handle(item)
            finally:
                desk.room.leave()
            if not await self._may_wait():
                return UNTOUCHED

    async def _may_wait(self) -> bool:
        """Whether it stays in hand while another message tries; if so, return when that is over."""
        desk = self.desk
        self._if_put_down = UNTOUCHED
        if desk.takes_back_uncounted or desk.is_draining:
            await trio.lowlevel.checkpoint()
            return False
        await desk.endpoint.wait_for_news()
        return True

    async def _handle(self, item: Item[T]) -> Settlement | Exception:
        """What the handler says; the error if it fails."""
        self._began = trio.current_time()
        failure: Exception | None = None
        settlement: Settlement = Complete()
        try:
            settlement = _checked(await self.desk.job.handle(item))
        except* Exception as group:  # foreign code: whatever it raises is about this one message
            failure = _alone(group)
        if not isinstance(failure, EndpointDown):
            self.desk.endpoint.answer(self)
        return settlement if failure is None else failure

    def _pause(self, down: EndpointDown) -> bool:
        """Whether this message is the one that tries again."""
        seconds = self.desk.endpoint.fail(self, down.retry_after)
        if seconds is None:
            return False
        self.desk.job.observer.report(ListenerPaused(seconds=seconds, reason=text_of(down)))
        return True

    async def _judge_failure(self, error: Exception) -> Settlement:
        """Poison, or given back after a rest."""
        desk, options = self.desk, self.desk.job.options
        attempts, most = self.delivery.delivery_count, options.poison_threshold
        desk.ledger.failed += 1
        desk.job.observer.report(
            ItemFailed(
                queue=desk.queue,
                message_id=str(self.delivery.message.message_id),
                attempts=attempts,
                reason=text_of(error),
            )
        )
        desk.job.tell_error(desk.queue, error)
        if most is not None and attempts >= most:
            return poison.dead_letter(poison.TOO_MANY_ATTEMPTS, error, attempts)
        self._if_put_down = Abandon()
        if not desk.is_draining:
            await trio.sleep(options.retry.delay(attempts, desk.job.rng))
        return Abandon()

    async def _settle(self, settlement: Settlement) -> None:
        """
        Tell the namespace. What is done is told once at least, also if we are cancelled just now:
        otherwise it would be done twice.
        """
        desk, retry = self.desk, self.desk.job.options.settle_retry
        self._verdict, self._if_put_down = settlement, None
        if isinstance(settlement, Complete):
            verdict = await desk.complete(self.delivery)
            if self._has_ended(settlement, verdict):
                return
        else:
            limit = desk.job.options.answer_timeout
            with trio.move_on_after(limit, shield=True) as scope:
                if await self._try_to_settle(settlement):
                    return
            if scope.cancelled_caught:  # before the settlement's own limit, which is as long
                text = f"no answer to a settlement within {limit:g} s"
                self._has_ended(settlement, OutcomeUnknown(text))
        failures = 1
        while True:
            await trio.sleep(retry.delay(failures, desk.job.rng))
            if await self._try_to_settle(settlement):
                return
            failures += 1

    async def _try_to_settle(self, settlement: Settlement) -> bool:
        """Whether the namespace has done it, or never will."""
        desk = self.desk
        try:
            if isinstance(settlement, DeadLetter):
                await self._burial.bury(desk, self.delivery, settlement)
            else:
                await desk.settle(self.delivery, settlement)
        except BrokerError as error:
            return self._has_ended(settlement, error)
        return self._has_ended(settlement, None)

    def _has_ended(self, settlement: Settlement, verdict: BrokerError | None) -> bool:
        """Note the namespace's verdict; whether that is its last word."""
        if verdict is None:
            self._note_settled(settlement)
            return True
        if isinstance(verdict, LockLost):
            self._note_late()
            return True
        self.desk.job.note_failure(self.desk.queue, verdict)
        return isinstance(verdict, NotSupported)

    def _note_settled(self, settlement: Settlement) -> None:
        desk, delivery = self.desk, self.delivery
        if self._item is not None and self._began is not None:
            desk.note_done(self._item, trio.current_time() - self._began)
        if isinstance(settlement, Abandon):
            desk.bell.ring()  # it can be taken again, and nobody else says so
        elif isinstance(settlement, DeadLetter):
            desk.ledger.poisoned += 1
            event = Poisoned(
                queue=desk.queue,
                message_id=str(delivery.message.message_id),
                attempts=delivery.delivery_count,
                reason=settlement.reason,
            )
            desk.job.observer.report(event)

    async def _end_early(self) -> None:
        """The drain doesn't wait for it, or its lock is about to end."""
        if self._if_put_down is None:
            self._note_late()
        if self._is_lost:
            return
        # Its lock may hold yet: then nobody needs to wait for its end.
        settlement = self._verdict or self._if_put_down or Abandon()
        with trio.move_on_after(self.desk.job.options.answer_timeout, shield=True):
            try:
                await self.desk.settle(self.delivery, settlement)
            except BrokerError:
                return  # then its lock runs out
            self.desk.bell.ring()

    def _note_late(self) -> None:
        if self._began is not None:
            self.desk.note_late(self.delivery, trio.current_time() - self._began)

    def _parse(self) -> Item[T]:
        job, delivery = self.desk.job, self.delivery
        value = job.format.parse(delivery.message)
        return Item(value=value, delivery=delivery, queue=self.desk.queue, account=job.account)


def _checked(settlement: Settlement | None) -> Settlement:
    if settlement is None:
        return Complete()
    if not isinstance(settlement, Settlement):
        raise TypeError(
            f"a handler returns None or a settlement, got a {type(settlement).__name__}"
        )
    return settlement


def _alone(group: ExceptionGroup[Exception]) -> Exception:
    """The one error of a group, if it is one."""
    error: Exception = group
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
