"""
Connections that many use: dialled when they are needed, and not too often when that fails.

A failed dial is remembered for a pause. Within the pause a caller that has another way gets that
failure at once; a caller that has none says since when it asks, and waits for a dial of its own
time.
"""

import math
import random
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError, Unavailable


class Ends(Protocol):
    """What can end by itself."""

    @property
    def is_over(self) -> bool: ...


C = TypeVar("C", bound=Ends)


ANY_TIME: Final = -math.inf
"""As `since`: any failure of the current pause will do."""

_SPACING: Final = 0.1  # seconds between the begins of two dials, while they fail


@attrs.define(eq=False, kw_only=True)
class Failures:
    """Failed dials in a row. After each begins a pause, longer each time."""

    _backoff: Backoff
    _rng: random.Random
    _count: int = attrs.field(default=0, init=False)
    _error: BrokerError | None = attrs.field(default=None, init=False)
    _not_before: float = attrs.field(default=0.0, init=False)
    _began: float = attrs.field(default=ANY_TIME, init=False)  # the last dial
    _failed: float = attrs.field(default=ANY_TIME, init=False)  # begin of the last that failed

    def check(self, since: float) -> None:
        """
        Raises:
            BrokerError: the last failure, if its pause lasts and its dial began at `since` or
                later.
        """
        in_pause = trio.current_time() < self._not_before
        if self._error is not None and in_pause and self._failed >= since:
            raise type(self._error)(str(self._error))

    async def begin(self, since: float) -> None:
        """
        Return when the caller may dial, and has to.

        Raises:
            BrokerError: as `check`.
        """
        self.check(since)
        if self._error is not None:
            await trio.sleep_until(self._began + _SPACING)
        else:
            await trio.lowlevel.checkpoint()
        self._began = trio.current_time()

    def add(self, error: BrokerError, *, forgiven: int = 0) -> None:
        """Count one more; the first `forgiven` of a row cost no pause."""
        self._count += 1
        if self._count > forgiven:
            pause = self._backoff.delay(self._count - forgiven, self._rng)
            self._error, self._failed = error, self._began
            self._not_before = trio.current_time() + pause

    def connected(self) -> None:
        """There is no pause; whether the row is over, time will show."""
        self._error = None

    def clear(self) -> None:
        """The row is over; a pause that has begun isn't."""
        self._count = 0


@attrs.define(eq=False, kw_only=True)
class Reconnecting(Generic[C]):
    """Hands out the connection, and dials another one when it is over."""

    _dial: Callable[[], Awaitable[C]]
    _failures: Failures
    _current: C | None = attrs.field(default=None, init=False)
    _dialling: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def current(self) -> C | None:
        """The connection, if it lives."""
        return self._current if self._current is not None and not self._current.is_over else None

    async def get(self, since: float = ANY_TIME) -> C:
        """
        Return a connection that lives. A caller that is cancelled while dialling leaves it to the
        next.

        Raises:
            BrokerError: what `dial` raised: a dial that began at `since` or later, or by default
                the last one, as long as its pause lasts.
        """
        await trio.lowlevel.checkpoint()
        if self.current is None:
            self._failures.check(since)
            async with self._dialling:
                if self.current is None:
                    self._current = await self._try(since)
        connection = self.current
        if connection is None:
            raise Unavailable("the connection was lost as soon as it was made")
        return connection

    async def _try(self, since: float) -> C:
        await self._failures.begin(since)
        try:
            connection = await self._dial()
        except BrokerError as error:
            self._failures.add(error)
            raise
        self._failures.connected()
        self._failures.clear()
        return connection
