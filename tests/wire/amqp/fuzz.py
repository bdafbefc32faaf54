"""
Two engines at random, and broken streams, as long as you like; everything is seeded.

Usage: python -m tests.fuzz amqp-engines SECONDS
"""

from collections.abc import Callable
from typing import Final

from tests.wire.amqp.broken_streams import break_up, hear, say
from tests.wire.amqp.two_engines import KINDS, OWN, Rng, conversation

STEPS: Final = 300
BREAKS: Final = 20  # of the streams of one conversation


def fuzz(seed: int, go_on: Callable[[int], bool]) -> int:
    """Conversations while `go_on(n)`; return how many there were. A fault raises, with n."""
    done = 0
    while go_on(done):
        name = f"{seed} {done}"
        try:
            conversation(name, *KINDS[done % len(KINDS)]).run(STEPS)
            _break(name, by_client=done % 2 == 0)
        except BaseException as error:
            error.add_note(f"seed {seed}, conversation {done}")
            raise
        done += 1
    return done


def _break(name: str, *, by_client: bool) -> None:
    pieces = say(name, OWN, by_client=by_client)
    for number in range(BREAKS):
        rng = Rng(f"{name} {number}")
        try:
            hear(name, OWN, break_up(pieces, rng), rng, by_client=by_client)
        except BaseException as error:
            error.add_note(f"broken stream {number}, by_client {by_client}")
            raise
