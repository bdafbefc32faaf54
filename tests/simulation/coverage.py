"""
The events that runs must have seen to be worth judging: the least number in a thousand of them.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Final

from gateway.checker.history import Attempted, End, Way
from gateway.checker.operations import Acked, Record
from gateway.domain.envelope_fields import ENTITY, ORDER
from gateway.domain.message import Message
from tests.simulation.names import Names
from tests.simulation.scenario import Scenario
from tests.simulation.seeds import FRONTS

SOMETIMES: Final = {
    "acked": 10_000,
    "failed": 100,
    "unknown": 100,
    "recovered": 50,  # unknown, and it arrived
    "vanished": 20,  # unknown, and it didn't
    "duplicated": 100,
    "redelivered": 50,
    "expired": 50,
    "dead_lettered": 15,
    "primary -> suspect": 100,
    "suspect -> primary": 50,
    "suspect -> secondary": 20,
    "primary -> secondary": 100,
    "secondary -> half-open": 100,
    "half-open -> primary": 100,
    "half-open -> secondary": 20,
    "Diverted": 500,
    "Syphoned": 500,
    "SyphonBackedOff": 200,
    "BusyPause": 100,
    "BacklogQueueFailed": 100,
    "LoopPaused": 20,
    "fault: refuse": 4,
    "fault: hang": 4,
    "fault: reset": 4,
    "fault: lose answer": 4,
    "fault: swallow answer": 4,
    "fault: busy": 4,
    "fault: late": 4,
    "fault: gray": 4,
    "fault: connection of a client": 50,
    "fault: clock": 400,
    "a clock was put right": 300,
    "a token was refused": 3,
    "late success after the message was accepted elsewhere": 8,
    "gateway killed with sends under way": 5,
    "syphon ended between accept and complete": 8,
    "a namespace crashed with sends under way": 8,
    "a power cut": 20,
    "a power cut in the middle of a commit": 5,
    "a disk failed: WRITE": 3,
    "a disk failed: SYNC": 3,
    "a disk failed: FULL": 3,
    "a store was started again": 10,
    "a store refused for want of room": 10,
    "restarted in an outage": 8,
    "a handler failed": 100,
    "a listener was told of an error": 100,
    **{f"acked over {front.value}": 500 for front in FRONTS},
    "both namespaces in trouble at once": 50,
    "two syphons moved messages": 10,
    "pipelines": 300,
    "crowds": 300,
    "safety": 50,
    "liveness": 500,
    "a batch was diverted": 50,
    "a scheduled message was diverted": 50,
    "a session was diverted": 50,
    "an encrypted message was diverted": 50,
    # Invariants that a history could have broken, and didn't.
    **{f"{name} holds": 600 for name in ("S1", "S2", "S4", "S5", "S6", "S8", "S11", "S12")},
    **{f"{name} holds": 500 for name in ("L3", "L6")},
    **{f"{name} holds": 100 for name in ("S3", "S9", "S10", "L1", "L4", "L5")},
    **{f"{name} holds": 10 for name in ("S7", "L2")},
}


def unseen(seen: Counter[str], runs: int) -> dict[str, tuple[int, int]]:
    """Return the events that so many runs have seen too seldom: how often, and the least number."""
    least = {name: often * runs // 1000 for name, often in SOMETIMES.items()}
    return {name: (seen[name], least[name]) for name in SOMETIMES if seen[name] < least[name]}


def see_diverted(seen: Counter[str], messages: Sequence[Message], names: Names) -> None:
    """A backlog queue has taken these from the gateway."""
    seen["a batch was diverted"] += len(messages) > 1
    for message in messages:
        inner = names.opened(message)
        seen["an ordered message was diverted"] += ORDER in message.properties
        seen["an encrypted message was diverted"] += ENTITY in message.properties
        seen["a scheduled message was diverted"] += inner.scheduled is not None
        seen["a session was diverted"] += inner.session_id is not None


def see_the_whole(seen: Counter[str], scenario: Scenario, records: Sequence[Record]) -> None:
    """Count the events that only the whole run shows."""
    if (front := scenario.parts.front) is not None:
        seen[f"acked over {front.value}"] += sum(isinstance(one, Acked) for one in records)
    moved_by = {
        one.process
        for one in records
        if isinstance(one, Attempted) and one.way is Way.SYPHON and one.end is End.ACCEPTED
    }
    seen["two syphons moved messages"] += len(moved_by) > 1
    seen["both namespaces in trouble at once"] += any(
        one.namespace != other.namespace and one.start < other.end and other.start < one.end
        for one, other in combinations(scenario.windows, 2)
    )
