"""
A run that its seed repeats: virtual time, and the order of tasks drawn from the seed.

The two switches of Trio's scheduler are private (its own Hypothesis plugin sets them), so they
are touched here and nowhere else. Tried with Trio 0.35.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio.testing
from trio._core import _run

T = TypeVar("T")


def run_seeded(main: Callable[..., Awaitable[T]], *arguments: Any, seed: int) -> T:
    """
    Run that on a clock that jumps. The same seed gives the same order of tasks, another another.

    Without threads, sockets and processes inside, since those don't follow the clock.
    """
    switches: Any = _run
    before = switches._ALLOW_DETERMINISTIC_SCHEDULING
    switches._ALLOW_DETERMINISTIC_SCHEDULING = True
    switches._r.seed(seed)
    try:
        return trio.run(main, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        switches._ALLOW_DETERMINISTIC_SCHEDULING = before
