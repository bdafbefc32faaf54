"""
A connection shared by many callers: dialled on demand, with a backoff after failures.

A failed dial is remembered for a pause. During the pause, a caller with an alternative gets that
failure at once; a caller without an alternative passes the time of its request, and waits for a
dial that begins later. Receivers, which may ask without end, pass `recently`.

Attempts to open a connection aren't lost with the callers who wait for them. If each caller began
from zero, callers with short deadlines would never reach a server that takes longer to open a
connection:

    the caller is cancelled   its attempt goes on, unless an earlier one still does
    the next caller           begins another one, as the earlier may hang, and gets the connection
                              that opens first; the other attempt is cancelled then
"""

import math
import random
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError, Unavailable

A = TypeVar("A")


Spawn = Callable[..., None]
"""Starts a task, as `trio.Nursery.start_soon`."""


@attrs.define(eq=False)
class _DialAttempt(Generic[A]):
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)
    opened: A | None = None
    error: BrokerError | None = None


@attrs.define(eq=False, kw_only=True)
class Attempts(Generic[A]):
    """The attempts of callers that come one at a time."""

    _open: Callable[[], Awaitable[A]]  # ends by itself some time
    _use: Callable[[A], None]  # takes each connection that opens, also if no caller waits for it
    _spawn: Spawn
    _running: list[_DialAttempt[A]] = attrs.field(factory=list, init=False)  # two at most

    async def opened(self) -> A:
        """
        Return the next connection that opens.

        Raises:
            BrokerError: the attempt failed that this call began.
        """
        mine: _DialAttempt[A] = _DialAttempt()
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

    async def _run(self, attempt: _DialAttempt[A]) -> None:
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


class Ends(Protocol):
    """A resource that can end by itself."""

    @property
    def is_over(self) -> bool: ...

    def replaced(self) -> None:
        """Note that another one is used from now on."""
        ...


C = TypeVar("C", bound=Ends)


ANY_TIME: Final = -math.inf
"""For `since`: any failure of the current pause will do."""

_SPACING: Final = 0.1  # seconds between the starts of two dials, while they fail
# Seconds. Receivers wait for a return that they are to notice within a second; a broker that
# refuses them gets a few dials a second, however many they are and however often they ask.
_RECENT: Final = 0.4


def recently() -> float:
    """For `since`, of who has no alternative to the server and may ask often."""
    return trio.current_time() - _RECENT


@attrs.define(eq=False, kw_only=True)
class Failures:
    """Failed dials in a row. After each there is a pause, longer each time."""

    _backoff: Backoff
    _rng: random.Random
    _count: int = attrs.field(default=0, init=False)
    _error: BrokerError | None = attrs.field(default=None, init=False)
    _not_before: float = attrs.field(default=0.0, init=False)
    _began: float = attrs.field(default=ANY_TIME, init=False)  # the last dial
    _failed: float = attrs.field(default=ANY_TIME, init=False)  # the start of the last failed dial

    def check(self, since: float) -> None:
        """
        Raise the last failure while its pause lasts, with the start of its dial as `since`.

        Raises:
            BrokerError: the last failure, if its pause lasts and its dial began at `since` or
                later.
        """
        in_pause = trio.current_time() < self._not_before
        if self._error is not None and in_pause and self._failed >= since:
            error = type(self._error)(str(self._error))
            error.since = self._failed
            raise error

    async def begin(self, since: float) -> None:
        """
        Return when the caller may dial, which it must do then.

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
        """Count a failure; the first `forgiven` failures in a row cost no pause."""
        self._count += 1
        if self._count > forgiven:
            pause = self._backoff.delay(self._count - forgiven, self._rng)
            self._error, self._failed = error, self._began
            self._not_before = trio.current_time() + pause

    def connected(self) -> None:
        """End the pause. The row of failures lasts until `clear`."""
        self._error = None

    def clear(self) -> None:
        """End the row of failures. A pause that has begun continues."""
        self._count = 0


@attrs.define(eq=False, kw_only=True)
class Reconnecting(Generic[C]):
    """Returns the shared connection, and dials another one when it has ended."""

    _dial: Callable[[], Awaitable[C]]
    _failures: Failures
    _spawn: Spawn
    _current: C | None = attrs.field(default=None, init=False)
    _dialling: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _dials: Attempts[C] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._dials = Attempts(open=self._dial, use=self._use, spawn=self._spawn)

    @property
    def current(self) -> C | None:
        """The connection, if it is alive."""
        return self._current if self._current is not None and not self._current.is_over else None

    async def get(self, since: float = ANY_TIME) -> C:
        """
        Return a live connection. If a caller is cancelled while it dials, the dial goes on.

        Raises:
            BrokerError: the failure of a dial that began at `since` or later; by default of the
                last dial, while its pause lasts.
        """
        await trio.lowlevel.checkpoint()
        if self.current is None:
            self._failures.check(since)
            async with self._dialling:
                if self.current is None:
                    await self._try(since)
        connection = self.current
        if connection is None:
            raise Unavailable("the connection was lost as soon as it was opened")
        return connection

    def replace(self, connection: C) -> None:
        """Dial another connection for later callers, as that one has gone bad."""
        if self._current is connection:
            self._current = None

    async def _try(self, since: float) -> None:
        await self._failures.begin(since)
        try:
            await self._dials.opened()
        except BrokerError as error:
            self._failures.add(error)
            raise

    def _use(self, connection: C) -> None:
        if self.current is not None:  # two opened in the same moment
            connection.replaced()
            return
        self._current = connection
        self._failures.connected()
        self._failures.clear()
