"""Wakes the tasks that wait for messages of a queue: at most one task for each message."""

import math
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar
from weakref import ref

import attrs
import trio

from gateway.store.engine.records import State

T = TypeVar("T")

EVERYBODY = 10**9


@attrs.define(eq=False)
class Notifier:
    """
    The condition variable that a queue shares with its dead-letter sub-queues, because messages
    move between them as time passes.

    Of the tasks that wait for one state, that which has waited the longest is the timekeeper: it
    wakes when messages may become due, and the step that it runs then wakes the others.
    """

    _due: float = math.inf
    _notifications: dict[State, int] = attrs.field(factory=lambda: dict.fromkeys(State, 0))
    _waiting: dict[State, dict[trio.CancelScope, None]] = attrs.field(
        factory=lambda: {state: {} for state in State}
    )

    async def find(self, state: State, attempt: Callable[[], Awaitable[T]]) -> T:
        """
        Return what `attempt` finds: at once, or after a notification. A task that is cancelled when
        it has a notification lets another one look.

        Raises:
            BrokerError: as `attempt`.
        """
        while True:
            seen = self._notifications[state]
            try:
                found = await attempt()
            except trio.Cancelled:
                self.notify(state, 1)  # the messages may be those of the notification
                raise
            if found:
                return found
            if self._notifications[state] == seen:
                await self._wait(state)

    def notify(self, state: State, messages: int) -> None:
        """Wake as many tasks as there are new messages."""
        if messages <= 0:
            return
        self._notifications[state] += 1
        waiting = self._waiting[state]
        while waiting and messages > 0:
            scope = next(iter(waiting))
            del waiting[scope]
            scope.cancel()
            messages -= 1
        self._appoint_timekeeper()

    def set_due(self, due: float | None) -> None:
        """Set when (by Trio's clock) messages become due by themselves."""
        self._due = math.inf if due is None else due
        self._appoint_timekeeper()

    async def _wait(self, state: State) -> None:
        """Return after a notification, or when messages may be due."""
        scope = trio.CancelScope()
        self._waiting[state][scope] = None
        self._appoint_timekeeper()
        try:
            with scope:
                await trio.sleep_forever()
        except trio.Cancelled:
            # Only who has a notification wakes another: of a thousand waiting tasks that are
            # cancelled one after the other, each would wake the next one otherwise.
            if scope not in self._waiting[state]:
                self.notify(state, 1)
            raise
        finally:
            self._waiting[state].pop(scope, None)
            self._appoint_timekeeper()

    def _appoint_timekeeper(self) -> None:
        for waiting in self._waiting.values():
            first = next(iter(waiting), None)
            if first is not None and first.deadline != self._due:
                first.deadline = self._due


@attrs.define(eq=False)
class Notifiers:
    """
    The notifiers that receivers hold, by key of the queue or session.

    Another thread may ask for a key; a `WeakValueDictionary` takes ten times as long to answer.
    """

    _refs: dict[str, "ref[Notifier]"] = attrs.field(factory=dict, init=False)

    def of(self, key: str) -> Notifier:
        """The notifier of that key, which lasts as long as a receiver holds it."""
        notifier = self.get(key)
        if notifier is None:
            notifier = Notifier()
            self._refs[key] = ref(notifier, lambda gone: self._forget(key, gone))
        return notifier

    def get(self, key: str) -> Notifier | None:
        found = self._refs.get(key)
        return None if found is None else found()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._refs))

    def __contains__(self, key: str) -> bool:
        return key in self._refs

    def _forget(self, key: str, gone: "ref[Notifier]") -> None:
        if self._refs.get(key) is gone:
            del self._refs[key]
