"""
Pauses a listener while an endpoint that its handlers need is down: one message tries, and no other
is touched.

    up      handlers are called
    down    the message that failed first stays locked as the trial, which is repeated after each
            pause. Nothing is received. Other messages are abandoned; if that would count as a
            delivery, and so bring them nearer to poison, they wait as long as their locks hold
    no      down, and the trial's lock was lost: after the pause one message is received as the
    trial   next trial
"""

import math
import random
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import Backoff

SHORTEST: Final = 0.1  # seconds, even if the handler asks for a longer pause


@attrs.define(eq=False, kw_only=True)
class HandlerEndpoint:
    """Knows if the endpoint that the handlers of a listener need is up."""

    pause: Backoff
    rng: random.Random
    _failures: int = attrs.field(default=0, init=False)  # in a row
    _until: float = attrs.field(default=-math.inf, init=False)
    _trial: object = attrs.field(default=None, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)

    @property
    def is_down(self) -> bool:
        return self._failures > 0

    async def wait_for_turn(self) -> bool:
        """Return when messages may be received; True: only a single message, for the trial."""
        await trio.lowlevel.checkpoint()
        while self.is_down:
            if self._trial is not None:
                await self._changes.wait_next()
            elif trio.current_time() < self._until:
                await trio.sleep_until(self._until)
            else:
                return True
        return False

    async def admit(self, who: object) -> bool:
        """True if the handler may be called now; the trial waits for the end of the pause."""
        await trio.lowlevel.checkpoint()
        if not self.is_down:
            return True
        if self._trial is None:
            self._trial = who
        if self._trial is not who:
            return False
        await trio.sleep_until(self._until)
        return True

    async def wait_for_news(self) -> None:
        """Return when the endpoint is up, or another message may become the trial."""
        await trio.lowlevel.checkpoint()
        if self.is_down and self._trial is not None:
            await self._changes.wait_next()

    def fail(self, who: object, retry_after: float | None) -> float | None:
        """
        Note that the endpoint is down; return the pause if `who` is the trial, and None if another
        message is.
        """
        if self._trial is None:
            self._trial = who
        if self._trial is not who:
            return None
        self._failures += 1
        seconds = self.pause.delay(self._failures, self.rng)
        seconds = seconds if retry_after is None else max(SHORTEST, retry_after)
        self._until = trio.current_time() + seconds
        return seconds

    def answer(self, who: object) -> None:
        """Note that the endpoint has answered, whatever the answer was."""
        if self._trial is who:
            self._failures = 0
            self.leave(who)

    def leave(self, who: object) -> None:
        """Note that another message may become the trial."""
        if self._trial is who:
            self._trial = None
            self._changes.notify()
