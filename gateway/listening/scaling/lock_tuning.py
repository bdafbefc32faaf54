"""Recommends a lock duration, by the share of settlements that were too late."""

from collections import deque
from typing import Final

import attrs
from attrs import validators

SAMPLES: Final = 100  # the last settlements that are judged
ENOUGH: Final = 20  # settlements before the first recommendation
TOLERATED: Final = 0.05  # the share that may come too late
HEADROOM: Final = 2.0  # a lock should last this many times the work
LONGEST: Final = 7 * 24 * 3600.0  # seconds: what Storage Queue allows


@attrs.frozen(kw_only=True)
class LockAdvice:
    """A recommended `lock` in seconds, because `late_share` of the settlements were too late."""

    lock: float
    late_share: float


@attrs.define(eq=False, kw_only=True, on_setattr=attrs.setters.NO_OP)
class LockTuning:
    """Watches the settlements of one queue. It only ever recommends longer locks."""

    # Seconds, at present. Validated once only, since fields are set for each message.
    lock: float = attrs.field(validator=validators.gt(0.0))
    _late: deque[bool] = attrs.field(factory=lambda: deque(maxlen=SAMPLES), init=False)
    _late_ones: int = attrs.field(default=0, init=False)  # of those
    _longest: float = attrs.field(default=0.0, init=False)  # work, in seconds

    @property
    def late_share(self) -> float:
        return self._late_ones / len(self._late) if self._late else 0.0

    def observe(self, lock: float) -> None:
        """Record that a message arrived with a lock of that many seconds."""
        self.lock = max(self.lock, lock)

    def record(self, *, late: bool, work: float) -> LockAdvice | None:
        """Record a settlement after `work` seconds; return a recommendation, if there is one."""
        if len(self._late) == SAMPLES:
            self._late_ones -= self._late[0]
        self._late.append(late)
        self._late_ones += late
        self._longest = max(self._longest, work)
        share = self.late_share
        if len(self._late) < ENOUGH or share <= TOLERATED:
            return None
        self.lock = min(LONGEST, max(2.0 * self.lock, HEADROOM * self._longest))
        self._late.clear()
        self._late_ones = 0
        return LockAdvice(lock=self.lock, late_share=share)
