"""Reports how the backlog moves: when it starts, every ten seconds, and when it is empty."""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.events.gateway import DeadLettered, Event, Syphoned
from gateway.domain.events.outages import BacklogEmpty, BacklogFound, BacklogMoves, BacklogProgress
from gateway.ports import Observer

EVERY: Final = 10.0  # seconds between two reports
QUIET: Final = 1.0  # seconds without a move, after which the backlog may be empty
# Seconds without a move, after which an unknown depth isn't asked for again. Some namespaces never
# tell it; RabbitMQ doesn't for a minute after the connection of a consumer was lost.
UNKNOWN: Final = 120.0

Count = Callable[[], Awaitable[int | None]]
"""Counts the messages on the backlog; None: not known."""


@attrs.define(eq=False, kw_only=True)
class ProgressReporter:
    """The observer of a syphon's drains: forwards all events, and counts the messages moved."""

    observer: Observer
    label: str
    _moved: int = attrs.field(default=0, init=False)
    _dead_lettered: int = attrs.field(default=0, init=False)
    _last: float = attrs.field(init=False)  # by Trio's clock: the last move
    _moves: Changes = attrs.field(factory=Changes, init=False)

    def report(self, event: Event) -> None:
        if isinstance(event, Syphoned):
            self._moved += event.messages
            self._record()
        elif isinstance(event, DeadLettered):
            self._dead_lettered += 1
            self._record()
        self.observer.report(event)

    def _record(self) -> None:
        self._last = trio.current_time()
        self._moves.notify()

    async def run(self, count: Count, pending: int | None) -> None:
        """
        Report until cancelled. `count` is called before each report, and for the first one only if
        `pending` is None.
        """
        if pending is None:
            pending = await count()
        self.observer.report(BacklogFound(label=self.label, pending=pending))
        seen = 0
        while True:
            moved, dead_lettered = self._moved, self._dead_lettered
            seen = await self._moves.wait(seen)
            began = self._last
            left = await self._count_whole(count, moved + dead_lettered)
            self.observer.report(BacklogMoves(label=self.label, left=left))
            left = await self._report_progress(count, moved)
            if left == 0:
                self.observer.report(
                    BacklogEmpty(
                        label=self.label,
                        moved=self._moved - moved,
                        seconds=self._last - began,
                        dead_lettered=self._dead_lettered - dead_lettered,
                    )
                )
            seen = self._moves.version

    async def _count_whole(self, count: Count, before: int) -> int | None:
        """
        The messages that waited when the backlog began to move: those that have left it while they
        were counted are among them. `before` had left it earlier.
        """
        left = await count()
        return None if left is None else left + self._moved + self._dead_lettered - before

    async def _count_when_due(self, count: Count) -> int | None:
        """Count after `EVERY`, or as soon as no message moves any more, if none is left then."""
        due = trio.current_time() + EVERY
        with trio.move_on_at(due):
            await self._wait_quiet()
            if await count() == 0:
                return 0
            await trio.sleep_forever()
        return await count()

    async def _wait_quiet(self) -> None:
        """Return once no message has moved for `QUIET`."""
        seen = self._moves.version
        while True:
            with trio.move_on_after(QUIET) as silence:
                seen = await self._moves.wait(seen)
            if silence.cancelled_caught:
                return

    async def _report_progress(self, count: Count, before: int) -> int | None:
        """
        Return 0 when the backlog is empty; None if the depth isn't known, and no message moves for
        `UNKNOWN` seconds.
        """
        while True:
            since = self._moved
            left = await self._count_when_due(count)
            is_over = trio.current_time() >= self._last + UNKNOWN
            if left == 0 or (left is None and is_over):
                return left
            rate = (self._moved - since) / EVERY
            if rate:
                self.observer.report(
                    BacklogProgress(
                        label=self.label,
                        moved=self._moved - before,
                        left=left,
                        rate=rate,
                        seconds_left=None if left is None else left / rate,
                    )
                )
