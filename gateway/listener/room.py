"""How much a listener has in its hands at once, and whose turn it is when that is the limit."""

from collections import deque

import attrs
import trio

from gateway.domain.scaling import Shares


@attrs.define(eq=False, kw_only=True)
class Room:
    """Places for handlers that run, given to queues by their weight; bounds on what is held."""

    parallel: int
    max_held: int
    max_bytes: int
    shares: Shares
    running: int = attrs.field(default=0, init=False)
    held: int = attrs.field(default=0, init=False)
    bytes: int = attrs.field(default=0, init=False)
    _waiting: dict[str, deque[trio.Event]] = attrs.field(factory=dict, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_busy(self) -> bool:
        """Messages wait for a place: more of them would only wait too."""
        return bool(self._waiting)

    @property
    def _is_full(self) -> bool:
        return self.held >= self.max_held or self.bytes >= self.max_bytes

    async def wait_for_more(self, queue: str) -> None:
        """Return when no message of that queue waits for a place, and there is room for more."""
        await trio.lowlevel.checkpoint()
        while queue in self._waiting or self._is_full:
            await self._changed.wait()

    def hold(self, size: int) -> None:
        self.held += 1
        self.bytes += size

    def release(self, size: int) -> None:
        was_full = self._is_full
        self.held -= 1
        self.bytes -= size
        if was_full:
            self._note()

    def try_to_enter(self) -> bool:
        """Take a place if one is free: then nobody waits for it."""
        if self.running >= self.parallel:
            return False
        self.running += 1
        return True

    async def enter(self, queue: str) -> None:
        """Wait for a place. Cancelled, none is taken."""
        await trio.lowlevel.checkpoint_if_cancelled()
        turn = trio.Event()
        self._waiting.setdefault(queue, deque()).append(turn)
        self._call()
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():
                self.leave()
            else:
                self._remove(queue, turn)
            raise

    def leave(self) -> None:
        """Give the place to whose turn it is."""
        self.running -= 1
        self._call()

    def _call(self) -> None:
        while self._waiting and self.running < self.parallel:
            queue = self.shares.choose(self._waiting)
            turn = self._waiting[queue][0]
            self._remove(queue, turn)
            self.running += 1
            turn.set()

    def _remove(self, queue: str, turn: trio.Event) -> None:
        self._waiting[queue].remove(turn)
        if not self._waiting[queue]:
            del self._waiting[queue]
            self._note()

    def _note(self) -> None:
        if not self._is_full:
            self._changed.set()
            self._changed = trio.Event()
