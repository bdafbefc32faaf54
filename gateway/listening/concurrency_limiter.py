"""
Limits the number of messages that a listener locks at once, and chooses the queue whose message is
handled next.
"""

from collections import deque

import attrs
import trio

from gateway.changes import Changes
from gateway.listening.scaling.concurrency import Shares


@attrs.define(eq=False, kw_only=True)
class ConcurrencyLimiter:
    """Limits running handlers, divided among queues by weight, and locked messages and bytes."""

    parallel: int
    max_locked: int
    max_bytes: int
    shares: Shares
    running: int = attrs.field(default=0, init=False)
    locked: int = attrs.field(default=0, init=False)
    bytes: int = attrs.field(default=0, init=False)
    _waiting: dict[str, deque[trio.Event]] = attrs.field(factory=dict, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)

    @property
    def is_busy(self) -> bool:
        """True if messages wait for a handler: further messages would only wait, too."""
        return bool(self._waiting)

    @property
    def _is_full(self) -> bool:
        return self.locked >= self.max_locked or self.bytes >= self.max_bytes

    async def wait_for_more(self, queue: str) -> None:
        """
        Return when no message of that queue waits for a handler, and the limits have room for more.
        """
        await trio.lowlevel.checkpoint()
        while queue in self._waiting or self._is_full:
            await self._changes.wait_next()

    def lock(self, size: int) -> None:
        self.locked += 1
        self.bytes += size

    def unlock(self, size: int) -> None:
        was_full = self._is_full
        self.locked -= 1
        self.bytes -= size
        if was_full:
            self._record()

    def try_acquire(self) -> bool:
        """Acquire a place for a handler without waiting; return True if a place was free."""
        if self.running >= self.parallel:
            return False
        self.running += 1
        return True

    async def acquire(self, queue: str) -> None:
        """Wait for a place for a handler. A cancellation acquires no place."""
        await trio.lowlevel.checkpoint_if_cancelled()
        granted = trio.Event()
        self._waiting.setdefault(queue, deque()).append(granted)
        self._call()
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self.free()
            else:
                self._remove(queue, granted)
            raise

    def free(self) -> None:
        """Release the place, to the queue that gets the next place."""
        self.running -= 1
        self._call()

    def _call(self) -> None:
        while self._waiting and self.running < self.parallel:
            queue = self.shares.choose(self._waiting)
            granted = self._waiting[queue][0]
            self._remove(queue, granted)
            self.running += 1
            granted.set()

    def _remove(self, queue: str, granted: trio.Event) -> None:
        self._waiting[queue].remove(granted)
        if not self._waiting[queue]:
            del self._waiting[queue]
            self._record()

    def _record(self) -> None:
        if not self._is_full:
            self._changes.notify()
