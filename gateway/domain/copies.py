"""
The way of one copy of a backlog message through the syphon.

    NEW ──delivered──> RECEIVED ──handed over──> SENDING ──accepted──> SENT ──completed──> NEW
                       RECEIVED <────failed───── SENDING
    NEW <─dead-letter─ RECEIVED ──suspended──> SUSPENDED ──released──> NEW
                       RECEIVED <──delivered── SUSPENDED

A copy is completed on the backlog only in SENT, when the primary has accepted it: that order loses
no message. A copy that is delivered again is sent again only if it is NEW or SUSPENDED: that rule
avoids duplicates.

    event                            reported by, in `pairing.syphon`
    DELIVERED                        `Drain._open_all`, which asks `Mover.claim` for the step
    HANDED_OVER, ACCEPTED, FAILED    `Mover._transfer`
    SUSPENDED                        `Mover.move`, as soon as the entity is suspended
    RELEASED                         `Drain._release`, when the entity resumes; `Drain._suspend`, of
                                     copies whose locks have expired or that are too many
    COMPLETED                        `Mover._complete_all`; `Mover.complete`, if delivered again
    DEAD_LETTERED                    `Mover._dead_letter_all`

Rule 1: everything that decides what the syphon does with a delivered copy is in this file.
Rule 2: this file knows neither clocks nor tasks. Locks, batches and backoffs are the syphon's:
`pairing/syphon/mover.py` renews the locks, and `clocks/lock_ends.py` reads when they end. A renewal
that fails stops nothing: the send goes on, and the copy is delivered again.
"""

import enum
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

MAX_SENT: Final = 100_000  # copies; beyond it the oldest is forgotten: a duplicate, never a loss

CopyId = tuple[str, int, str]
"""Identifies a copy on the backlog: key of the queue, sequence number, attempt or message id."""


class CopyState(enum.Enum):
    NEW = "new"  # not in the syphon: never received; or completed, dead-lettered or released
    RECEIVED = "received"  # locked by the syphon, and waits for its send
    SENDING = "sending"  # handed over to the primary, without an answer
    SENT = "sent"  # accepted by the primary; its completion on the backlog isn't confirmed
    SUSPENDED = "suspended"  # locked while its entity is suspended; only a handle is kept

    # Hashed for each message: by identity, which is faster than Enum's own hash.
    __hash__ = object.__hash__


class CopyEvent(enum.Enum):
    DELIVERED = "delivered"  # the backlog delivered the copy, for the first time or again
    HANDED_OVER = "handed over"  # a send to the primary begins
    ACCEPTED = "accepted"  # the primary accepted that send
    FAILED = "failed"  # that send failed, or its outcome is unknown
    SUSPENDED = "suspended"  # its entity backs off, or is failed over
    RELEASED = "released"  # a suspended copy was abandoned, or its lock has expired
    COMPLETED = "completed"  # the backlog confirmed its completion
    DEAD_LETTERED = "dead-lettered"  # the copy can never be moved, and is dead-lettered now

    __hash__ = object.__hash__


class CopyStep(enum.Enum):
    """The next action of the syphon on a delivered copy."""

    MOVE = "move"  # to the primary
    KEEP = "keep"  # only use its new lock: the copy is already on its way
    COMPLETE = "complete"  # on the backlog: the primary has it


N, R, S, A, B = (
    CopyState.NEW,
    CopyState.RECEIVED,
    CopyState.SENDING,
    CopyState.SENT,
    CopyState.SUSPENDED,
)
E = CopyEvent

