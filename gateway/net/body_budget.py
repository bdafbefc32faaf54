"""Limits the memory of all request bodies that are being received or processed."""

from collections import deque

import attrs
import trio


@attrs.define(eq=False)
class _Waiting:
    size: int
    granted: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class BodyBudget:
    """
    A number of bytes that are taken and given back, first come, first served.

    A size above the limit counts as the limit, so it can be taken when nothing else is.
    """

    limit: int = 128 * 1024 * 1024
    taken: int = attrs.field(default=0, init=False)
    _waiting: deque[_Waiting] = attrs.field(factory=deque, init=False)

    async def take(self, size: int, patience: float) -> int | None:
        """
        Wait until the bytes are available; return the number to give back. None: not available
        within `patience` seconds.

        If cancelled, nothing was taken.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        size = min(size, self.limit)
        waiting = _Waiting(size)
        self._waiting.append(waiting)
        self._grant()
        if waiting.granted.is_set():
            return size  # noqa: ASYNC910 the body's bytes are waited for next
        try:
            with trio.move_on_after(patience):
                await waiting.granted.wait()
        except BaseException:
            self._withdraw(waiting)
            raise
        if waiting.granted.is_set():  # possibly at the moment when the time ran out
            return size
        self._withdraw(waiting)
        return None

    def give_back(self, size: int) -> None:
        """Give back the number that `take` returned."""
        self.taken -= size
        self._grant()

    def _withdraw(self, waiting: _Waiting) -> None:
        if waiting.granted.is_set():
            self.give_back(waiting.size)
        else:
            self._waiting.remove(waiting)
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self.taken + self._waiting[0].size <= self.limit:
            waiting = self._waiting.popleft()
            self.taken += waiting.size
            waiting.granted.set()
