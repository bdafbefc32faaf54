"""One connection that many use: dialled when it is needed, and not too often when that fails."""

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
class Reconnecting(Generic[C]):
    """
    Hands out the connection, and dials another one when it is over.

    After a failure nobody dials for a while, longer each time: who asks meanwhile gets that
    failure again, at once.
    """

    _dial: Callable[[], Awaitable[C]]
    _backoff: Backoff
    _rng: random.Random
    _current: C | None = attrs.field(default=None, init=False)
    _dialling: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _failures: int = attrs.field(default=0, init=False)
    _error: BrokerError = attrs.field(factory=lambda: Unavailable("never tried"), init=False)
    _not_before: float = attrs.field(default=0.0, init=False)

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
        if self._failures and trio.current_time() < self._not_before:
            await trio.lowlevel.checkpoint()
            raise type(self._error)(str(self._error))
        try:
            connection = await self._dial()
        except BrokerError as error:
            self._failures += 1
            self._error = error
            pause = self._backoff.delay(self._failures, self._rng)
            self._not_before = trio.current_time() + pause
            raise
        self._failures = 0
        return connection
