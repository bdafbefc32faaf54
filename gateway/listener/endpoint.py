"""
What the handlers need may be down: then one message tries, and no other is touched.

    up      handlers are called
    down    the message that found out stays in hand as the trial: after each pause it is tried
            again. Nothing is taken. The others are given back; where that would count as a
            delivery, and so bring them nearer to poison, they wait as long as their locks hold
    nobody  down, and the trial's lock was lost: after the pause one message is taken as the next
"""

import math
import random
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff

SHORTEST: Final = 0.1  # seconds, whatever the handler says


@attrs.define(eq=False, kw_only=True)
class Endpoint:
    """Whether the handlers of one listener have what they need."""

    pause: Backoff
    rng: random.Random
    _failures: int = attrs.field(default=0, init=False)  # in a row
    _until: float = attrs.field(default=-math.inf, init=False)
    _trial: object = attrs.field(default=None, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_down(self) -> bool:
        return self._failures > 0

    async def wait_for_turn(self) -> bool:
        """Return when messages may be taken; whether that is for a trial, which needs just one."""
        await trio.lowlevel.checkpoint()
        while self.is_down:
            if self._trial is not None:
                await self._changed.wait()
            elif trio.current_time() < self._until:
                await trio.sleep_until(self._until)
            else:
                return True
        return False

    async def admit(self, who: object) -> bool:
        """Whether the handler may be called now; the trial waits for the end of the pause."""
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
        """Return when it is up, or another message may be the trial."""
        await trio.lowlevel.checkpoint()
        if self.is_down and self._trial is not None:
            await self._changed.wait()

    def fail(self, who: object, retry_after: float | None) -> float | None:
        """It is down; return the pause if `who` is the trial, and None if another one is."""
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
        """The endpoint did its part, whatever the handler made of it."""
        if self._trial is who:
            self._failures = 0
            self.leave(who)

    def leave(self, who: object) -> None:
        """Another one may be the trial."""
        if self._trial is who:
            self._trial = None
            self._changed.set()
            self._changed = trio.Event()
