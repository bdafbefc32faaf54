"""Wakes a namespace for what becomes due while nobody asks it for anything."""

import math
from collections.abc import Callable

import attrs
import trio


@attrs.define(eq=False)
class Alarm:
    """
    Calls `ring` when the moment has come, once for each `set`.

    It's a system task, begun when there is first something to wait for: a namespace is no nursery,
    and what it owes to time doesn't belong to any of those who ask it.
    """

    _ring: Callable[[], None]
    _due: float = math.inf
    _life: trio.CancelScope | None = None
    _sleep: trio.CancelScope | None = None

    def set(self, due: float | None) -> None:
        """When (by Trio's clock) it has to ring next; None: not at all."""
        self._due = math.inf if due is None else due
        if self._sleep is not None:
            self._sleep.deadline = self._due
        elif self._life is None and due is not None:
            self._life = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._run, self._life)

    def close(self) -> None:
        """Never ring again."""
        if self._life is not None:
            self._life.cancel()

    async def _run(self, life: trio.CancelScope) -> None:
        with life:
            while True:
                with trio.CancelScope(deadline=self._due) as self._sleep:
                    await trio.sleep_forever()
                self._sleep = None
                if trio.current_time() >= self._due:
                    self._due = math.inf
                    self._ring()
