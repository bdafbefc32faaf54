"""Limits the memory of all request bodies that are being received or processed."""

from collections import Counter, deque

import attrs
import trio


@attrs.define(eq=False)
class _Waiting:
    size: int
    owner: str
    granted: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class BodyBudget:
    """
    A number of bytes that are taken and given back, first come, first served. An owner that has
    `most_of_owner` waits for its own bytes, and others go before it.

    A size above a limit counts as the limit, so it can be taken when nothing else is.
    """

    limit: int = 128 * 1024 * 1024
    most_of_owner: int = 0  # 0: no limit
    taken: int = attrs.field(default=0, init=False)
    _of_owners: Counter[str] = attrs.field(factory=Counter, init=False)
    _waiting: deque[_Waiting] = attrs.field(factory=deque, init=False)

    async def take(self, size: int, patience: float, owner: str = "") -> int | None:
        """
        Wait until the bytes are available for that owner; return the number to give back. None: not
        available within `patience` seconds.

        If cancelled, nothing was taken.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        size = min(size, self.limit, self.most_of_owner or size)
        waiting = _Waiting(size, owner)
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

    def give_back(self, size: int, owner: str = "") -> None:
        """Give back the number that `take` returned, of the same owner."""
        self.taken -= size
        self._of_owners[owner] -= size
        if not self._of_owners[owner]:
            del self._of_owners[owner]
        self._grant()

    def is_full_of(self, owner: str, size: int) -> bool:
        """True if the owner's own bytes leave no room for `size` more."""
        most = self.most_of_owner
        return bool(most) and self._of_owners[owner] + min(size, most) > most

    def _withdraw(self, waiting: _Waiting) -> None:
        if waiting.granted.is_set():
            self.give_back(waiting.size, waiting.owner)
        else:
            self._waiting.remove(waiting)
            self._grant()

    def _grant(self) -> None:
        while (waiting := self._next()) is not None:
            self._waiting.remove(waiting)
            self.taken += waiting.size
            self._of_owners[waiting.owner] += waiting.size
            waiting.granted.set()

    def _next(self) -> _Waiting | None:
        """
        The next waiting request whose owner has room; None: no request waits, or that request
        doesn't fit yet.
        """
        for waiting in self._waiting:
            if not self.is_full_of(waiting.owner, waiting.size):
                return waiting if self.taken + waiting.size <= self.limit else None
        return None
