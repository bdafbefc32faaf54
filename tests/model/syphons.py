"""The steps of a syphon: lock a copy, ask the primary, settle the copy. In this order."""

from collections.abc import Callable, Iterator
from typing import Final

from tests.model.protocol import (
    FREE,
    GONE,
    IDLE_SYPHON,
    Design,
    Message,
    Phase,
    Step,
    Syphon,
    SyphonStep,
    View,
    arrived,
    with_owner,
)


def syphon_steps(view: View, design: Design) -> Iterator[SyphonStep]:
    """Yield the next steps of that syphon with that message, and the troubles that may hit it."""
    syphon = view.syphon
    if syphon.stale and _owns(view):
        # A settlement of an earlier copy arrives, and applies to the copy that is locked then.
        yield _settle(view._replace(syphon=syphon._replace(stale=False)), Phase.IDLE)
    if syphon.phase in STEPS:
        yield from STEPS[syphon.phase](view, design)
    if syphon.phase is not Phase.IDLE:
        yield from _troubles(view, design)


def _lock(view: View, design: Design) -> Iterator[SyphonStep]:
    syphon, index, message = view.syphon, view.of, view.message
    for copy, owner in enumerate(message.copies):
        if owner != FREE:
            continue
        done = _key(index, copy, design) in syphon.remembered  # so that only the settlement is left
        phase = Phase.ACCEPTED if done else Phase.LOCKED
        locked = Syphon(phase, index, copy, syphon.remembered, syphon.stale)
        yield Step.LOCK, locked, with_owner(message, copy, view.number), 0


def _locked(view: View, design: Design) -> Iterator[SyphonStep]:
    if design.settles_first:
        yield _settle(view, Phase.SETTLED_FIRST)
        return
    yield Step.TRANSFER, view.syphon._replace(phase=Phase.ASKED), view.message, 0
    if not design.keeps_what_is_refused:
        yield _give_back(Step.GIVE_BACK, view)


def _settled_first(view: View, design: Design) -> Iterator[SyphonStep]:
    yield Step.TRANSFER, view.syphon._replace(phase=Phase.ASKED), view.message, 0


def _asked(view: View, design: Design) -> Iterator[SyphonStep]:
    syphon, message = view.syphon, view.message
    yield Step.APPLY, syphon._replace(phase=Phase.APPLIED), arrived(message), 0
    if design.keeps_what_is_refused:
        yield Step.TRANSFER_REFUSED, syphon._replace(phase=Phase.KEPT), message, 0
    else:
        yield _give_back(Step.TRANSFER_REFUSED, view)
    if design.sends_again_at_once:
        yield Step.TRANSFER, syphon, _late(message), 0


def _applied(view: View, design: Design) -> Iterator[SyphonStep]:
    accepted = view.syphon._replace(phase=Phase.ACCEPTED)
    after = IDLE_SYPHON if design.settles_first else accepted
    yield Step.TRANSFER_ACCEPTED, after, view.message, 0


def _accepted(view: View, design: Design) -> Iterator[SyphonStep]:
    if _owns(view):
        yield _settle(view, Phase.IDLE)
        return
    refused = _remembering(view.syphon, design)._replace(stale=design.settles_by_number)
    yield Step.SETTLE_REFUSED, _emptied(refused), view.message, 0


STEPS: Final[dict[Phase, Callable[[View, Design], Iterator[SyphonStep]]]] = {
    Phase.IDLE: _lock,
    Phase.LOCKED: _locked,
    Phase.SETTLED_FIRST: _settled_first,
    Phase.ASKED: _asked,
    Phase.APPLIED: _applied,
    Phase.ACCEPTED: _accepted,
}


def _troubles(view: View, design: Design) -> Iterator[SyphonStep]:
    syphon, message = view.syphon, view.message
    more = message._replace(allowed=message.allowed + 1)
    charged = view._replace(message=_late(more) if syphon.phase is Phase.ASKED else more)
    if syphon.phase in {Phase.ASKED, Phase.APPLIED}:
        if design.unknown_is_accepted:
            believing = syphon._replace(phase=Phase.ACCEPTED)
            yield Step.TRANSFER_UNKNOWN, believing, charged.message, 1
        else:
            yield _give_back(Step.TRANSFER_UNKNOWN, charged, troubles=1)
    # The lock of a dead syphon expires some time, which may as well be at once.
    dead = charged._replace(syphon=syphon._replace(remembered=(), stale=False))
    yield _give_back(Step.KILL_SYPHON, dead, troubles=1)
    if not _owns(view):
        return
    yield Step.LOCK_EXPIRES, syphon, with_owner(more, syphon.copy, FREE), 1
    if syphon.phase is Phase.ACCEPTED:
        known = charged._replace(syphon=_remembering(syphon, design))
        yield _give_back(Step.SETTLE_UNKNOWN, known, troubles=1)
        _, settled, gone, _ = _settle(charged, Phase.IDLE)
        yield Step.SETTLE_UNKNOWN, settled, gone, 1


def _owns(view: View) -> bool:
    """True if the syphon still has the lock of its copy."""
    syphon = view.syphon
    return syphon.phase is not Phase.IDLE and view.message.copies[syphon.copy] == view.number


def _settle(view: View, phase: Phase) -> SyphonStep:
    """The syphon's copy leaves the backlog."""
    syphon = view.syphon
    done = (view.of, syphon.copy)
    known = tuple(one for one in syphon.remembered if one != done)
    after = syphon._replace(phase=phase, remembered=known)
    gone = with_owner(view.message, syphon.copy, GONE)
    return Step.SETTLE, _emptied(after) if phase is Phase.IDLE else after, gone, 0


def _give_back(step: Step, view: View, troubles: int = 0) -> SyphonStep:
    """The syphon has no copy any more; the copy is free, if the syphon still had its lock."""
    message = view.message
    if _owns(view):
        message = with_owner(message, view.syphon.copy, FREE)
    return step, _emptied(view.syphon), message, troubles


def _emptied(syphon: Syphon) -> Syphon:
    return syphon._replace(phase=Phase.IDLE, message=-1, copy=-1)


def _late(message: Message) -> Message:
    return message._replace(late_primary=message.late_primary + 1)


def _remembering(syphon: Syphon, design: Design) -> Syphon:
    known = {*syphon.remembered, _key(syphon.message, syphon.copy, design)}
    return syphon._replace(remembered=tuple(sorted(known)))


def _key(message: int, copy: int, design: Design) -> tuple[int, int]:
    return (-1 if design.remembers_numbers else message, copy)
