"""Turns that several parts of one connection hold: of frames that were read together."""

import attrs

from gateway.net.turns import RequestTurn
from gateway.net.visits import acquire_turn_to_await


@attrs.define(eq=False)
class SharedTurn:
    """A turn that ends when nobody holds it any more."""

    _turn: RequestTurn
    _open: set["SharedTurn"]  # the connection's turns that haven't ended
    _holders: int = attrs.field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        self._open.add(self)

    def hold(self) -> None:
        """Note that one more holds the turn; no one does if it has ended."""
        self._holders += 1

    def release(self) -> None:
        """Note that one of them doesn't hold it any more."""
        self._holders -= 1
        if not self._holders:
            self.drop()

    def drop(self) -> None:
        """End the turn, although some may hold it."""
        if self in self._open:
            self._open.discard(self)
            self._turn.release()


@attrs.define(eq=False)
class RelayTurns:
    """
    The turns of a connection that is relayed. Frames that were read together have one, which their
    reader holds until they are handled, and each publish and request among them until its answer.
    """

    _now: SharedTurn | None = attrs.field(default=None, init=False)  # of what is handled
    _open: set[SharedTurn] = attrs.field(factory=set, init=False)

    async def acquire(self, size: int) -> SharedTurn | None:
        """
        Return when it is the turn of the client's next frames, of so many bytes. The caller
        releases the result. None: the port keeps no order. If cancelled, they have no turn.
        """
        turn = await acquire_turn_to_await(size)
        self._now = None if turn is None else SharedTurn(turn, self._open)
        return self._now

    def hold(self) -> SharedTurn | None:
        """The turn of the frames that are handled now; the caller releases it, too."""
        if self._now is not None:
            self._now.hold()
        return self._now

    def drop(self) -> None:
        """End all turns: the connection has ended."""
        for turn in list(self._open):
            turn.drop()
