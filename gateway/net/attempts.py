"""
Attempts to open a connection, which aren't lost with the callers who wait for them.

If each caller began from zero, callers with short deadlines would never reach a server that takes
longer to open a connection:

    the caller is cancelled   its attempt goes on, unless an earlier one still does
    the next caller           begins another one, as the earlier may hang, and gets the connection
                              that opens first; the other attempt is cancelled then
"""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import attrs
import trio

from gateway.domain.errors import BrokerError

C = TypeVar("C")


Spawn = Callable[..., None]
"""Starts a task, as `trio.Nursery.start_soon`."""


@attrs.define(eq=False)
class _Attempt(Generic[C]):
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)
    opened: C | None = None
    error: BrokerError | None = None


@attrs.define(eq=False, kw_only=True)
class Attempts(Generic[C]):
    """The attempts of callers that come one at a time."""

    _open: Callable[[], Awaitable[C]]  # ends by itself some time
    _use: Callable[[C], None]  # takes each connection that opens, also if no caller waits for it
    _spawn: Spawn
    _running: list[_Attempt[C]] = attrs.field(factory=list, init=False)  # two at most

    async def opened(self) -> C:
        """
        Return the next connection that opens.

        Raises:
            BrokerError: the attempt failed that this call began.
        """
        mine: _Attempt[C] = _Attempt()
        self._running.append(mine)
        self._spawn(self._run, mine)
        try:
            await mine.over.wait()
        except trio.Cancelled:
            if self._running != [mine]:
                mine.scope.cancel()
            raise
        if mine.opened is not None:
            return mine.opened
        assert mine.error is not None, "one of both is there"
        raise mine.error

    async def _run(self, attempt: _Attempt[C]) -> None:
        try:
            with attempt.scope:
                connection = await self._open()
                self._use(connection)
                for each in self._running:
                    each.opened = connection
                    each.over.set()
                    if each is not attempt:
                        each.scope.cancel()
        except BrokerError as error:
            attempt.error = error
        finally:
            self._running.remove(attempt)
            attempt.over.set()
