"""Notices that a client leaves while it waits for its answer."""

import math
from collections.abc import Awaitable, Callable

import attrs
import trio

# Seconds. Most handlers are done before, and watching costs system calls.
WATCH_AFTER = 0.01


@attrs.define(eq=False)
class RequestWatch:
    """
    Runs `look` during requests that take long, in one task for all requests of a connection.

    A request that is answered soon costs two changes of a deadline; a nursery per request would
    cost a tenth of a whole receive.
    """

    _look: Callable[[], Awaitable[None]]
    _due: float = math.inf  # trio.current_time(); infinite while no request is being processed
    _pause: trio.CancelScope | None = None
    _looking: trio.CancelScope | None = None
    _looked: trio.Event = attrs.field(factory=trio.Event)

    def begin(self, nursery: trio.Nursery) -> None:
        """Begin to look soon, until `stop`; the task runs in the nursery."""
        self._due = trio.current_time() + WATCH_AFTER
        if self._pause is None:
            self._pause = trio.CancelScope(deadline=self._due)
            nursery.start_soon(self._run, self._pause)
        else:
            self._pause.deadline = self._due

    async def stop(self) -> None:
        """Return when `look` has ended: the caller may use the stream again."""
        self._due = math.inf
        if self._pause is not None:
            self._pause.deadline = math.inf
        if self._looking is not None:
            self._looking.cancel()
            await self._looked.wait()

    async def _run(self, pause: trio.CancelScope) -> None:
        while True:
            with pause:
                await trio.sleep_forever()
            if trio.current_time() >= self._due:  # the request was just answered otherwise
                self._looked = trio.Event()
                with trio.CancelScope() as self._looking:
                    await self._look()
                    await trio.sleep_forever()
                self._looking = None
                self._looked.set()
            self._pause = pause = trio.CancelScope(deadline=self._due)
