"""
The states of connections, sessions and links, as tables (AMQP 1.0, part 2, 2.4.6, 2.5.5, 2.6.3).

As in h11, each side has a state of its own: a frame that we receive moves the peer's side, a frame
that we write moves ours. Together the two are the states that the specification names:

    connection   ours, theirs      session, link   ours, theirs
    START        IDLE, IDLE        UNMAPPED        IDLE, IDLE
    HDR_SENT     GREETED, IDLE     BEGIN_SENT      OPEN, IDLE
    HDR_EXCH     GREETED, GREETED  BEGIN_RCVD      IDLE, OPEN
    OPEN_PIPE    OPEN, IDLE        MAPPED          OPEN, OPEN
    OPEN_SENT    OPEN, GREETED     END_SENT        ENDED, OPEN
    OPENED       OPEN, OPEN        END_RCVD        OPEN, ENDED
    CLOSE_SENT   ENDED, OPEN       DISCARDING      ENDED, OPEN, with an error of ours
    CLOSE_RCVD   OPEN, ENDED
    END          ENDED, ENDED

Frames of the two sides cross, so one table would need a row for each order in which they can. A
frame is judged by its sender's side alone, so one small table serves for both.

A pair that isn't in the list doesn't occur, or is that of a side that skips the other's answer.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from gateway.wire.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
)

NOT_ALLOWED: Final = "amqp:not-allowed"
FRAMING_ERROR: Final = "amqp:connection:framing-error"

HEADER: Final = 0  # the protocol header, which no performative has as its code


class Side(enum.Enum):
    """The progress of one side."""

    IDLE = "idle"
    GREETED = "greeted"  # connections only: the protocol header was sent
    OPEN = "open"  # opened, begun, or attached
    ENDED = "ended"  # closed, ended, or detached


@attrs.frozen
class Machine:
    """The frames that a side may send in each state, and its state after each of them."""

    steps: Mapping[tuple[Side, int], Side]
    refused: Mapping[int, str]  # frames with a condition of their own, if they aren't allowed
    otherwise: str  # the condition for all other frames that aren't allowed

    def step(self, side: Side, code: int) -> Side | None:
        """The side's next state; None: it may not send the frame."""
        return self.steps.get((side, code))

    def after(self, side: Side, code: int) -> Side:
        """The next state of our own side, which never sends a frame that isn't allowed."""
        return self.steps[side, code]

    def condition(self, code: int) -> str:
        """The error condition for a frame that isn't allowed."""
        return self.refused.get(code, self.otherwise)


def _machine(
    steps: dict[tuple[Side, int], Side],
    within: tuple[int, ...],
    refused: dict[int, str],
    otherwise: str,
) -> Machine:
    steps |= {(Side.OPEN, code): Side.OPEN for code in within}
    return Machine(MappingProxyType(steps), MappingProxyType(refused), otherwise)


_IN_LINKS: Final = (FLOW, TRANSFER)
_IN_SESSIONS: Final = (ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH)
_IN_CONNECTIONS: Final = (BEGIN, *_IN_SESSIONS, END)

CONNECTION: Final = _machine(
    {
        (Side.IDLE, HEADER): Side.GREETED,
        (Side.GREETED, OPEN): Side.OPEN,
        (Side.OPEN, CLOSE): Side.ENDED,
    },
    _IN_CONNECTIONS,
    {OPEN: NOT_ALLOWED},
    "amqp:illegal-state",
)
SESSION: Final = _machine(
    {(Side.IDLE, BEGIN): Side.OPEN, (Side.OPEN, END): Side.ENDED},
    _IN_SESSIONS,
    {BEGIN: FRAMING_ERROR},
    NOT_ALLOWED,
)
LINK: Final = _machine(
    {(Side.IDLE, ATTACH): Side.OPEN, (Side.OPEN, DETACH): Side.ENDED},
    _IN_LINKS,
    {ATTACH: "amqp:session:handle-in-use"},
    "amqp:session:unattached-handle",
)
