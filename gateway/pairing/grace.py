"""Causes that keep messages on the backlog, and may be mended before the messages are parked."""

from typing import Final

import attrs
import trio

MAX_CAUSES: Final = 10_000  # beyond it the oldest is forgotten, and its grace begins again
SILENCE: Final = 3600.0  # seconds without a sign of a cause: it was mended meanwhile


@attrs.define(eq=False)
class _Cause:
    since: float
    last: float


@attrs.define(eq=False)
class Grace:
    """Since when each cause has lasted, by its key. All times are Trio's."""

    _causes: dict[str, _Cause] = attrs.field(factory=dict, init=False)

    def lasted(self, key: str) -> float:
        """Note that the cause is there now; return for how many seconds it has been."""
        now = trio.current_time()
        cause = self._causes.get(key)
        if cause is None or now - cause.last > SILENCE:
            self._forget_one()
            cause = self._causes[key] = _Cause(now, now)
        cause.last = now
        return now - cause.since

    def end(self, key: str) -> None:
        """The cause is gone."""
        self._causes.pop(key, None)

    def causes(self) -> dict[str, float]:
        """The causes of which there was a sign in the last hour, and since when each is there."""
        horizon = trio.current_time() - SILENCE
        return {key: one.since for key, one in self._causes.items() if one.last >= horizon}

    def _forget_one(self) -> None:
        if len(self._causes) >= MAX_CAUSES:
            del self._causes[next(iter(self._causes))]
