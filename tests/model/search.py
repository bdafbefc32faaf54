"""Looks at every state that a design can reach; says by which shortest way one is bad."""

from array import array
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import attrs

from tests.model.protocol import GONE, Design, Label, Message, Phase, Send, State
from tests.model.steps import moves

ENDED: Final = frozenset({Send.ACKED, Send.UNKNOWN, Send.FAILED})


@attrs.frozen(kw_only=True)
class Found:
    """`broken` None: every reachable state is good. `trace` is a shortest way to the bad one."""

    states: int
    broken: str | None
    trace: tuple[Label, ...] = ()

    def describe(self) -> str:
        steps = (f"  {what.value} (message {of})" for what, of, _ in self.trace)
        return "\n".join([f"{self.broken or 'all is well'} after {self.states} states:", *steps])


class Edges(NamedTuple):
    """Steps between states, by their numbers."""

    sources: "array[int]"
    targets: "array[int]"


def search(begin: State, design: Design) -> Found:
    """Breadth first, so that the first bad state has a shortest way."""
    numbers = {begin: 0}
    ways: list[tuple[int, Label | None]] = [(-1, None)]
    queue = deque([begin])
    edges = Edges(array("i"), array("i"))
    while queue:
        state = queue.popleft()
        number = numbers[state]
        broken = what_is_broken(state)
        if broken is not None:
            return Found(states=len(numbers), broken=broken, trace=_way(ways, number))
        for label, after in moves(state, design):
            known = numbers.get(after)
            if known is None:
                known = numbers[after] = len(numbers)
                ways.append((number, label))
                queue.append(after)
            edges.sources.append(number)
            edges.targets.append(known)
    stuck = _never_drained(numbers, edges)
    if stuck is not None:
        return Found(states=len(numbers), broken="never drained", trace=_way(ways, stuck))
    return Found(states=len(numbers), broken=None)


def what_is_broken(state: State) -> str | None:
    """The invariant that this state breaks."""
    for message in state.messages:
        if (broken := _broken_by(message)) is not None:
            return broken
    return None


@cache
def _broken_by(message: Message) -> str | None:
    stored = any(owner != GONE for owner in message.copies)
    late = message.late_primary or message.late_backlog
    if message.send is Send.ACKED and not (message.arrived or stored):
        return "S1"
    if message.send is Send.IDLE and (message.arrived or message.copies or late):
        return "S2"
    if message.send is Send.FAILED and (message.arrived or stored):
        return "S3"
    if message.allowed < 0:
        return "S6"
    return "S8" if GONE in message.copies and not message.arrived else None


def drained(state: State) -> bool:
    """True if nothing is under way, and nothing on the backlog."""
    return all(syphon.phase is Phase.IDLE for syphon in state.syphons) and all(
        message.send in ENDED and _is_quiet(message) for message in state.messages
    )


def _is_quiet(message: Message) -> bool:
    return all(owner == GONE for owner in message.copies)


def _never_drained(numbers: dict[State, int], edges: Edges) -> int | None:
    """The first state from which no way leads to a drained one."""
    before: list[list[int]] = [[] for _ in numbers]
    for source, target in zip(edges.sources, edges.targets, strict=True):
        before[target].append(source)
    good = bytearray(len(numbers))
    queue = deque(number for state, number in numbers.items() if drained(state))
    for number in queue:
        good[number] = 1
    while queue:
        for source in before[queue.popleft()]:
            if not good[source]:
                good[source] = 1
                queue.append(source)
    bad = good.find(0)
    return None if bad < 0 else bad


def _way(ways: list[tuple[int, Label | None]], number: int) -> tuple[Label, ...]:
    return tuple(reversed(list(_steps_back(ways, number))))


def _steps_back(ways: list[tuple[int, Label | None]], number: int) -> Iterator[Label]:
    while number > 0:
        number, label = ways[number]
        if label is not None:
            yield label
