"""
Damping of flapping entities: after a return that didn't last, the next one needs more successes.

Each return that is followed by a failure within `WINDOW` doubles the number of successes that the
next return needs, and the time for which they must be uninterrupted. Each healthy `WINDOW` undoes
one doubling. No clock: `now` is an argument, in seconds of any monotonic clock.
"""

from typing import Final

import attrs

# None of these is measured. They bound how soon a flapping entity returns: after 40, 80, 160 and at
# most 300 s without a failure. A longer proof than the window would outlast the memory of its
# cause.
WINDOW: Final = 300.0  # seconds
HIGHEST: Final = 5  # doublings: 2 successes, the default, are `MOST_SUCCESSES` after four
MOST_SUCCESSES: Final = 32  # unless the options require more
FIRST_PROOF: Final = 40.0  # seconds without a failure, after the first return that didn't last
LONGEST_PROOF: Final = WINDOW


@attrs.frozen(kw_only=True)
class Damping:
    """The flaps of an entity, as a level, and the time since which it has been healthy."""

    level: int = 0  # doublings
    well_since: float | None = None  # None: it is troubled, or never was
    on_trial: bool = False  # it returned by probes or trials, and hasn't failed since

    def successes(self, usual: int) -> int:
        """The number of consecutive successes that the next return needs."""
        return max(usual, min(MOST_SUCCESSES, usual << self.level))

    @property
    def proof(self) -> float:
        """Seconds for which the successes must be uninterrupted."""
        return min(LONGEST_PROOF, FIRST_PROOF * 2.0 ** (self.level - 1)) if self.level else 0.0

    def after_return(self, now: float) -> "Damping":
        """The damping after a return by probes or trials."""
        return attrs.evolve(self, well_since=now, on_trial=True)

    def after_recovery(self, now: float) -> "Damping":
        """The damping after a send succeeded before the failover, which isn't flapping."""
        if self.level == 0:
            return CALM
        return attrs.evolve(self, well_since=now, on_trial=False)

    def after_failure(self, now: float) -> "Damping":
        """The damping after a failure of a healthy entity."""
        if self.well_since is None:
            return self
        if self.on_trial and now - self.well_since < WINDOW:
            return Damping(level=min(HIGHEST, self.level + 1))
        return Damping(level=self._level_at(now))

    def shifted(self, seconds: float) -> "Damping":
        """The same by a clock that is ahead by that many seconds."""
        if self.well_since is None:
            return self
        return attrs.evolve(self, well_since=self.well_since + seconds)

    def is_over(self, now: float) -> bool:
        """True if the entity has been healthy for so long that its history doesn't matter."""
        if self.well_since is None:
            return self.level == 0
        return now - self.well_since >= WINDOW and self._level_at(now) == 0

    def _level_at(self, now: float) -> int:
        well = 0.0 if self.well_since is None else now - self.well_since
        return max(0, self.level - int(well // WINDOW))


CALM: Final = Damping()
