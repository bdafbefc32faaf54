"""
Is a recorded history a way through the model? Each message's records are read as its steps.

Unrecorded steps (a request is applied, a lock expires) may have happened in between: all states are
kept in which the model may be. A record that fits none of them deviates.

The model has no time. Of a message with a time to live a copy may come to its end wherever it is:
unseen on the primary, parked by a syphon on the backlog. Whether it was time judges `verdict.py`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import inf
from typing import Final

import attrs

from gateway.checker.history import Attempted, DeadLettered, End, Settled, Way
from gateway.checker.operations import (
    Acked,
    CopyPlace,
    Delivered,
    Failed,
    Found,
    Invoked,
    Record,
    Unknown,
)
from gateway.checker.verdict import EXPIRED
from tests.model.protocol import GONE, Design, Message, Send, State, Step, start, with_owner
from tests.model.steps import moves

# One copy stands for all copies of a message: it may lose its lock, keep its memory of one copy,
# and take the next.
SYPHONS: Final = 1
TROUBLES: Final = 1  # always as many again: a history may have any number
DESIGN: Final = Design()
HIDDEN: Final = frozenset(
    {
        *(Step.ASK_PRIMARY, Step.ASK_BACKLOG, Step.APPLY, Step.LATE_ARRIVES, Step.LOCK),
        *(Step.TRANSFER, Step.GIVE_BACK, Step.SETTLE_REFUSED, Step.SETTLE_UNKNOWN),
        Step.LOCK_EXPIRES,
    }
)
REFUSED: Final = frozenset({End.OUTAGE, End.BUSY, End.REFUSED})
STEPS: Final = {
    Way.PRIMARY: (Step.PRIMARY_ACCEPTS, Step.PRIMARY_REFUSES, Step.PRIMARY_UNKNOWN),
    Way.BACKLOG: (Step.BACKLOG_ACCEPTS, Step.BACKLOG_REFUSES, Step.BACKLOG_UNKNOWN),
    Way.SPOOL: (Step.BACKLOG_ACCEPTS, Step.BACKLOG_REFUSES, Step.BACKLOG_UNKNOWN),
    Way.SYPHON: (Step.TRANSFER_ACCEPTED, Step.TRANSFER_REFUSED, Step.TRANSFER_UNKNOWN),
}
NOT_TAKEN: Final = frozenset(
    {
        *(Step.PRIMARY_UNKNOWN, Step.BACKLOG_UNKNOWN),
        *(Step.PRIMARY_REFUSES, Step.BACKLOG_REFUSES),
    }
)


@attrs.frozen(kw_only=True)
class Deviation:
    """The first record of a message that no way through the model explains."""

    message_id: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.message_id} at {self.at:.3f}: {self.text}"


def deviations(records: Iterable[Record]) -> Iterator[Deviation]:
    """Yield the deviation of each message that has one; `records` are in order of time."""
    for message_id, mine in _by_message(records).items():
        deviation = _deviation(message_id, mine)
        if deviation is not None:
            yield deviation


def followed(records: Iterable[Record]) -> int:
    """Return the number of messages of that history that are compared with the model."""
    return len(_by_message(records))


def _by_message(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        match record:
            case Attempted():
                for message_id in record.message_ids:
                    found[message_id].append(record)
            case Invoked() | Acked() | Failed() | Unknown():
                found[record.message_id].append(record)
            case Delivered() | Settled() | DeadLettered() | Found():
                found[record.message_id].append(record)
    return found


def _deviation(message_id: str, records: Sequence[Record]) -> Deviation | None:
    mortal = any(isinstance(record, Invoked) and record.expires < inf for record in records)
    states = _closure({_normal(start(messages=1, syphons=SYPHONS, troubles=TROUBLES))})
    for record in records:
        is_end = isinstance(record, DeadLettered) or (
            isinstance(record, Found) and _is_dead(record)
        )
        states = _closure(_after(states, record)) if mortal or not is_end else set()
        if not states:
            return Deviation(message_id=message_id, at=record.at, text=f"{record}")
    came = any(_shows_a_copy(record) for record in records)
    if not any(_may_end(state.messages[0], came=came, mortal=mortal) for state in states):
        text = "it came" if came else "it never came"
        return Deviation(message_id=message_id, at=records[-1].at, text=f"in the end {text}")
    return None


def _may_end(message: Message, *, came: bool, mortal: bool) -> bool:
    shown = message.arrived is came or (mortal and message.arrived)
    return shown and all(owner == GONE for owner in message.copies)


def _is_dead(found: Found) -> bool:
    return found.place is CopyPlace.BACKLOG_DEAD_LETTER and found.reason == EXPIRED


def _shows_a_copy(record: Record) -> bool:
    return isinstance(record, Delivered) or (
        isinstance(record, Found) and record.place is CopyPlace.PRIMARY
    )


def _after(states: set[State], record: Record) -> Iterator[State]:
    """Yield the states that the model may be in after that record."""
    if _shows_a_copy(record):
        yield from (state for state in states if state.messages[0].arrived)
    elif isinstance(record, Invoked):
        yield from map(_sent, states)
    elif isinstance(record, DeadLettered):
        yield from _dead_lettered(states)
    elif isinstance(record, Found):
        # On the backlog, or dead for another reason: the model has no such way.
        yield from states if _is_dead(record) else ()
    else:
        steps = _steps(record)
        if isinstance(record, Unknown):
            yield from states  # perhaps the client's connection died, and the gateway continues
        if not steps.isdisjoint(NOT_TAKEN):
            # A client whose gateway or connection died may learn of it before the attempts end.
            yield from (state for state in states if state.messages[0].send is Send.UNKNOWN)
        for state in states:
            yield from (after for step, after in _steps_from(state) if step in steps)


def _dead_lettered(states: set[State]) -> Iterator[State]:
    """A syphon gives a copy back, which ends there or not, as the answer isn't recorded."""
    for state in states:
        copy = state.syphons[0].copy
        for (step, _, _), after in moves(state, DESIGN):
            if step is Step.GIVE_BACK:
                yield _normal(after)
                ended = with_owner(after.messages[0], copy, GONE)
                yield _normal(after._replace(messages=(ended,)))


