"""Connections that many use: dialled when they are needed, and not too often when that fails."""

import random
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError, Unavailable


class Ends(Protocol):
    """What can end by itself."""

    @property
    def is_over(self) -> bool: ...


C = TypeVar("C", bound=Ends)


@attrs.define(eq=False, kw_only=True)
class Failures:
    """
    Those in a row. After each nobody dials for a while, longer each time: who asks meanwhile gets
    that failure again, at once.
    """

    _backoff: Backoff
    _rng: random.Random
    _count: int = attrs.field(default=0, init=False)
    _error: BrokerError | None = attrs.field(default=None, init=False)
    _not_before: float = attrs.field(default=0.0, init=False)

    def check(self) -> None:
        """
        Raises:
            BrokerError: the last one; it is too early to dial.
        """
        if self._error is not None and trio.current_time() < self._not_before:
            raise type(self._error)(str(self._error))

    def add(self, error: BrokerError, *, forgiven: int = 0) -> None:
        """One more, of which so many at the begin of the row cost no pause."""
        self._count += 1
        if self._count > forgiven:
            pause = self._backoff.delay(self._count - forgiven, self._rng)
            self._error, self._not_before = error, trio.current_time() + pause

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

    async def get(self) -> C:
        """
        Return a connection that lives. Who is cancelled while dialling leaves it to the next.

        Raises:
            BrokerError: what `dial` raised, now or a moment ago.
        """
        if self.current is None:
            async with self._dialling:
                if self.current is None:
                    self._current = await self._try()
        else:
            await trio.lowlevel.checkpoint()
        connection = self.current
        if connection is None:
            raise Unavailable("the connection was lost as soon as it was made")
        return connection

    async def _try(self) -> C:
        await trio.lowlevel.checkpoint()
        self._failures.check()
        try:
            connection = await self._dial()
        except BrokerError as error:
            self._failures.add(error)
            raise
        self._failures.connected()
        self._failures.clear()
        return connection
