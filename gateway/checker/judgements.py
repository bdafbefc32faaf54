"""The decisions of the checker, and their texts."""

import enum
from collections.abc import Sequence

import attrs


class Invariant(enum.Enum):
    """S (safety): must hold at all times. L (liveness): must come true once all faults are over."""

    S1 = "nothing acknowledged is lost"
    S2 = "nothing arrives that nobody sent"
    S3 = "what was answered as not sent never arrives"
    S4 = "a message arrives as it was sent, with the life that it had left"
    S5 = "a message reaches its own entity, a fault only its own entities"
    S6 = "no more copies than unknown outcomes explain"
    S7 = "what was acknowledged survives a power cut"
    S8 = "the backlog is settled after the primary accepted, and what is settled stays away"
    S9 = "only an outage fails over"
    S10 = "an entity fails over neither before its interval is over nor much later"
    S11 = "the bytes in flight keep their bound"
    S12 = "no message comes before its date, none expires that has no end"
    S13 = "what is sent in order arrives in order"
    S14 = "a session has one receiver at a time, which completes each side's messages in order"
    L1 = "sends reach the primary again"
    L2 = "an entity comes back without traffic"
    L3 = "the backlog becomes empty"
    L4 = "one entity's trouble delays no other by more than a lock"
    L5 = "while one namespace is well no send waits long"
    L6 = "without traffic nothing is done"


class Validity(enum.Enum):
    HOLDS = "holds"
    BROKEN = "broken"
    IDLE = "idle"  # no event of this history could have broken it
    UNDECIDED = "undecided"  # the history lacks the records that would show it


@attrs.frozen(kw_only=True)
class Decision:
    """The decision on one invariant; `judged` counts the occasions that could have broken it."""

    invariant: Invariant
    validity: Validity
    judged: int = 0
    problems: tuple[str, ...] = ()  # how the invariant was broken, or why it is undecided


def decide(
    invariant: Invariant, judged: int, problems: Sequence[str], missing: str = ""
) -> Decision:
    """
    `missing` names records that the history lacks. A broken invariant is broken even without them.
    """
    if problems:
        return Decision(
            invariant=invariant, validity=Validity.BROKEN, judged=judged, problems=tuple(problems)
        )
    if missing:
        return undecided(invariant, missing)
    validity = Validity.HOLDS if judged else Validity.IDLE
    return Decision(invariant=invariant, validity=validity, judged=judged)


def undecided(invariant: Invariant, missing: str) -> Decision:
    return Decision(invariant=invariant, validity=Validity.UNDECIDED, problems=(missing,))
