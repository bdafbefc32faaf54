"""
The access tokens of one credential. The first is requested when the namespace is opened, each
further one long before the last expires: a short outage of the identity provider isn't noticed.
"""

import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, Self

import attrs
import trio

from gateway.brokers.task_scope import TaskScope
from gateway.changes import Changes
from gateway.domain.backoff import Backoff, jittered
from gateway.domain.errors import BrokerError, CredentialRefused, NoToken
from gateway.domain.events.access import TokenRegained, TokenRequestFailed
from gateway.ports import Observer, WallClock

_RENEWED_AT: Final = 0.5  # share of a token's lifetime; the rest is for outages of the provider
_JITTER: Final = 0.1  # so that gateways that started together don't ask together
_SOONEST: Final = 1.0  # seconds between two requests
_MOST_PAUSE: Final = 120.0  # seconds that the identity provider may ask for
_SPARE: Final = Backoff(first=2.0, cap=60.0)  # while a token is good
_URGENT: Final = Backoff(first=1.0, cap=5.0)
_REFUSED: Final = Backoff(first=5.0, cap=60.0)
# A token that the namespace refuses is replaced early, unless it is as young as this, in seconds.
_YOUNG: Final = 60.0


@attrs.frozen(kw_only=True)
class AccessToken:
    """A token with the dates that the identity provider gave for it."""

    text: str = attrs.field(repr=False)
    expires: datetime
    renew: datetime | None = None  # when the provider wants it to be renewed


@attrs.frozen(kw_only=True)
class _CachedToken:
    token: AccessToken
    since: float  # Trio's clock
    until: float


Request = Callable[[], Awaitable[AccessToken]]
"""Requests a token. Raises CredentialRefused or NoToken."""


@attrs.define(eq=False, kw_only=True)
class AccessTokens(TaskScope):
    """
    Keeps a good token within its `async with` block. There is one request at a time, by one task.

    `patience`: the longest time that `get` waits, in seconds.
    """

    _request: Request
    _namespace: str
    _clock: WallClock
    _rng: random.Random
    _observer: Observer
    _patience: float
    _kept: _CachedToken | None = attrs.field(default=None, init=False)
    _error: BrokerError | None = attrs.field(default=None, init=False)  # of the last request
    _failing_since: float = attrs.field(default=0.0, init=False)
    _failures: int = attrs.field(default=0, init=False)  # in a row
    _changes: Changes = attrs.field(factory=Changes, init=False)
    _hurry: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.nursery.start_soon(self.run)
        return self

    async def get(self) -> AccessToken:
        """
        Return a token that hasn't expired; at once if there is one.

        Raises:
            CredentialRefused: there is no token, because the identity provider refuses the
                credential.
            NoToken: there is no token, and the identity provider can't be reached, fails, or hasn't
                answered within `patience`.
        """
        with trio.move_on_after(self._patience):
            while (kept := self._good()) is None and self._error is None:
                await self._changes.wait_next()
        if kept is not None:
            return kept.token
        # A fresh exception for each caller, as callers add to its text and traceback.
        error = self._error or NoToken(
            f"no access token from the identity provider within {self._patience:.3g} s"
        )
        raise type(error)(str(error))

    def refused(self, token: str) -> None:
        """Note that the namespace has refused that token: unless it's young, request another."""
        kept, now = self._kept, trio.current_time()
        if kept is not None and kept.token.text == token and now - kept.since >= _YOUNG:
            self._hurry.set()

    def expires(self) -> datetime | None:
        """The date at which the last token expires, or has expired; None: there was none yet."""
        return None if self._kept is None else self._kept.token.expires

    def seconds_left(self) -> float:
        """The seconds until the token expires; 0.0 without one."""
        kept = self._good()
        return 0.0 if kept is None else kept.until - trio.current_time()

    async def run(self) -> None:
        """Request tokens until cancelled."""
        while True:
            self._hurry = trio.Event()
            try:
                pause = self._keep(await self._request())
            except BrokerError as error:
                pause = self._fail(error)
            self._changes.notify()
            with trio.move_on_after(pause):
                await self._hurry.wait()

    def _good(self) -> _CachedToken | None:
        kept = self._kept
        return None if kept is None or kept.until <= trio.current_time() else kept

    def _keep(self, token: AccessToken) -> float:
        """
        Keep the token; return the seconds until the next request.

        Raises:
            NoToken: it has expired already.
        """
        now, date = trio.current_time(), self._clock()
        seconds = _seconds(token.expires - date)
        if seconds <= 0.0:
            raise NoToken(
                "the identity provider gave a token that has expired already: check the clock of"
                " this machine"
            )
        if self._error is not None:
            failed = now - self._failing_since
            self._observer.report(TokenRegained(namespace=self._namespace, seconds=failed))
        self._error, self._failures = None, 0
        self._kept = _CachedToken(token=token, since=now, until=now + seconds)
        pause = _RENEWED_AT * seconds
        if token.renew is not None:
            pause = min(pause, _seconds(token.renew - date))
        return max(_SOONEST, jittered(pause, _JITTER, self._rng))

    def _fail(self, error: BrokerError) -> float:
        """Note the failure; return the seconds until the next request."""
        if self._error is None:
            self._failing_since = trio.current_time()
        self._error = error
        self._failures += 1
        left = self.seconds_left()
        self._observer.report(
            TokenRequestFailed(namespace=self._namespace, reason=str(error), good_for=left)
        )
        is_refused = isinstance(error, CredentialRefused)
        backoff = _REFUSED if is_refused else _SPARE if left else _URGENT
        pause = backoff.delay(self._failures, self._rng)
        if left:
            pause = min(pause, max(_SOONEST, left))
        asked = error.retry_after if isinstance(error, NoToken) else 0.0
        return max(pause, min(asked, _MOST_PAUSE))


def _seconds(duration: timedelta) -> float:
    return duration.total_seconds()
