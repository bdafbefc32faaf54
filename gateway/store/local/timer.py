"""Wakes a namespace for work that becomes due while no client uses it."""

import math
from collections.abc import Callable

import attrs
import trio


@attrs.define(eq=False)
class Timer:
    """
    Calls `on_due` when the time has come, once for each `set`.

    Runs as a system task, started by the first `set`: a namespace has no nursery, and its due work
    belongs to none of the tasks that use it.
    """

    _on_due: Callable[[], None]
    _due: float = math.inf
    _life: trio.CancelScope | None = None
    _sleep: trio.CancelScope | None = None

    def set(self, due: float | None) -> None:
        """Set when (by Trio's clock) `on_due` is called next; None: not at all."""
        self._due = math.inf if due is None else due
        if self._sleep is not None:
            self._sleep.deadline = self._due
        elif self._life is None and due is not None:
            self._life = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._run, self._life)

    def close(self) -> None:
        """Stop: `on_due` isn't called any more."""
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
                    self._on_due()
