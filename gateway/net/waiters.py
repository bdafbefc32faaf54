"""Tasks that wait for a change, and check by themselves what has changed."""

import attrs
import trio


@attrs.define(eq=False)
class Waiters:
    """
    A parking lot that is made when the first task waits: an empty one takes 370 bytes, and most of
    a connection's are never used.
    """

    _lot: trio.lowlevel.ParkingLot | None = attrs.field(default=None, init=False)

    async def wait(self) -> None:
        """Return after the next `wake`."""
        if self._lot is None:
            self._lot = trio.lowlevel.ParkingLot()
        await self._lot.park()

    def wake(self) -> None:
        """Wake all tasks that wait."""
        if self._lot:  # called for each message, mostly without a waiting task
            self._lot.unpark_all()
