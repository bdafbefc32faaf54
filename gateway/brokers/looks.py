"""
The requests by which a receiver asks its namespace for messages, each in a task of its own.

A request that has reached the namespace may have locked messages. So it isn't cut with the receive
that waits for it, and a receive with a short deadline doesn't begin from zero each time:

    the receive is cancelled   its request goes on, for `_AFTER` seconds at most
    another receive            waits for that request, instead of making one
    the answer comes, and      the deliveries are kept for the next receive, for `LINGER` seconds;
    no receive waits           then they are released
    the receiver has ended     they are released at once
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

import attrs
import trio

from gateway.brokers.task_scope import TaskScope
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery
from gateway.ports import WallClock

# Seconds. A request without an answer after that is on a connection that has gone bad.
_AFTER: Final = 10.0
LINGER: Final = 5.0  # seconds; a client that polls has asked again by then
_LAST: Final = 2.0  # seconds that requests have to end when their receiver ends


@attrs.define(eq=False)
class _PendingLook:
    lock: timedelta | None
    waits_until: float  # Trio's clock; until then the namespace has locked nothing
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)
    found: Sequence[Delivery] = ()
    error: BrokerError | None = None


@attrs.define(eq=False)
class _Leftover:
    """The deliveries of an answer that no receive has got."""

    deliveries: list[Delivery]
    lock: timedelta | None


@attrs.define(eq=False, kw_only=True)
class Looks(TaskScope):
    """
    The requests of one receiver: a scope, which waits for them at its end, for `_LAST` seconds at
    most. `release` gives messages back to the namespace.
    """

    clock: WallClock
    release: Callable[[Sequence[Delivery]], Awaitable[None]]
    _left: list[_PendingLook] = attrs.field(factory=list, init=False)  # requests that go on
    _kept: list[_Leftover] = attrs.field(factory=list, init=False)
    _closed: trio.Event = attrs.field(factory=trio.Event, init=False)
    grace: float = attrs.field(default=_LAST, init=False)

    async def receive(
        self,
        ask: Callable[[], Awaitable[Sequence[Delivery]]],
        limit: int,
        *,
        lock: timedelta | None = None,
        waits: float = 0.0,
    ) -> Sequence[Delivery]:
        """
        Return at most `limit` deliveries: kept ones, those of a request that goes on, or those of
        `ask`. `lock` is the lock that is asked for: a receive gets no deliveries with another one.

        `waits` are the seconds for which the namespace waits for messages. A receive that is
        cancelled earlier cuts the request; otherwise a cancellation loses nothing.

        Raises:
            BrokerError: as `ask`.
        """
        if self._kept:  # a receive that returns at once lets others run
            await trio.lowlevel.checkpoint()
        while not (found := self._pop_kept(limit, lock)):
            look = self._continued(lock) or self._begin(ask, lock, waits)
            try:
                await look.over.wait()
            except trio.Cancelled:
                self._leave(look)
                raise
            if look.error is not None:
                raise look.error
            if not look.scope.cancelled_caught:
                self._keep(look.found[limit:], lock)
                return look.found[:limit]
        return found

    def close(self) -> list[Delivery]:
        """Keep nothing any more; return the kept deliveries, for the caller to release."""
        kept, self._kept = self._kept, []
        self._closed.set()
        unseen = [delivery for each in kept for delivery in each.deliveries]
        for each in kept:
            each.deliveries.clear()
        return unseen

    def _begin(
        self,
        ask: Callable[[], Awaitable[Sequence[Delivery]]],
        lock: timedelta | None,
        waits: float,
    ) -> _PendingLook:
        look = _PendingLook(lock, trio.current_time() + waits)
        self.nursery.start_soon(self._run, look, ask)
        return look

    async def _run(
        self, look: _PendingLook, ask: Callable[[], Awaitable[Sequence[Delivery]]]
    ) -> None:
        try:
            with look.scope:
                look.found = await ask()
        except BrokerError as error:
            look.error = error
        finally:
            look.over.set()
        if look in self._left:
            self._left.remove(look)
            self._keep(look.found, look.lock)

    def _continued(self, lock: timedelta | None) -> _PendingLook | None:
        """A request that no receive waits for, from now on the caller's."""
        found = next((each for each in self._left if each.lock == lock), None)
        if found is not None:
            self._left.remove(found)
        return found

    def _leave(self, look: _PendingLook) -> None:
        now = trio.current_time()
        if look.over.is_set():
            self._keep(look.found, look.lock)
        elif now < look.waits_until:
            look.scope.cancel()
        else:
            look.scope.deadline = min(look.scope.deadline, now + _AFTER)
            self._left.append(look)

    def _pop_kept(self, limit: int, lock: timedelta | None) -> list[Delivery]:
        found: list[Delivery] = []
        now = self.clock()
        for kept in self._kept:
            while kept.lock == lock and kept.deliveries and len(found) < limit:
                delivery = kept.deliveries.pop(0)
                if delivery.locked_until is None or delivery.locked_until > now:
                    found.append(delivery)
        return found

    def _keep(self, deliveries: Sequence[Delivery], lock: timedelta | None) -> None:
        if deliveries:
            kept = _Leftover(list(deliveries), lock)
            self._kept.append(kept)
            self.nursery.start_soon(self._release_later, kept)

    async def _release_later(self, kept: _Leftover) -> None:
        with trio.move_on_after(LINGER):
            await self._closed.wait()
        # Messages that the namespace has deleted already are kept for as long as the receiver.
        locked = [each for each in kept.deliveries if each.lock_token is not None]
        kept.deliveries = [each for each in kept.deliveries if each.lock_token is None]
        if not kept.deliveries and kept in self._kept:
            self._kept.remove(kept)
        if locked:
            await self.release(locked)
