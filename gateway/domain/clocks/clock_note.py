"""
A store's note of the clocks: messages live on over a restart, whatever the wall clock does
meanwhile.

    the same boot      the time since the boot tells how far the wall clock was set, also while no
                       process ran. A large step joins the shift.
    another boot       nothing tells how long the machine was off. If the date of then or that of
                       now is before this program was built, or the date of now before that of then,
                       one of the two clocks is wrong: the own date of the store goes on where it
                       was. Else the wall clock is believed.

Steps of the wall clock are detected by comparison with a monotonic clock. A wrong date for a moment
must not expire every message that has a time to live. After a step the wall clock is therefore in
doubt for a minute, as either date, the one before the step or the one after it, may be wrong.

A large step corrects a clock that was wrong by days or years, as that of a machine that starts
without a battery; or it is a mistake itself. Lives are durations, so a namespace counts them on a
date of its own, which such a step doesn't move. It has no doubt about that date, and a step back
undoes the first one. A shorter step may be the end of a pause in which messages did age.
"""

import json
import math
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.domain.clocks.times import Now, to_micros

STEP: Final = 2.0  # seconds; less is drift
GRACE: Final = 60.0  # seconds for which a step may be a mistake that is corrected again
# Seconds. Nobody sets a clock so far by hand, and no time zone or summer time explains it. A
# machine that sleeps for longer finds its messages as old as they were.
LARGE: Final = 86_400.0


@attrs.define(eq=False)
class ClockWatch:
    """Watches one wall clock. A step is noticed at the next `moment_at`."""

    _offset: float | None = None  # of the wall clock to the monotonic one, at the last reading
    _before: float = 0.0  # the offset before the steps that are in doubt
    shift: int = 0  # microseconds, the sum of all large steps
    _shift_before: int = 0  # at `_before`
    _untrusted_until: float = -math.inf

    def moment_at(self, date: datetime, monotonic: float) -> Now:
        """The moment by both clocks, which were just read, with the date from before a step."""
        wall = to_micros(date)
        offset = wall / 1e6 - monotonic
        if self._offset is not None and abs(offset - self._offset) > STEP:
            if monotonic >= self._untrusted_until:
                self._before, self._shift_before = self._offset, self.shift
            if abs(offset - self._offset) > LARGE:
                self.shift += round((offset - self._offset) * 1e6)
            self._untrusted_until = monotonic + GRACE
        self._offset = offset
        if monotonic >= self._untrusted_until:
            return Now(wall, monotonic, self._untrusted_until, shift=self.shift)
        before = round((monotonic + self._before) * 1e6)
        return Now(wall, monotonic, self._untrusted_until, before, self.shift, self._shift_before)


# No version of this program was built earlier: a clock that shows an earlier date is wrong. The
# build that writes a date judges it, because a later build may have a later constant.
BUILT: Final = to_micros(datetime(2025, 1, 1, tzinfo=UTC))


@attrs.frozen
class Boot:
    """The machine's boot, and the microseconds since then, those of its sleep among them."""

    id: str
    elapsed: int


@attrs.frozen(kw_only=True)
class ClockNote:
    """Dates are microseconds since 1970. `seen` None: nothing was ever committed."""

    shift: int = 0  # as that of `Now`
    seen: int | None = None  # the wall clock at the last commit
    plausible: bool = True  # by the build that wrote `seen`
    boot: str = ""  # the id of the boot; "": not known
    ahead: int = 0  # the wall clock less the time since that boot

    def shift_at(self, wall: int, boot: Boot | None) -> int:
        """The shift of a store with this note that is opened at that date."""
        if boot is not None and boot.id == self.boot:
            step = wall - boot.elapsed - self.ahead
            return self.shift + (step if abs(step) > LARGE * 1e6 else 0)
        if self.seen is not None and (wall < max(BUILT, self.seen) or not self.plausible):
            return self.shift + wall - self.seen
        return self.shift

    def continues(self, earlier: "ClockNote") -> bool:
        """True if it tells of no boot and no large step since the earlier note."""
        return (self.boot, self.shift) == (earlier.boot, earlier.shift)


def note_of(wall: int, shift: int, boot: Boot | None) -> ClockNote:
    """The note of a commit at that date, with that shift."""
    return ClockNote(
        shift=shift,
        seen=wall,
        plausible=wall >= BUILT,
        boot="" if boot is None else boot.id,
        ahead=0 if boot is None else wall - boot.elapsed,
    )


def write_note(note: ClockNote) -> bytes:
    content = [note.shift, note.seen, note.plausible, note.boot, note.ahead]
    return json.dumps(content).encode()


def read_note(content: bytes) -> ClockNote:
    """The note as it was written; that of a store without one is empty."""
    if not content:
        return ClockNote()
    shift, seen, plausible, boot, ahead = json.loads(content)
    return ClockNote(shift=shift, seen=seen, plausible=plausible, boot=boot, ahead=ahead)
