"""
A run that its seed repeats: virtual time, and the order of tasks drawn from the seed.

The two switches of Trio's scheduler are private (its own Hypothesis plugin sets them), so they
are touched here and nowhere else. Tried with Trio 0.35.
"""

import gc
import random
import threading
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final, TypeVar

import attrs
import trio
from trio._core import _run

T = TypeVar("T")

MOST_ROUNDS: Final = 20_000  # of Trio's loop in a virtual second; the busiest need some 1,500


class Standstill(Exception):
    """A run went on and on, but its time didn't."""


@attrs.define(eq=False)
class JumpingClock(trio.abc.Clock):
    """
    Stands still while a task can run, and is at the next deadline when none can.

    Trio's `MockClock` does the same in two rounds of its loop, and asks for the real time in each.
    """

    _now: float = 0.0

    def start_clock(self) -> None:
        """Nothing to do: the clock needs no start."""

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Trio asks this when no task can run: then it is that time."""
        if deadline == inf:
            return inf  # from here on only Trio itself acts, at the end of a run
        self._now = max(self._now, deadline)
        return 0.0

    def jump(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        self._now += seconds


@attrs.define(eq=False)
class _Watch(trio.abc.Instrument):
    """Cancels a run that stands still, which would never end otherwise."""

    _clock: JumpingClock
    _run: trio.CancelScope
    _most_rounds: int
    _since: float = 0.0
    _rounds: int = 0

    def before_io_wait(self, timeout: float) -> None:
        now = self._clock.current_time()
        if now >= self._since + 1.0:
            self._since, self._rounds = now, 0
        self._rounds += 1
        if self._rounds > self._most_rounds:
            self._run.cancel()


@attrs.define(eq=False)
class _ByThread:
    """
    Trio's source of random numbers: a seeded one for this thread, and `before` for all others.

    The servers that tests share belong to a Trio in a thread of its own, which draws numbers too.
    """

    before: random.Random
    seeded: random.Random
    thread: int = attrs.field(factory=threading.get_ident)

    def __getattr__(self, name: str) -> Any:
        mine = threading.get_ident() == self.thread
        return getattr(self.seeded if mine else self.before, name)


def run_seeded(
    main: Callable[..., Awaitable[T]],
    *arguments: Any,
    seed: int,
    most_rounds: int = MOST_ROUNDS,
) -> T:
    """
    Run the function on a clock that jumps. The same seed gives the same order of tasks, another
    seed another order.

    Without threads, sockets, processes and `wait_all_tasks_blocked` inside, since those don't
    follow the clock. Garbage is collected at the end, since a collection takes time.

    Raises:
        Standstill: tasks ran and ran, and hardly any time passed; they were cancelled.
    """
    clock, run = JumpingClock(), trio.CancelScope()

    async def watched() -> T:
        with run:
            return await main(*arguments)
        raise Standstill(f"after {clock.current_time():.3f} s tasks ran on without time passing")

    switches: Any = _run
    before, source = switches._ALLOW_DETERMINISTIC_SCHEDULING, switches._r
    collects = gc.isenabled()
    switches._ALLOW_DETERMINISTIC_SCHEDULING = True
    switches._r = _ByThread(source, random.Random(seed))
    gc.disable()
    try:
        return trio.run(watched, clock=clock, instruments=[_Watch(clock, run, most_rounds)])
    finally:
        switches._ALLOW_DETERMINISTIC_SCHEDULING, switches._r = before, source
        if collects:
            gc.enable()
