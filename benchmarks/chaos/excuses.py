"""
Names the copies of a run that are legal because an outcome was unknown, by the run's faults and by
the logs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from benchmarks.chaos.topologies import ATTEMPT, MOST_IN_FLIGHT, SYPHON_BATCH
from benchmarks.traffic import Send
from gateway.checker.history import FaultBegan, FaultEnded, FaultTarget, Swallowed
from gateway.checker.operations import Record, Uncertain
from gateway.domain.message import AcceptedBy

# Seconds until a syphon gives up a transfer, after three attempt time-outs, and the consumer's way.
LONGEST_TRANSFER: Final = 3.0 * ATTEMPT + 1.0
# Seconds: a line is written before its send is answered, and read by the process that reads the
# answer, which may be late with either.
LOG_LAG: Final = 1.0


@attrs.frozen
class InDoubt:
    """A gateway's line about a send of which another copy may be there: read at `at`."""

    at: float
    entity: str
    messages: int


@attrs.define
class Unanswered:
    """The attempts that had no answer, by the logs."""

    sends: list[InDoubt] = attrs.field(factory=list)
    to_backlog: list[float] = attrs.field(factory=list)  # when a backlog queue gave none
    transfers: list[tuple[float, str]] = attrs.field(
        factory=list
    )  # of a syphon's chunk: when, whose


def excuses(
    sends: Mapping[str, Sequence[Send]],
    faults: Sequence[Record],
    unanswered: Unanswered,
    arrivals: Mapping[str, float],
    over: float,
) -> list[Record]:
    """
    Return records that say of which messages one more copy is legal.

    `sends` by entity; `arrivals` has when a message first came to a consumer. A send may have been
    done by a namespace that never answered if its producer had no answer, or if its gateway says
    so: of each such line the checker counts as many messages for the whole run; a single one may
    have been among them if it was on its way then. A send that was on its way when a backlog queue
    gave no answer may be in that queue, besides. For the whole run, the checker counts a chunk
    for each transfer without an answer; a single message may have been among them if it was
    diverted, and had not come long before.
    """
    doubts = _Doubts(sends, arrivals)
    began = {one.fault: one for one in faults if isinstance(one, FaultBegan)}
    for ended in (one for one in faults if isinstance(one, FaultEnded)):
        fault = began[ended.fault]
        if fault.target is not FaultTarget.PRIMARY:
            doubts.note_in_flight(MOST_IN_FLIGHT, sends, fault.at, ended.at)
    doubts.note_unanswered(over)
    for line in unanswered.sends:
        doubts.note_line(line)
    for at in unanswered.to_backlog:
        doubts.note_on_their_way(at)
    for at, entity in sorted(unanswered.transfers):
        doubts.note_in_flight(SYPHON_BATCH, [entity], at, min(at, over))
    return doubts.found


@attrs.define
class _Doubts:
    """Collects the messages that may have one copy more."""

    sends: Mapping[str, Sequence[Send]]
    arrivals: Mapping[str, float]
    found: list[Record] = attrs.field(factory=list)
    _transferred: set[str] = attrs.field(factory=set)  # perhaps, which no record shows

    def note_unanswered(self, at: float) -> None:
        """Excuse the sends that have no answer, or an error."""
        every = (send for each in self.sends.values() for send in each)
        self._note([send.message_id for send in every if math.isinf(send.answered)], at)

    def note_line(self, line: InDoubt) -> None:
        """Excuse as many of the sends that were on their way when their gateway wrote that line."""
        on_their_way = [
            send.message_id
            for send in self.sends.get(line.entity, ())
            if send.due <= line.at and send.answered >= line.at - LOG_LAG
        ]
        self._note(on_their_way, line.at, line.messages)

    def note_on_their_way(self, at: float) -> None:
        """Excuse the sends that were on their way at that moment."""
        every = (send for each in self.sends.values() for send in each)
        self._note([send.message_id for send in every if send.due <= at <= send.answered], at)

    def _note(self, among: Sequence[str], at: float, messages: int | None = None) -> None:
        count = len(among) if messages is None else messages
        if count:
            self.found.append(Swallowed(at=at, messages=count))
            self.found += [Uncertain(at=at, message_id=one) for one in among]

    def note_in_flight(self, most: int, entities: Iterable[str], since: float, at: float) -> None:
        """Excuse `most` messages that a syphon was moving, of those that may have been there."""
        self.found.append(Swallowed(at=at, messages=most))
        for entity in entities:
            for send in self.sends.get(entity, ()):
                if (
                    send.accepted_by is not AcceptedBy.PRIMARY
                    and send.due <= at
                    and self._may_be(send, since)
                ):
                    self._transferred.add(send.message_id)
                    self.found.append(Uncertain(at=at, message_id=send.message_id))

    def _may_be(self, send: Send, since: float) -> bool:
        """
        True unless the message came long before `since`; a transfer without an answer may be of any
        age.
        """
        came = self.arrivals.get(send.message_id, since)
        return came >= since - LONGEST_TRANSFER or send.message_id in self._transferred