def _sent(state: State) -> State:
    """The producer sends it, perhaps once more, with the same id."""
    message = state.messages[0]
    fresh = message._replace(send=Send.OPEN, tainted=False)
    return _normal(State((fresh,), state.syphons, state.troubles))


def _steps(record: Record) -> frozenset[Step]:
    match record:
        case Acked():
            return frozenset({Step.ANSWER_ACKED})
        case Failed():
            return frozenset({Step.ANSWER_FAILED})
        case Unknown():  # or no answer, since the gateway or the producer's patience ended
            return frozenset({Step.ANSWER_UNKNOWN, Step.KILL_GATEWAY})
        case Settled():
            return frozenset({Step.SETTLE})
        case Attempted():
            accepted, refused, unknown = STEPS[record.way]
            if record.end is End.ACCEPTED:
                return frozenset({accepted})
            return frozenset({refused if record.end in REFUSED else unknown})
    raise AssertionError(f"{record} is no step")


def _closure(states: Iterable[State]) -> set[State]:
    """Return the states, with all states that unrecorded steps may lead to."""
    found = set(states)
    queue = list(found)
    while queue:
        for step, after in _steps_from(queue.pop()):
            if step in HIDDEN and after not in found:
                found.add(after)
                queue.append(after)
    return found


@cache
def _steps_from(state: State) -> tuple[tuple[Step, State], ...]:
    """The messages of a history come to the same few states again and again."""
    return tuple((step, _normal(after)) for (step, _, _), after in moves(state, DESIGN))


def _normal(state: State) -> State:
    """Return the state without counters, lost copies, and the order of copies that are alike."""
    message, syphon = state.messages[0], state.syphons[0]
    remembered = {copy for _, copy in syphon.remembered}
    left = sorted(
        (copy == syphon.copy, copy in remembered, owner, copy)
        for copy, owner in enumerate(message.copies)
        if owner != GONE
    )
    copies = {old: new for new, (_, _, _, old) in enumerate(left)}
    known = tuple(sorted((0, copies[copy]) for copy in remembered if copy in copies))
    syphon = syphon._replace(copy=copies.get(syphon.copy, -1), remembered=known)
    kept = message._replace(
        allowed=1,
        # The step would change nothing.
        late_primary=0 if message.arrived else message.late_primary,
        copies=tuple(owner for _, _, owner, _ in left),
    )
    return State((kept,), (syphon,), TROUBLES)
