"""The steps of a syphon: lock a copy, ask the primary, settle the copy. In this order."""

from collections.abc import Callable, Iterator
from typing import Final

from gateway.testing.model.protocol import (
    FREE,
    GONE,
    RESTING,
    Design,
    Message,
    Move,
    Phase,
    State,
    Step,
    Syphon,
    arrived,
    with_message,
    with_owner,
    with_syphon,
)


def syphon_steps(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    """What that syphon may do next, and what may happen to it."""
    if syphon.stale and _owns(state, number):
        # A settlement of an earlier copy arrives, and hits what is locked by now.
        yield _settle(state, number, syphon._replace(stale=False), Phase.IDLE)
    if syphon.phase in STEPS:
        yield from STEPS[syphon.phase](state, number, syphon, design)
    if state.troubles and syphon.phase is not Phase.IDLE:
        yield from _troubles(state, number, syphon, design)


def _lock(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    for index, message in enumerate(state.messages):
        for copy, owner in enumerate(message.copies):
            if owner != FREE:
                continue
            done = _key(index, copy, design) in syphon.remembered  # so that only settling is left
            phase = Phase.ACCEPTED if done else Phase.LOCKED
            taken = with_message(state, index, with_owner(message, copy, number))
            locked = Syphon(phase, index, copy, syphon.remembered, syphon.stale)
            yield (Step.LOCK, index, number), with_syphon(taken, number, locked)


def _locked(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    if design.settles_first:
        yield _settle(state, number, syphon, Phase.SETTLED_FIRST)
        return
    yield _to(Phase.ASKED, Step.TRANSFER, state, number, syphon)
    if not design.keeps_what_is_refused:
        yield _give_back(Step.GIVE_BACK, state, number, syphon)


def _settled_first(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    yield _to(Phase.ASKED, Step.TRANSFER, state, number, syphon)


def _asked(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    message = state.messages[syphon.message]
    applied = with_message(state, syphon.message, arrived(message))
    yield _to(Phase.APPLIED, Step.APPLY, applied, number, syphon)
    if design.keeps_what_is_refused:
        yield _to(Phase.KEPT, Step.TRANSFER_REFUSED, state, number, syphon)
    else:
        yield _give_back(Step.TRANSFER_REFUSED, state, number, syphon)
    if design.sends_again_at_once:
        again = with_message(state, syphon.message, _late(message))
        yield _to(Phase.ASKED, Step.TRANSFER, again, number, syphon)


def _applied(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    if design.settles_first:
        label = (Step.TRANSFER_ACCEPTED, syphon.message, number)
        yield label, with_syphon(state, number, RESTING)
    else:
        yield _to(Phase.ACCEPTED, Step.TRANSFER_ACCEPTED, state, number, syphon)


def _accepted(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    if _owns(state, number):
        yield _settle(state, number, syphon, Phase.IDLE)
        return
    label = (Step.SETTLE_REFUSED, syphon.message, number)
    refused = _remembering(syphon, design)._replace(stale=design.settles_by_number)
    idle = refused._replace(phase=Phase.IDLE, message=-1, copy=-1)
    yield label, with_syphon(state, number, idle)


STEPS: Final[dict[Phase, Callable[[State, int, Syphon, Design], Iterator[Move]]]] = {
    Phase.IDLE: _lock,
    Phase.LOCKED: _locked,
    Phase.SETTLED_FIRST: _settled_first,
    Phase.ASKED: _asked,
    Phase.APPLIED: _applied,
    Phase.ACCEPTED: _accepted,
}


def _troubles(state: State, number: int, syphon: Syphon, design: Design) -> Iterator[Move]:
    message = state.messages[syphon.message]
    more = message._replace(allowed=message.allowed + 1)
    left = _late(more) if syphon.phase is Phase.ASKED else more
    charged = with_message(state, syphon.message, left)
    if syphon.phase in {Phase.ASKED, Phase.APPLIED}:
        if design.unknown_is_accepted:
            yield _to(Phase.ACCEPTED, Step.TRANSFER_UNKNOWN, charged, number, syphon, troubles=1)
        else:
            yield _give_back(Step.TRANSFER_UNKNOWN, charged, number, syphon, troubles=1)
    # Its lock runs out some time; that may as well be at once.
    dead = syphon._replace(remembered=(), stale=False)
    yield _give_back(Step.KILL_SYPHON, charged, number, dead, troubles=1)
    if not _owns(state, number):
        return
    freed = with_owner(more, syphon.copy, FREE)
    label = (Step.LOCK_EXPIRES, syphon.message, number)
    yield label, with_message(state, syphon.message, freed, troubles=1)
    if syphon.phase is Phase.ACCEPTED:
        charged = with_message(state, syphon.message, more)
        known = _remembering(syphon, design)
        yield _give_back(Step.SETTLE_UNKNOWN, charged, number, known, troubles=1)
        (_, of, _), settled = _settle(charged, number, syphon, Phase.IDLE)
        after = State(settled.messages, settled.syphons, settled.troubles - 1)
        yield (Step.SETTLE_UNKNOWN, of, number), after


def _owns(state: State, number: int) -> bool:
    """Whether what it has in hand is still locked by it."""
    syphon = state.syphons[number]
    if syphon.phase is Phase.IDLE:
        return False
    return state.messages[syphon.message].copies[syphon.copy] == number


def _to(
    phase: Phase, step: Step, state: State, number: int, syphon: Syphon, troubles: int = 0
) -> Move:
    label = (step, syphon.message, number)
    return label, with_syphon(state, number, syphon._replace(phase=phase), troubles=troubles)


def _settle(state: State, number: int, syphon: Syphon, phase: Phase) -> Move:
    """The copy in hand leaves the backlog."""
    gone = with_owner(state.messages[syphon.message], syphon.copy, GONE)
    done = (syphon.message, syphon.copy)
    known = tuple(one for one in syphon.remembered if one != done)
    after = syphon._replace(phase=phase, remembered=known)
    if phase is Phase.IDLE:
        after = after._replace(message=-1, copy=-1)
    label = (Step.SETTLE, syphon.message, number)
    return label, with_syphon(with_message(state, syphon.message, gone), number, after)


def _give_back(step: Step, state: State, number: int, syphon: Syphon, troubles: int = 0) -> Move:
    """Its hand is empty; the copy is free, if it was still locked by it."""
    if _owns(state, number):
        freed = with_owner(state.messages[syphon.message], syphon.copy, FREE)
        state = with_message(state, syphon.message, freed)
    label = (step, syphon.message, number)
    idle = syphon._replace(phase=Phase.IDLE, message=-1, copy=-1)
    return label, with_syphon(state, number, idle, troubles=troubles)


def _late(message: Message) -> Message:
    return message._replace(late_primary=message.late_primary + 1)


def _remembering(syphon: Syphon, design: Design) -> Syphon:
    known = {*syphon.remembered, _key(syphon.message, syphon.copy, design)}
    return syphon._replace(remembered=tuple(sorted(known)))


def _key(message: int, copy: int, design: Design) -> tuple[int, int]:
    return (-1 if design.remembers_numbers else message, copy)
