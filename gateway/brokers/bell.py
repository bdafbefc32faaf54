"""Wakes the tasks that wait for a message of one queue, when there is one, and not before."""

import math

import attrs
import trio

from gateway.domain.stored import State

EVERYBODY = 10**9


@attrs.define(eq=False)
class Bell:
    """
    One for a queue and its dead-letter sub-queue, since time moves messages between the two.

    Who waits the longest is the timekeeper: it wakes when something may become due, and what its
    next look finds rings for the others.
    """

    _due: float = math.inf
    _rings: dict[State, int] = attrs.field(factory=lambda: dict.fromkeys(State, 0))
    _waiting: dict[State, dict[trio.CancelScope, None]] = attrs.field(
        factory=lambda: {state: {} for state in State}
    )

    def rings(self, state: State) -> int:
        """How often it has rung; who looked in vain waits only if that is still the same."""
        return self._rings[state]

    def ring(self, state: State, messages: int) -> None:
        """Wake as many as there are new messages."""
        if messages <= 0:
            return
        self._rings[state] += 1
        waiting = self._waiting[state]
        while waiting and messages > 0:
            scope = next(iter(waiting))
            del waiting[scope]
            scope.cancel()
            messages -= 1
        self._appoint_timekeeper()

    def set_due(self, due: float | None) -> None:
        """When (by Trio's clock) something changes without anybody's doing."""
        self._due = math.inf if due is None else due
        self._appoint_timekeeper()

    async def wait(self, state: State) -> None:
        """Return when it rings, or something may be due. A cancellation changes nothing."""
        scope = trio.CancelScope()
        self._waiting[state][scope] = None
        self._appoint_timekeeper()
        try:
            with scope:
                await trio.sleep_forever()
        finally:
            self._waiting[state].pop(scope, None)
            self._appoint_timekeeper()

    def _appoint_timekeeper(self) -> None:
        for waiting in self._waiting.values():
            first = next(iter(waiting), None)
            if first is not None and first.deadline != self._due:
                first.deadline = self._due
