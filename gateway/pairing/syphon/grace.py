"""Measures how long a cause has kept messages on the backlog, before they are dead-lettered."""

from typing import Final

import attrs
import trio

from gateway.domain.bounded import Bounded

MAX_CAUSES: Final = 10_000  # beyond it the oldest is forgotten: its grace starts again
SILENCE: Final = 3600.0  # seconds after which a cause that isn't noted counts as fixed
# A waiting message shows its cause again when its lock or the backoff of its entity ends.
RECENT: Final = 600.0  # seconds


@attrs.define(eq=False)
class _CauseTimes:
    since: float
    last: float


@attrs.define(eq=False)
class Grace:
    """The start of each cause, by its key. Times are Trio's."""

    _causes: Bounded[str, _CauseTimes] = attrs.field(
        factory=lambda: Bounded(MAX_CAUSES), init=False
    )

    def lasted(self, key: str) -> float:
        """Record that the cause exists now; return for how many seconds it has."""
        now = trio.current_time()
        cause = self._causes.get(key)
        if cause is None or now - cause.last > SILENCE:
            cause = self._causes[key] = _CauseTimes(now, now)
        cause.last = now
        return now - cause.since

    def forget(self, key: str) -> None:
        """Forget a cause that was fixed."""
        self._causes.pop(key, None)

    def lasting(self) -> dict[str, float]:
        """Seconds for which each cause has lasted, of those noted in the last `RECENT` seconds."""
        now = trio.current_time()
        return {
            key: now - one.since for key, one in self._causes.items() if now - one.last <= RECENT
        }