# The theory. Two questions are asked of a copy that is delivered: may it be on its way, and may the
# primary have it? RECEIVED and SENDING answer the first with yes, so a new delivery only renews the
# lock. They are two states because a failed send may be repeated, and one in progress not.
# SENT answers the second: the lock may end before its completion is confirmed, and then only the
# completion is repeated. SUSPENDED isn't NEW, because its lock is still ours and must be released;
# and it isn't RECEIVED, because the body is dropped and a new delivery has to bring it.
#
# An event that doesn't fit the state is late, and changes nothing.
# fmt: off
TRANSITIONS: Final[dict[CopyState, dict[CopyEvent, CopyState]]] = {
    N: {E.DELIVERED: R, E.HANDED_OVER: N, E.ACCEPTED: N, E.FAILED: N,
        E.SUSPENDED: N, E.RELEASED: N, E.COMPLETED: N, E.DEAD_LETTERED: N},
    R: {E.DELIVERED: R, E.HANDED_OVER: S, E.ACCEPTED: R, E.FAILED: R,
        E.SUSPENDED: B, E.RELEASED: R, E.COMPLETED: R, E.DEAD_LETTERED: N},
    S: {E.DELIVERED: S, E.HANDED_OVER: S, E.ACCEPTED: A, E.FAILED: R,
        E.SUSPENDED: S, E.RELEASED: S, E.COMPLETED: S, E.DEAD_LETTERED: S},
    A: {E.DELIVERED: A, E.HANDED_OVER: A, E.ACCEPTED: A, E.FAILED: A,
        E.SUSPENDED: A, E.RELEASED: A, E.COMPLETED: N, E.DEAD_LETTERED: A},
    # DELIVERED: the lock has expired. The handle that is still kept isn't valid any more.
    B: {E.DELIVERED: R, E.HANDED_OVER: B, E.ACCEPTED: B, E.FAILED: B,
        E.SUSPENDED: B, E.RELEASED: N, E.COMPLETED: B, E.DEAD_LETTERED: B},
}
# fmt: on

ON_DELIVERY: Final = {
    N: CopyStep.MOVE,
    R: CopyStep.KEEP,
    S: CopyStep.KEEP,
    A: CopyStep.COMPLETE,
    B: CopyStep.MOVE,
}


@attrs.define(eq=False)
class Copies:
    """The states of all copies in one syphon. Those that are NEW need no memory."""

    max_sent: int = MAX_SENT
    _states: dict[CopyId, CopyState] = attrs.field(factory=dict, init=False)  # but for SENT
    _sent: OrderedDict[CopyId, None] = attrs.field(factory=OrderedDict, init=False)

    def state_of(self, copy: CopyId) -> CopyState:
        return self._states.get(copy) or (A if copy in self._sent else N)

    def deliver(self, copy: CopyId) -> CopyStep:
        """Record that the backlog delivered the copy; return what the syphon must do with it."""
        before = self.state_of(copy)
        after = TRANSITIONS[before][CopyEvent.DELIVERED]
        if after is not before:
            self._set(copy, before, after)
        return ON_DELIVERY[before]

    def advance(self, event: CopyEvent, copies: Iterable[CopyId]) -> None:
        """Advance the state of each copy by that event."""
        states, sent = self._states, self._sent
        for copy in copies:
            before = states.get(copy) or (A if copy in sent else N)
            after = TRANSITIONS[before][event]
            if after is not before:
                self._set(copy, before, after)

    def counts(self) -> Mapping[CopyState, int]:
        """The number of copies in each state but NEW."""
        counted = Counter(self._states.values())
        counted[A] = len(self._sent)
        return {state: counted[state] for state in CopyState if state is not N}

    def forget_unsent(self, queue: str) -> None:
        """
        Forget the copies of a queue that aren't SENT, because its receiver was closed, which
        released their locks. `queue` is the key of the queue.
        """
        self._states = {copy: state for copy, state in self._states.items() if copy[0] != queue}

    def _set(self, copy: CopyId, before: CopyState, after: CopyState) -> None:
        if after is A:
            del self._states[copy]
            self._sent[copy] = None
            if len(self._sent) > self.max_sent:
                self._sent.popitem(last=False)
        elif after is not N:
            self._states[copy] = after
        elif before is A:
            del self._sent[copy]
        else:
            del self._states[copy]
