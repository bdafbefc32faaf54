"""
Limits how many requests to a namespace are in flight, by its answers: few at first, more while the
answers are quick, half as many after a slow one or while the namespace is busy.

A namespace that has just come back gets its usual traffic, the backlog of every syphon and the
probes of every gateway at once. They can't know of each other, but each sees the answers.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Final

import attrs
import trio

# From the model of a thousand gateways, as those of `primary_load`.
SLOW: Final = 0.25  # seconds: a quicker answer is never slow
EACH: Final = 0.001  # seconds more for each message
SLOWER: Final = 4.0  # times the quickest answer: nor is one that takes less


@attrs.define(eq=False)
class RequestRoom:
    """The room of one request among those in flight."""

    slow_start: "SlowStart"
    _is_over: bool = attrs.field(default=False, init=False)

    def leave(self) -> None:
        """Let another request begin."""
        if not self._is_over:
            self._is_over = True
            self.slow_start.left()

    async def leave_after(self, seconds: float) -> None:
        """`leave` after `seconds`: a request without an answer shouldn't hold up others."""
        await trio.sleep(seconds)
        self.leave()


@attrs.define(eq=False, kw_only=True)
class SlowStart:
    """Between `least` and `most` requests, `first` of them at the start."""

    first: int
    least: int
    most: int
    _limit: float = attrs.field(init=False)
    _enough: float = attrs.field(default=inf, init=False)  # beyond it the limit grows slowly
    _in_flight: int = attrs.field(default=0, init=False)
    _quickest: float = attrs.field(default=inf, init=False)  # seconds
    _lowered: float = attrs.field(default=-inf, init=False)  # when the limit was
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _all_begun: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._limit = self.first

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight."""
        return int(self._limit)

    @asynccontextmanager
    async def room(self) -> AsyncIterator[RequestRoom]:
        """
        Wait until a request may begin. The room ends with the block, or by `RequestRoom.leave`.
        """
        if self._waiting or self._in_flight >= self.limit:
            try:
                await self._waiting.park()  # until `_wake` has counted it
            finally:
                if not self._waiting:
                    self._all_begun.unpark_all()
        else:
            self._in_flight += 1
        room = RequestRoom(self)
        try:
            yield room
        finally:
            room.leave()

    async def wait_for_room(self) -> None:
        """Return when no request waits for room; a checkpoint only if one does."""
        while self._waiting:
            await self._all_begun.park()

    def left(self) -> None:
        """Count a request that has its answer, or isn't waited for any more."""
        self._in_flight -= 1
        self._wake()

    def slow_after(self, messages: int) -> float:
        """Seconds after which an answer to a request with `messages` messages is slow."""
        usual = 0.0 if self._quickest == inf else SLOWER * self._quickest
        return max(SLOW + EACH * messages, usual)

    def answered(self, began: float, messages: int = 1) -> None:
        """Record the answer to a request with `messages` messages that began at `began`."""
        seconds = trio.current_time() - began
        self._quickest = min(self._quickest, seconds)
        if seconds > self.slow_after(messages):
            self.lower(began)
        elif self._in_flight > self._limit / 2:  # the effect of a higher limit is unknown otherwise
            growth = 1.0 if self._limit < self._enough else 1.0 / self._limit
            self._limit = min(self.most, self._limit + growth)
            self._wake()

    def lower(self, began: float) -> None:
        """
        Halve the limit because of a request that began at `began`; only once for all that were in
        flight.
        """
        if began <= self._lowered:
            return
        self._lowered = trio.current_time()
        self._limit = self._enough = max(self.least, self._limit / 2)

    def start_again(self) -> None:
        """Begin with `first` requests, as the namespace was lost."""
        self._enough = max(self.least, self._limit / 2)
        self._limit = self.first

    def _wake(self) -> None:
        """Let as many requests begin as there is room for, in their order."""
        room = min(self.limit - self._in_flight, len(self._waiting))
        if room > 0:
            self._in_flight += room
            self._waiting.unpark(count=room)
