"""
The work for a message of a listener, from its delivery to its settlement.

    waits     for a place among the running handlers, or for the endpoint to be up
    runs      the handler has it
    settles   it is done, poison or abandoned, and the namespace is told
    backoff   the handler failed: the message stays locked during a backoff, then is abandoned

All of it happens within the lock: when the lock is about to expire and can't be renewed, the
current step is cancelled, and the message is delivered again. A drain ends waits and pauses, and
nothing else.
"""

from math import inf
from typing import Final, Generic, TypeVar

import attrs
import trio

from gateway.deadlines import answered_within
from gateway.domain.clocks.lock_ends import USUAL_LOCK
from gateway.domain.errors import BrokerError, LockLost, NotSupported, Outcome, OutcomeUnknown
from gateway.domain.events.gateway import ItemFailed, ListenerPaused, Poisoned
from gateway.domain.message import Abandon, Complete, DeadLetter, Delivery, Settlement
from gateway.listening import poison
from gateway.listening.errors import EndpointDown, text_of
from gateway.listening.items import Item
from gateway.listening.queue_session import QueueSession, margin

T = TypeVar("T")

UNTOUCHED: Final = Abandon(delivered=False)
HALF: Final = 0.5  # of a lock has passed when it is renewed
SOONEST: Final = 1.0  # seconds between two attempts to renew


