"""
Every step that may come next: of a send, of a request that is late, of a syphon.

What a step makes of a message or a syphon hangs on these alone, of which there are few. So each is
worked out once, and each of the many states is only put together.
"""

from collections.abc import Iterator
from functools import cache

from tests.model.protocol import (
    Design,
    Message,
    Move,
    Phase,
    SendStep,
    State,
    Syphon,
    SyphonStep,
    View,
)
from tests.model.sends import late_steps, send_steps
from tests.model.syphons import syphon_steps


def moves(state: State, design: Design) -> Iterator[Move]:
    messages, syphons, troubles = state
    for index, message in enumerate(messages):
        before, behind = messages[:index], messages[index + 1 :]
        for step, after, cost in _of_message(message, design):
            if cost <= troubles:
                changed = (*before, after, *behind)
                yield (step, index, -1), State(changed, syphons, troubles - cost)
    for number, syphon in enumerate(syphons):
        others, rest = syphons[:number], syphons[number + 1 :]
        for index in _within_reach(syphon, len(messages)):
            view = View(number, syphon, index, messages[index])
            before, behind = messages[:index], messages[index + 1 :]
            for step, then, after, cost in _of_view(view, design):
                if cost <= troubles:
                    changed, moved = (*before, after, *behind), (*others, then, *rest)
                    yield (step, index, number), State(changed, moved, troubles - cost)


def _within_reach(syphon: Syphon, messages: int) -> range:
    """Return the indices of the messages that the syphon's next step may be about."""
    if syphon.phase is Phase.IDLE:
        return range(messages)
    return range(syphon.message, syphon.message + 1)


@cache
def _of_message(message: Message, design: Design) -> tuple[SendStep, ...]:
    return (*send_steps(message, design), *late_steps(message))


@cache
def _of_view(view: View, design: Design) -> tuple[SyphonStep, ...]:
    return tuple(syphon_steps(view, design))
