"""A budget of bytes, or of other things, that many owners share."""

import attrs
import trio


@attrs.define(eq=False)
class _BudgetRequest:
    owner: str
    size: int
    granted: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class FairBudget:
    """
    Owners acquire and release parts of it, `limit` in all. No owner can have everything.

    With a `share`, an owner has that much at most. An owner that has nothing may have more at once,
    and the whole budget's limit may be passed by a request that is alone: so each request, however
    large, can be served some time.

    Without a share, an owner has as much as it leaves for the others, at most: neither one owner
    nor a few together can have everything. No request passes the limit then, not even alone.

    Requests that wait are served in their order; only those whose own owner has too much let others
    go before them.
    """

    limit: int
    share: int | None = None
    acquired: int = attrs.field(default=0, init=False)
    _of_owners: dict[str, int] = attrs.field(factory=dict, init=False)
    _waiting: dict[_BudgetRequest, None] = attrs.field(
        factory=dict, init=False
    )  # the first comes first

    def owned_by(self, owner: str) -> int:
        """The part that the owner has."""
        return self._of_owners.get(owner, 0)

    def leaves_room(self, owner: str, size: int) -> bool:
        """True if the part of the owner lets it have `size` more."""
        own = self._of_owners.get(owner, 0)
        if self.share is None:
            return own + size <= self.limit - self.acquired
        return not own or own + size <= self.share

    def add(self, owner: str, size: int) -> None:
        """Count `size` more of the owner at once, whether there is room or not."""
        self.acquired += size
        if size:
            self._of_owners[owner] = self._of_owners.get(owner, 0) + size

    def release(self, owner: str, size: int) -> None:
        """Count `size` less of the owner, and serve the requests that fit now."""
        self.acquired -= size
        left = self._of_owners.get(owner, 0) - size
        if left:
            self._of_owners[owner] = left
        else:
            self._of_owners.pop(owner, None)
        if self._waiting:
            self._serve()

    async def acquire(self, owner: str, size: int, deadline: float) -> bool:
        """
        Wait until the owner has `size` more, which it has to release; False: there was no room
        before the deadline. If cancelled, it has nothing more.
        """
        if not self._waiting and self.leaves_room(owner, size) and self._fits(size):
            self.add(owner, size)
            return True
        waiting = _BudgetRequest(owner, size)
        self._waiting[waiting] = None
        self._serve()
        try:
            with trio.move_on_at(deadline):
                await waiting.granted.wait()
        except BaseException:
            self._withdraw(waiting)
            raise
        if waiting.granted.is_set():  # possibly at the moment when the time ran out
            return True
        self._withdraw(waiting)
        return False

    def _fits(self, size: int) -> bool:
        return not self.acquired or self.acquired + size <= self.limit

    def _withdraw(self, waiting: _BudgetRequest) -> None:
        if waiting.granted.is_set():
            self.release(waiting.owner, waiting.size)
        else:
            del self._waiting[waiting]
            self._serve()

    def _serve(self) -> None:
        full = set[str]()  # owners with a request that waits: their later ones stay behind it
        for waiting in list(self._waiting):
            if waiting.owner in full or not self.leaves_room(waiting.owner, waiting.size):
                full.add(waiting.owner)
                continue
            if not self._fits(waiting.size):
                return
            del self._waiting[waiting]
            self.add(waiting.owner, waiting.size)
            waiting.granted.set()
