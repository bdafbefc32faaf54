"""A busy entity has a single pause, shared by all of its senders."""

import random
from collections.abc import Iterator
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff, jittered
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy
from gateway.domain.events.gateway import BusyPause
from gateway.ports import Observer

JITTER: Final = 0.1


@attrs.define(eq=False)
class _Pause:
    entity: EntityPath
    until: float
    since: float  # of the first busy answer in a row
    last: Busy  # the newest answer
    count: int = 0  # of pauses in a row


@attrs.define(eq=False, kw_only=True)
class BusyPauses:
    """
    Pauses all sends to an entity after a `Busy` answer: at least `least` seconds, or, if the
    namespace names no time (`backs_off`), by `backoff`, longer with each pause in a row.
    """

    least: float
    backoff: Backoff = Backoff(first=1.0, cap=30.0)
    rng: random.Random
    observer: Observer
    _pauses: dict[str, _Pause] = attrs.field(factory=dict, init=False)

    def begin(self, entity: EntityPath, error: Busy) -> float:
        """Begin or extend a pause; return for how many seconds the entity has been busy."""
        now = trio.current_time()
        self._forget_old(now)
        pause = self._pauses.setdefault(entity.key, _Pause(entity, now, now, error))
        pause.last = error
        is_new = pause.until <= now  # else it is the answer to a send that began before the pause
        if is_new:
            pause.count += 1
        elif error.backs_off:
            return now - pause.since
        least = self.backoff.delay(pause.count, self.rng) if error.backs_off else self.least
        seconds = max(least, error.retry_after)
        if pause.until < now + seconds:
            pause.until = now + seconds
            self.observer.report(BusyPause(entity=entity, seconds=seconds))
        return now - pause.since

    def clear(self, entity: EntityPath) -> None:
        """
        Record that the primary accepted a send, so that the entity isn't busy without a break.

        A running pause continues, as the send may have begun before it.
        """
        pause = self._pauses.get(entity.key)
        if pause is None:
            return
        pause.since, pause.count = trio.current_time(), 0
        if pause.until <= pause.since:
            del self._pauses[entity.key]

    @property
    def running(self) -> int:
        """The number of entities whose sends are paused now."""
        now = trio.current_time()
        return sum(pause.until > now for pause in self._pauses.values())

    def lasting(self) -> Iterator[tuple[EntityPath, float, Busy]]:
        """The entities that are busy now, for how many seconds in a row, and the last answer."""
        now = trio.current_time()
        for pause in self._pauses.values():
            if pause.until + self.least >= now:
                yield pause.entity, now - pause.since, pause.last

    def left(self, entity: EntityPath) -> float:
        """Seconds until the pause of the entity ends; 0: there is none."""
        pause = self._pauses.get(entity.key)
        return 0.0 if pause is None else max(0.0, pause.until - trio.current_time())

    async def wait(self, entity: EntityPath, deadline: float) -> None:
        """
        Return when the pause is over, plus a random delay so that senders don't resume together.

        Raises:
            Busy: the pause ends after the deadline. `retry_after` is the time left.
        """
        while (left := self.left(entity)) > 0:
            if trio.current_time() + left >= deadline:
                raise Busy(f"{entity} is busy for another {left:.0f} s", retry_after=left)
            spread = jittered(left * JITTER, 1.0 - 1e-9, self.rng)
            await trio.sleep(min(left + spread, deadline - trio.current_time()))

    def _forget_old(self, now: float) -> None:
        """Forget pauses that ended `least` seconds ago: the next busy answer starts a new row."""
        for key, pause in list(self._pauses.items()):
            if pause.until + self.least < now:
                del self._pauses[key]
