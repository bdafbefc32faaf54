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


@attrs.define
class Unanswered:
    """The attempts that had no answer, by the logs."""

    sends: list[float] = attrs.field(factory=list)  # when one to a backlog queue hadn't
    transfers: list[tuple[float, str]] = attrs.field(
        factory=list
    )  # of a syphon's chunk: when, whose


def excuses(
    sends: Mapping[str, Sequence[Send]],
    faults: Sequence[Record],
    unanswered: Unanswered,
    arrivals: Mapping[str, float],
    over: float,
    hedge_after: float = math.inf,
) -> list[Record]:
    """
    Return records that say of which messages one more copy is legal.

    `sends` by entity; `arrivals` has when a message first came to a consumer. A send that met a
    fault may have been done by the namespace that never answered. For the whole run, the checker
    counts a chunk for each transfer without an answer; a single message may have been among them if
    it was diverted, and had not come long before. A send that took `hedge_after` seconds may have
    gone both ways.
    """
    doubts = _Doubts(sends, arrivals)
    began = {one.fault: one for one in faults if isinstance(one, FaultBegan)}
    for ended in (one for one in faults if isinstance(one, FaultEnded)):
        fault = began[ended.fault]
        doubts.note_met(fault.at, ended.at)
        if fault.target is not FaultTarget.PRIMARY:
            doubts.note_in_flight(MOST_IN_FLIGHT, sends, fault.at, ended.at)
    doubts.note_hedged(hedge_after, over)
    for at in unanswered.sends:
        doubts.note_met(at, at)
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

    def note_met(self, began: float, ended: float) -> None:
        """Excuse the sends that were on their way during that fault."""
        met = [
            send.message_id
            for each in self.sends.values()
            for send in each
            if send.due <= ended and send.answered >= began
        ]
        self.found.append(Swallowed(at=ended, messages=len(met)))
        self.found += [Uncertain(at=ended, message_id=one) for one in met]

    def note_hedged(self, after: float, at: float) -> None:
        """Excuse the sends that took `after` seconds or more."""
        late = [
            send.message_id
            for each in self.sends.values()
            for send in each
            if send.latency >= after and math.isfinite(send.answered)
        ]
        if late:
            self.found.append(Swallowed(at=at, messages=len(late)))
            self.found += [Uncertain(at=at, message_id=one) for one in late]

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
