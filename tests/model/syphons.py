"""The steps of a syphon: lock a copy, ask the primary, settle the copy. In this order."""

from collections.abc import Callable, Iterator
from typing import Final

from tests.model.protocol import (
    FREE,
    GONE,
    IDLE_SYPHON,
    Design,
    Hand,
    Message,
    Phase,
    Step,
    Syphon,
    SyphonStep,
    arrived,
    with_owner,
)


def syphon_steps(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    """What that syphon may do next with that message, and what may happen to it."""
    syphon = hand.syphon
    if syphon.stale and _owns(hand):
        # A settlement of an earlier copy arrives, and hits what is locked by now.
        yield _settle(hand._replace(syphon=syphon._replace(stale=False)), Phase.IDLE)
    if syphon.phase in STEPS:
        yield from STEPS[syphon.phase](hand, design)
    if syphon.phase is not Phase.IDLE:
        yield from _troubles(hand, design)


def _lock(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    syphon, index, message = hand.syphon, hand.of, hand.message
    for copy, owner in enumerate(message.copies):
        if owner != FREE:
            continue
        done = _key(index, copy, design) in syphon.remembered  # so that only settling is left
        phase = Phase.ACCEPTED if done else Phase.LOCKED
        locked = Syphon(phase, index, copy, syphon.remembered, syphon.stale)
        yield Step.LOCK, locked, with_owner(message, copy, hand.number), 0


def _locked(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    if design.settles_first:
        yield _settle(hand, Phase.SETTLED_FIRST)
        return
    yield Step.TRANSFER, hand.syphon._replace(phase=Phase.ASKED), hand.message, 0
    if not design.keeps_what_is_refused:
        yield _give_back(Step.GIVE_BACK, hand)


def _settled_first(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    yield Step.TRANSFER, hand.syphon._replace(phase=Phase.ASKED), hand.message, 0


def _asked(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    syphon, message = hand.syphon, hand.message
    yield Step.APPLY, syphon._replace(phase=Phase.APPLIED), arrived(message), 0
    if design.keeps_what_is_refused:
        yield Step.TRANSFER_REFUSED, syphon._replace(phase=Phase.KEPT), message, 0
    else:
        yield _give_back(Step.TRANSFER_REFUSED, hand)
    if design.sends_again_at_once:
        yield Step.TRANSFER, syphon, _late(message), 0


def _applied(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    accepted = hand.syphon._replace(phase=Phase.ACCEPTED)
    after = IDLE_SYPHON if design.settles_first else accepted
    yield Step.TRANSFER_ACCEPTED, after, hand.message, 0


def _accepted(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    if _owns(hand):
        yield _settle(hand, Phase.IDLE)
        return
    refused = _remembering(hand.syphon, design)._replace(stale=design.settles_by_number)
    yield Step.SETTLE_REFUSED, _emptied(refused), hand.message, 0


STEPS: Final[dict[Phase, Callable[[Hand, Design], Iterator[SyphonStep]]]] = {
    Phase.IDLE: _lock,
    Phase.LOCKED: _locked,
    Phase.SETTLED_FIRST: _settled_first,
    Phase.ASKED: _asked,
    Phase.APPLIED: _applied,
    Phase.ACCEPTED: _accepted,
}


def _troubles(hand: Hand, design: Design) -> Iterator[SyphonStep]:
    syphon, message = hand.syphon, hand.message
    more = message._replace(allowed=message.allowed + 1)
    charged = hand._replace(message=_late(more) if syphon.phase is Phase.ASKED else more)
    if syphon.phase in {Phase.ASKED, Phase.APPLIED}:
        if design.unknown_is_accepted:
            believing = syphon._replace(phase=Phase.ACCEPTED)
            yield Step.TRANSFER_UNKNOWN, believing, charged.message, 1
        else:
            yield _give_back(Step.TRANSFER_UNKNOWN, charged, troubles=1)
    # Its lock runs out some time; that may as well be at once.
    dead = charged._replace(syphon=syphon._replace(remembered=(), stale=False))
    yield _give_back(Step.KILL_SYPHON, dead, troubles=1)
    if not _owns(hand):
        return
    yield Step.LOCK_EXPIRES, syphon, with_owner(more, syphon.copy, FREE), 1
    if syphon.phase is Phase.ACCEPTED:
        known = charged._replace(syphon=_remembering(syphon, design))
        yield _give_back(Step.SETTLE_UNKNOWN, known, troubles=1)
        _, settled, gone, _ = _settle(charged, Phase.IDLE)
        yield Step.SETTLE_UNKNOWN, settled, gone, 1


def _owns(hand: Hand) -> bool:
    """Whether what it has in hand is still locked by it."""
    syphon = hand.syphon
    return syphon.phase is not Phase.IDLE and hand.message.copies[syphon.copy] == hand.number


def _settle(hand: Hand, phase: Phase) -> SyphonStep:
    """The copy in hand leaves the backlog."""
    syphon = hand.syphon
    done = (hand.of, syphon.copy)
    known = tuple(one for one in syphon.remembered if one != done)
    after = syphon._replace(phase=phase, remembered=known)
    gone = with_owner(hand.message, syphon.copy, GONE)
    return Step.SETTLE, _emptied(after) if phase is Phase.IDLE else after, gone, 0


def _give_back(step: Step, hand: Hand, troubles: int = 0) -> SyphonStep:
    """Its hand is empty; the copy is free, if it was still locked by it."""
    message = hand.message
    if _owns(hand):
        message = with_owner(message, hand.syphon.copy, FREE)
    return step, _emptied(hand.syphon), message, troubles


def _emptied(syphon: Syphon) -> Syphon:
    return syphon._replace(phase=Phase.IDLE, message=-1, copy=-1)


def _late(message: Message) -> Message:
    return message._replace(late_primary=message.late_primary + 1)


def _remembering(syphon: Syphon, design: Design) -> Syphon:
    known = {*syphon.remembered, _key(syphon.message, syphon.copy, design)}
    return syphon._replace(remembered=tuple(sorted(known)))


def _key(message: int, copy: int, design: Design) -> tuple[int, int]:
    return (-1 if design.remembers_numbers else message, copy)
