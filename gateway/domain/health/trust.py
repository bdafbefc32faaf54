"""
Decides if a connection has gone bad, so that another one may work where requests on it fail.

Only the answers to requests that change something count in its favour: a broken node may attach
links and answer probes, and still take no message. No clock: `now` is an argument, in seconds of
any monotonic clock.
"""

from math import inf
from typing import Final

import attrs

SILENCE: Final = 2.0  # seconds without an answer; the default of `slow_call_duration`
# Seconds. A younger connection is kept: if new ones fail, too, they would only follow each other.
YOUNG: Final = 1.0


@attrs.define(eq=False)
class Trust:
    """The evidence about one connection, which was opened at `opened`."""

    opened: float
    _answered: float = attrs.field(default=-inf, init=False)  # the last time
    _given_up: float = attrs.field(default=inf, init=False)  # the first start since that time

    @property
    def last_answer(self) -> float:
        """When the peer last did something; minus infinity: never."""
        return self._answered

    def answered(self, now: float) -> None:
        """Record that the peer did what it was asked, or refused it for the caller's fault."""
        self._answered, self._given_up = now, inf

    def failed(self, began: float, now: float) -> bool:
        """
        Record that a request begun at `began` failed in a way that counts as an outage. True: the
        connection has gone bad.
        """
        return self._answered < began and now - self.opened >= YOUNG

    def given_up(self, began: float, now: float) -> bool:
        """
        Record that a request begun at `began` isn't waited for any more. True: the connection has
        gone bad, as such requests have had no answer for `SILENCE`.
        """
        if self._answered >= began:
            return False
        self._given_up = min(self._given_up, began)
        return now - self._given_up >= SILENCE
