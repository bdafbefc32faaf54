"""Renews the locks of held messages, each at about half of its duration."""

from math import inf
from typing import Final, Protocol

import attrs
import trio

from gateway.changes import Changes

SLACK: Final = 0.5  # seconds: locks due within that time are renewed together
# seconds between two renewals of one lock; with less than the slack it would be renewed at once
PAUSE: Final = 1.2 * SLACK


class Locked(Protocol):
    """A message whose lock expires."""

    renew_at: float  # by Trio's clock; infinity: never

    async def renew(self) -> None:
        """Try once; `renew_at` is later when this returns."""
        ...


@attrs.define(eq=False)
class LockRenewals:
    """Renews the watched locks."""

    _watched: dict[Locked, None] = attrs.field(factory=dict, init=False)
    _renewing: set[Locked] = attrs.field(factory=set, init=False)
    _next: float = attrs.field(default=inf, init=False)
    _sooner: Changes = attrs.field(factory=Changes, init=False)

    def watch(self, locked: Locked) -> None:
        self._watched[locked] = None
        if locked.renew_at < self._next:
            self._next = locked.renew_at
            self._sooner.notify()

    def forget(self, locked: Locked) -> None:
        self._watched.pop(locked, None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                soon = trio.current_time() + SLACK
                for locked in self._not_renewing():
                    if locked.renew_at <= soon:
                        self._renewing.add(locked)
                        nursery.start_soon(self._renew, locked)
                self._next = min((each.renew_at for each in self._not_renewing()), default=inf)
                with trio.move_on_at(self._next):
                    await self._sooner.wait_next()

    def _not_renewing(self) -> list[Locked]:
        return [each for each in self._watched if each not in self._renewing]

    async def _renew(self, locked: Locked) -> None:
        try:
            await locked.renew()
        finally:
            self._renewing.discard(locked)
        if locked in self._watched:
            locked.renew_at = max(locked.renew_at, trio.current_time() + PAUSE)
            self.watch(locked)
