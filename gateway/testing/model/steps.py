"""Every step that may come next: of a send, of a request that is late, of a syphon."""

from collections.abc import Iterator

from gateway.testing.model.protocol import Design, Move, State
from gateway.testing.model.sends import late_steps, send_steps
from gateway.testing.model.syphons import syphon_steps


def moves(state: State, design: Design) -> Iterator[Move]:
    for number, message in enumerate(state.messages):
        yield from send_steps(state, number, message, design)
        yield from late_steps(state, number, message)
    for number, syphon in enumerate(state.syphons):
        yield from syphon_steps(state, number, syphon, design)
