"""
The protocol as an executable model: its states. `steps.py` has every step between them.

    producer ── send ──▶ primary                          a copy arrives
                  └────▶ backlog: copies ──▶ syphon ──▶ primary

The states are left out. A send may try primary or backlog at any time, so that what is shown here
holds whatever they say. A request is asked for, then applied, then answered; between any two of
these anything may happen. A request whose sender has gone may be applied late, or never.

Faults cost one of the troubles that a history has: an answer that gets lost, a process that is
killed, a lock that runs out under a living syphon. What is only slow costs nothing.
"""

import enum
from typing import Final, NamedTuple

import attrs


class Send(enum.IntEnum):
    """The progress of a producer's message."""

    IDLE = 0
    OPEN = 1  # the gateway has it, and nothing is on its way
    PRIMARY_ASKED = 2
    PRIMARY_APPLIED = 3  # the answer is on its way
    BACKLOG_ASKED = 4
    BACKLOG_APPLIED = 5
    TAKEN = 6  # a broker said so; the producer doesn't know yet
    ACKED = 7
    UNKNOWN = 8
    FAILED = 9


class Phase(enum.IntEnum):
    """The phases of a syphon."""

    IDLE = 0
    LOCKED = 1
    ASKED = 2  # the primary
    APPLIED = 3
    ACCEPTED = 4  # the primary said so; the copy isn't settled yet
    SETTLED_FIRST = 5  # only where a design is wrong: settled, and not sent yet
    KEPT = 6  # only where a design is wrong: refused, and locked for ever


class Step(enum.Enum):
    """The label of a step; those with a star are seen from outside."""

    INVOKE = "the producer sends"  # *
    ASK_PRIMARY = "the gateway asks the primary"
    ASK_BACKLOG = "the gateway asks the backlog"
    APPLY = "the request is applied"
    PRIMARY_ACCEPTS = "the primary accepts"  # *
    PRIMARY_REFUSES = "the primary refuses"  # *
    PRIMARY_UNKNOWN = "the primary's answer is lost"  # *
    BACKLOG_ACCEPTS = "the backlog accepts"  # *
    BACKLOG_REFUSES = "the backlog refuses"  # *
    BACKLOG_UNKNOWN = "the backlog's answer is lost"  # *
    ANSWER_ACKED = "the producer hears: accepted"  # *
    ANSWER_FAILED = "the producer hears: not sent"  # *
    ANSWER_UNKNOWN = "the producer hears: unknown"  # *
    KILL_GATEWAY = "the gateway is killed"
    LATE_ARRIVES = "a late request is applied"
    LOCK = "a syphon locks a copy"
    TRANSFER = "a syphon asks the primary"
    TRANSFER_ACCEPTED = "the primary accepts the transfer"  # *
    TRANSFER_REFUSED = "the primary refuses the transfer"  # *
    TRANSFER_UNKNOWN = "the transfer's answer is lost"  # *
    GIVE_BACK = "a syphon gives a copy back"
    SETTLE = "a syphon settles a copy"  # *
    SETTLE_REFUSED = "a settlement is refused: the lock is lost"
    SETTLE_UNKNOWN = "the settlement's answer is lost"
    LOCK_EXPIRES = "a lock runs out"
    KILL_SYPHON = "a syphon is killed"


GONE: Final = -2  # a copy that was settled
FREE: Final = -1  # else: the number of the syphon that has locked it


class Message(NamedTuple):
    send: Send
    tainted: bool  # an attempt of this send had no answer
    allowed: int  # copies that may still arrive: one, and one for each trouble
    arrived: bool
    late_primary: int  # requests without a sender
    late_backlog: int
    copies: tuple[int, ...]  # on the backlog


class Syphon(NamedTuple):
    phase: Phase
    message: int
    copy: int
    remembered: tuple[tuple[int, int], ...]  # copies that the primary has, not known as settled
    stale: bool  # a settlement of an earlier copy is still on its way


class State(NamedTuple):
    messages: tuple[Message, ...]
    syphons: tuple[Syphon, ...]
    troubles: int  # attempts that may still arrive


class View(NamedTuple):
    """A syphon, and the message of its next step: locked by it, or free."""

    number: int  # of the syphon
    syphon: Syphon
    of: int  # the number of the message
    message: Message


Label = tuple[Step, int, int]  # of which message, of which syphon; -1: of none
Move = tuple[Label, State]

# A step changes one message, and at most one syphon: their new states, and the number of troubles.
SendStep = tuple[Step, Message, int]
SyphonStep = tuple[Step, Syphon, Message, int]

IDLE_SYPHON: Final = Syphon(Phase.IDLE, -1, -1, (), False)
UNSENT: Final = Message(Send.IDLE, False, 1, False, 0, 0, ())


@attrs.frozen(kw_only=True, eq=False)
class Design:
    """The right design, and the deviation of each wrong one."""

    name: str = "the right one"
    acks_early: bool = False  # before a broker has it
    unknown_is_not_sent: bool = False
    forgets_the_taint: bool = False  # only the last attempt decides the answer
    settles_first: bool = False  # the backlog before the primary has it
    unknown_is_accepted: bool = False  # by the syphon
    sends_again_at_once: bool = False  # a transfer that is only slow
    settles_by_number: bool = False  # a stale settlement hits whatever is locked now
    remembers_numbers: bool = False  # of copies, without their message
    keeps_what_is_refused: bool = False  # locked, and its lock renewed, for ever


def start(*, messages: int, syphons: int, troubles: int) -> State:
    """The state at the start: nothing is sent yet."""
    return State((UNSENT,) * messages, (IDLE_SYPHON,) * syphons, troubles)


def with_owner(message: Message, copy: int, owner: int) -> Message:
    """Set the owner of a copy: a syphon, or that it is free or gone."""
    copies = (*message.copies[:copy], owner, *message.copies[copy + 1 :])
    return message._replace(copies=copies)


def arrived(message: Message) -> Message:
    """Count one more copy of the message on the primary."""
    return message._replace(arrived=True, allowed=message.allowed - 1)
