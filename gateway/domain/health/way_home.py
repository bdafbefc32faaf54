"""Tells if the backlog moves, who moves it or why nobody does, and when it will be empty."""

import enum
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.status.pair import PairStatus

_OUTAGE: Final = ("secondary", "half-open", "suspect")
MOVES: Final = timedelta(seconds=3)  # after its last message a syphon counts as moving
ELSEWHERE: Final = "another process moves them"
RECEIVES: Final = "another process receives from the backlog"
COUNTED: Final = "all that was counted has moved; the secondary hasn't told yet that none waits"


class WayHome(enum.Enum):
    """The state of the backlog, as one word."""

    EMPTY = "empty"
    MOVING = "moving"  # by the syphon of this process, or another one
    HELD_BACK = "held-back"  # by an operator
    WAITING = "waiting"  # for the primary, or for a retry
    STALLED = "stalled"
    ABSENT = "absent"  # nobody moves it
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class WayHomeProgress:
    """
    Tells if the backlog moves. `seconds_left` is the time until it is empty at the present rate;
    None: unknown, or it doesn't move.
    """

    state: WayHome
    why: str = ""  # for people; empty: nothing is to be explained
    seconds_left: float | None = None
    rate: float | None = None  # messages/s by which the depth falls; None: unknown, or it doesn't


def progress_of(pair: PairStatus, at: datetime) -> WayHomeProgress:
    """The progress that the figures of a status imply; `at` is their date."""
    if pair.backlog.is_empty:
        return WayHomeProgress(state=WayHome.EMPTY)
    if pair.primary_answers is False:
        return WayHomeProgress(state=WayHome.WAITING, why="the primary can't be reached")
    if (moving := _moving(pair, at)) is not None:
        return moving
    if pair.backlog.pending == 0:
        return WayHomeProgress(state=WayHome.WAITING, why=COUNTED)
    if (stopped := _stopped(pair)) is not None:
        return stopped
    return _waiting(pair) if pair.syphon.running else _elsewhere(pair, at)


def _stopped(pair: PairStatus) -> WayHomeProgress | None:
    """An operator or an outage stops the syphon, and no message moves."""
    if pair.syphon.pauses:
        return WayHomeProgress(state=WayHome.HELD_BACK, why="; ".join(pair.syphon.pauses))
    if troubled := sum(pair.troubled.get(state, 0) for state in _OUTAGE):
        why = f"the primary: {troubled} of its entities are in trouble"
        return WayHomeProgress(state=WayHome.WAITING, why=why)
    if pair.states.get("pinned", 0):
        why = "an operator pinned entities to the backlog"
        return WayHomeProgress(state=WayHome.HELD_BACK, why=why)
    if pair.pins:  # of a process without entities of its own
        why = f"an operator pinned {'; '.join(pair.pins)}"
        return WayHomeProgress(state=WayHome.HELD_BACK, why=why)
    return None


def _moving(pair: PairStatus, at: datetime) -> WayHomeProgress | None:
    """None: it doesn't move."""
    syphon, pending = pair.syphon, pair.backlog.pending
    # The readings of a secondary that tells late may fall still when all has moved.
    falls = None if pending == 0 else pair.backlog.decrease_rate
    is_here = syphon.last_moved is not None and at - syphon.last_moved <= MOVES
    rate = falls or (syphon.rate if is_here else None)
    if not is_here and falls is None:
        return None
    left = pending / rate if rate and pending is not None else None
    alive = pair.backlog.syphons.text(at) if pair.backlog.syphons.alive else ELSEWHERE
    return WayHomeProgress(
        state=WayHome.MOVING, why="" if is_here else alive, seconds_left=left, rate=rate
    )


def _elsewhere(pair: PairStatus, at: datetime) -> WayHomeProgress:
    """No syphon runs in this process, and no message has moved lately."""
    backlog, syphons = pair.backlog, pair.backlog.syphons
    if syphons.alive:
        return _by_others(pair, syphons.text(at))
    if backlog.pending is None:
        return WayHomeProgress(state=WayHome.UNKNOWN, why=backlog.unknown)
    if backlog.consumers or syphons.consumers:
        return WayHomeProgress(state=WayHome.WAITING, why=RECEIVES)
    if backlog.falls(at):
        return WayHomeProgress(state=WayHome.WAITING, why=f"the depth fell lately: {ELSEWHERE}")
    why = "no syphon runs in this process, and the depth doesn't fall"
    if not syphons.unknown:
        why = syphons.text(at)
    return WayHomeProgress(state=WayHome.ABSENT, why=why)


def _by_others(pair: PairStatus, why: str) -> WayHomeProgress:
    """Other processes have syphons, and tell of them. The depth doesn't fall, or isn't known."""
    backlog = pair.backlog
    if not backlog.syphons.moves:
        return WayHomeProgress(state=WayHome.HELD_BACK, why=why)
    if not (rate := backlog.syphons_rate):
        return WayHomeProgress(state=WayHome.WAITING, why=why)
    return WayHomeProgress(
        state=WayHome.MOVING,
        why=why,
        seconds_left=None if backlog.pending is None else backlog.pending / rate,
        rate=rate,
    )


def _waiting(pair: PairStatus) -> WayHomeProgress:
    """The syphon of this process has moved no message lately, and the primary is well."""
    syphon = pair.syphon
    if syphon.stalled:
        return WayHomeProgress(state=WayHome.STALLED, why=syphon.last_error or "no reason is known")
    if syphon.last_error:
        return WayHomeProgress(state=WayHome.WAITING, why=syphon.last_error)
    if pair.backlog.pending is None:
        return WayHomeProgress(state=WayHome.UNKNOWN, why=pair.backlog.unknown)
    return WayHomeProgress(state=WayHome.WAITING, why="no message has moved in the last 3 s")