@attrs.define(eq=False, kw_only=True)
class Work(Generic[T]):
    """A message that this listener has locked."""

    session: QueueSession[T]
    delivery: Delivery
    size: int
    renew_at: float = attrs.field(default=inf, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # The item that the handler has processed.
    _item: Item[T] | None = attrs.field(default=None, init=False)
    _began: float | None = attrs.field(default=None, init=False)  # start of the handler
    # The settlement if the message is released now; None: it can't be released.
    _if_released: Settlement | None = attrs.field(default=UNTOUCHED, init=False)
    _verdict: Settlement | None = attrs.field(default=None, init=False)
    _is_lost: bool = attrs.field(default=False, init=False)  # True: the lock is lost
    # A settlement had no answer, so the message may be settled, in time.
    _in_doubt: bool = attrs.field(default=False, init=False)
    _burial: poison.Burial = attrs.field(factory=poison.Burial, init=False)

    async def run(self) -> None:
        """Return when the message is settled, or its lock about to expire, or lost."""
        session = self.session
        seconds = session.seconds_locked(self.delivery.locked_until)
        session.tuning.observe(seconds)
        self._extend(seconds)
        session.locks.watch(self)
        try:
            with self._scope:
                await self._settle(await self._judge())
            if self._scope.cancelled_caught:
                await self._stop_early()
        finally:
            session.locks.forget(self)
            session.endpoint.leave(self)
            session.limiter.unlock(self.size)

    def release(self) -> None:
        """Abandon the message, unless its handler runs or it is settled."""
        if self._if_released is not None:
            self._scope.cancel()

    async def renew(self) -> None:
        """Extend the lock; if that fails, try again while it holds."""
        now = trio.current_time()
        left = self._scope.deadline - now
        try:
            locked_until = await self.session.renew(self.delivery, max(0.0, left))
        except LockLost:
            self.renew_at = inf
            self._is_lost = True
            self._scope.cancel()
        except NotSupported:
            self.renew_at = inf
        except BrokerError:
            self.renew_at = trio.current_time() + max(SOONEST, HALF * left)
        else:
            self._extend(self.session.seconds_locked(locked_until))

    def _extend(self, seconds: float) -> None:
        now = trio.current_time()
        self._scope.deadline = now + seconds - margin(seconds)
        # If our clock is slow, a lock seems longer than it is.
        soon = HALF * min(seconds, USUAL_LOCK)
        self.renew_at = now + soon if self.session.job.options.renew else inf

    async def _judge(self) -> Settlement:
        """Handle the message; return its settlement."""
        session, options = self.session, self.session.job.options
        attempts, most = self.delivery.delivery_count, options.poison_threshold
        if most is not None and attempts > most:
            why = f"the message was delivered more than {most} times"
            return poison.dead_letter(poison.TOO_MANY_ATTEMPTS, why, attempts - 1)
        try:
            item = self._parse()
        except Exception as error:  # foreign code: a user's format may raise anything
            session.job.report_error(session.queue, error)
            return poison.dead_letter(poison.MALFORMED, error, attempts)
        while True:
            outcome = await self._acquire_turn(item)
            if isinstance(outcome, EndpointDown):
                if self._pause(outcome) or await self._may_wait():
                    continue
                return UNTOUCHED
            if not isinstance(outcome, Exception):
                self._item = item
                return outcome
            return await self._judge_failure(outcome)

    async def _acquire_turn(self, item: Item[T]) -> Settlement | Exception:
        """Run the handler when there is a place for it, if its endpoint is up."""
        session = self.session
        while True:
            self._if_released = UNTOUCHED
            if session.is_draining:
                return UNTOUCHED
            if not session.limiter.try_acquire():
                await session.limiter.acquire(session.queue.key)
            try:
                is_up = not session.endpoint.is_down or await session.endpoint.admit(self)
                if is_up and not session.is_draining:  # a drain may have begun meanwhile
                    self._if_released = None
                    return await self._handle(item)
            finally:
                session.limiter.free()
            if not await self._may_wait():
                return UNTOUCHED

    async def _may_wait(self) -> bool:
        """
        True if the message stays locked while another message is the trial; if so, return when the
        trial is over.
        """
        session = self.session
        self._if_released = UNTOUCHED
        if session.takes_back_uncounted or session.is_draining:
            await trio.lowlevel.checkpoint()
            return False
        await session.endpoint.wait_for_news()
        return True

    async def _handle(self, item: Item[T]) -> Settlement | Exception:
        """The handler's result; its error if it fails."""
        self._began = trio.current_time()
        failure: Exception | None = None
        settlement: Settlement = Complete()
        try:
            settlement = _checked(await self.session.job.handle(item))
        except* Exception as group:  # foreign code: any exception of it concerns this message only
            failure = _alone(group)
        self.session.stats.record_handled(failure, trio.current_time() - self._began)
        if not isinstance(failure, EndpointDown):
            self.session.endpoint.answer(self)
        return settlement if failure is None else failure

    def _pause(self, down: EndpointDown) -> bool:
        """Pause the listener, as the endpoint is down; True: this message is the trial."""
        seconds = self.session.endpoint.fail(self, down.retry_after)
        if seconds is None:
            return False
        self.session.job.observer.report(ListenerPaused(seconds=seconds, reason=text_of(down)))
        return True

    async def _judge_failure(self, error: Exception) -> Settlement:
        """Dead-letter the message, or abandon it after a backoff."""
        session, options = self.session, self.session.job.options
        attempts, most = self.delivery.delivery_count, options.poison_threshold
        session.stats.failed += 1
        session.job.observer.report(
            ItemFailed(
                queue=session.queue,
                message_id=str(self.delivery.message.message_id),
                attempts=attempts,
                reason=text_of(error),
            )
        )
        session.job.report_error(session.queue, error)
        if most is not None and attempts >= most:
            return poison.dead_letter(poison.TOO_MANY_ATTEMPTS, error, attempts)
        self._if_released = Abandon()
        if not session.is_draining:
            await trio.sleep(options.retry.delay(attempts, session.job.rng))
        return Abandon()

    async def _settle(self, settlement: Settlement) -> None:
        """
        Settle the message. A completion is sent at least once, even after a cancellation: otherwise
        the message would be handled twice.
        """
        session, retry = self.session, self.session.job.options.settle_retry
        self._verdict, self._if_released = settlement, None
        if isinstance(settlement, Complete):
            verdict = await session.complete(self.delivery)
            if self._has_ended(settlement, verdict):
                return
        else:
            limit = session.job.options.answer_timeout
            try:
                with answered_within(limit, "to a settlement", shield=True):
                    if await self._try_to_settle(settlement):
                        return
            except OutcomeUnknown as error:  # before the settlement's own timeout, which is as long
                self._has_ended(settlement, error)
        failures = 1
        while True:
            await trio.sleep(retry.delay(failures, session.job.rng))
            if await self._try_to_settle(settlement):
                return
            failures += 1

    async def _try_to_settle(self, settlement: Settlement) -> bool:
        """Try to settle the message; True: the namespace has settled it, or never will."""
        session = self.session
        try:
            if isinstance(settlement, DeadLetter):
                await self._burial.bury(session, self.delivery, settlement)
            else:
                await session.settle(self.delivery, settlement)
        except BrokerError as error:
            return self._has_ended(settlement, error)
        return self._has_ended(settlement, None)

    def _has_ended(self, settlement: Settlement, verdict: BrokerError | None) -> bool:
        """Note the result; return True if it is final."""
        if verdict is None:
            self._record_settled(settlement)
            return True
        if isinstance(verdict, LockLost):
            self._record_late()
            return True
        self._in_doubt = self._in_doubt or verdict.outcome is Outcome.UNKNOWN
        self.session.job.report_failure(self.session.queue, verdict)
        return isinstance(verdict, NotSupported)

    def _record_settled(self, settlement: Settlement) -> None:
        session, delivery = self.session, self.delivery
        if self._item is not None and self._began is not None:
            session.record_done(self._item, trio.current_time() - self._began)
        if isinstance(settlement, Abandon):
            # The message can be received again, and nothing else announces it.
            session.subscription.notify()
        elif isinstance(settlement, DeadLetter):
            session.stats.poisoned += 1
            event = Poisoned(
                queue=session.queue,
                message_id=str(delivery.message.message_id),
                attempts=delivery.delivery_count,
                reason=settlement.reason,
            )
            session.job.observer.report(event)

    async def _stop_early(self) -> None:
        """End the work, because the drain doesn't wait for it or its lock is about to expire."""
        if self._if_released is None:
            self._record_late()
        if self._is_lost:
            return
        # The lock may still hold: an abandon saves the wait for its end.
        settlement = self._verdict or self._if_released or Abandon()
        with trio.move_on_after(self.session.job.options.answer_timeout, shield=True):
            try:
                await self.session.settle(self.delivery, settlement)
            except BrokerError:
                return  # the message's lock then expires
            self.session.subscription.notify()

    def _record_late(self) -> None:
        """Report that the lock ended too early, unless the message may be settled."""
        if self._began is not None and not self._in_doubt:
            self.session.record_late(self.delivery, trio.current_time() - self._began)

    def _parse(self) -> Item[T]:
        job, delivery = self.session.job, self.delivery
        value = job.format.parse(delivery.message)
        return Item(value=value, delivery=delivery, queue=self.session.queue, account=job.account)


def _checked(settlement: Settlement | None) -> Settlement:
    if settlement is None:
        return Complete()
    if not isinstance(settlement, Settlement):
        raise TypeError(
            f"a handler returns None or a settlement, got a {type(settlement).__name__}"
        )
    return settlement


def _alone(group: ExceptionGroup[Exception]) -> Exception:
    """The only error of a group, or the group itself."""
    error: Exception = group
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
