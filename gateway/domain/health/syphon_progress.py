"""Tells if the backlog moves, why not, and when it will be empty."""

import enum
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.status.pair import PairStatus

_OUTAGE: Final = ("secondary", "half-open", "suspect")


class Movement(enum.Enum):
    """The backlog, as one word."""

    EMPTY = "empty"
    MOVING = "moving"
    WAITING = "waiting"  # for the primary, or for a retry
    PAUSED = "paused"  # by an operator
    STALLED = "stalled"
    ELSEWHERE = "elsewhere"  # another process moves it
    ABSENT = "absent"  # nothing moves it
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class SyphonProgress:
    """
    Tells if the backlog moves. `seconds_left` is the time until it is empty at the present rate;
    None: unknown, or it doesn't move.
    """

    state: Movement
    why: str = ""  # for people; empty: nothing is to be explained
    seconds_left: float | None = None


def progress_of(pair: PairStatus, at: datetime) -> SyphonProgress:
    """The progress that the figures of a status imply; `at` is their date."""
    syphon, pending = pair.syphon, pair.backlog.pending
    if syphon.rate > 0.0:
        left = None if pending is None else pending / syphon.rate
        return SyphonProgress(state=Movement.MOVING, seconds_left=left)
    if pending == 0:
        return SyphonProgress(state=Movement.EMPTY)
    if syphon.pauses:
        return SyphonProgress(state=Movement.PAUSED, why="; ".join(syphon.pauses))
    if not syphon.running:
        return _elsewhere(pair, at)
    if syphon.stalled:
        return SyphonProgress(state=Movement.STALLED, why=syphon.last_error or "no reason is known")
    return _waiting(pair)


def _elsewhere(pair: PairStatus, at: datetime) -> SyphonProgress:
    backlog = pair.backlog
    if backlog.syphons.alive and backlog.syphons.moves:
        return SyphonProgress(state=Movement.ELSEWHERE, why=backlog.syphons.text(at))
    if backlog.consumers:
        return SyphonProgress(
            state=Movement.ELSEWHERE, why="another process receives from the backlog"
        )
    if backlog.falls(at):
        return SyphonProgress(
            state=Movement.ELSEWHERE, why="the depth has fallen in the last 60 s: another process"
        )
    if backlog.pending is None:
        return SyphonProgress(state=Movement.UNKNOWN, why="the secondary doesn't report its depth")
    why = "no syphon runs in this process, and the depth doesn't fall"
    if not backlog.syphons.unknown:
        why = backlog.syphons.text(at)
    return SyphonProgress(state=Movement.ABSENT, why=why)


def _waiting(pair: PairStatus) -> SyphonProgress:
    troubled = sum(pair.states.get(state, 0) for state in _OUTAGE)
    if troubled:
        why = f"the primary: {troubled} of its entities are in trouble"
        return SyphonProgress(state=Movement.WAITING, why=why)
    if pair.syphon.last_error:
        return SyphonProgress(state=Movement.WAITING, why=pair.syphon.last_error)
    if pair.states.get("pinned", 0):
        why = "an operator pinned entities to the backlog"
        return SyphonProgress(state=Movement.WAITING, why=why)
    if pair.backlog.pending is None:
        return SyphonProgress(state=Movement.UNKNOWN, why="the secondary doesn't report its depth")
    return SyphonProgress(state=Movement.WAITING, why="no message has moved in the last 10 s")
