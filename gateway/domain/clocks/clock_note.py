"""
A store's note of the clocks: messages live on over a restart, whatever the wall clock does
meanwhile.

    the same boot      the time since the boot tells how far the wall clock was set, also while no
                       process ran. A large step joins the shift.
    another boot       nothing tells how long the machine was off. If the date of then or that of
                       now is before this program was built, or the date of now before that of then,
                       one of the two clocks is wrong: the own date of the store goes on where it
                       was. Else the wall clock is believed.
"""

import json
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.domain.clocks.clock_watch import LARGE
from gateway.domain.clocks.times import to_micros

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

    def goes_on(self, earlier: "ClockNote") -> bool:
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
