"""A version counter that tasks can wait on."""

import attrs
import trio


@attrs.define(eq=False)
class Changes:
    """Counts changes. Waiters pass the last version that they saw, so that no change is missed."""

    _version: int = attrs.field(default=0, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def version(self) -> int:
        return self._version

    def note(self) -> None:
        """Count a change, and wake all waiters."""
        self._version += 1
        if self._waiting:  # cheap where nobody waits, as on the way of each message
            self._waiting.unpark_all()

    async def wait(self, seen: int) -> int:
        """Return the version as soon as it differs from `seen`."""
        await trio.lowlevel.checkpoint()
        while self._version == seen:
            await self._waiting.park()
        return self._version

    async def wait_next(self) -> int:
        """Return the version of the next change after this call."""
        return await self.wait(self._version)
