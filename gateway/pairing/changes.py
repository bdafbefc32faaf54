"""A version that grows, and a way to wait until it does."""

import attrs
import trio


@attrs.define(eq=False)
class Changes:
    """Counts changes. Nobody misses one: who waits says which version was seen last."""

    _version: int = attrs.field(default=0, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def version(self) -> int:
        return self._version

    def note(self) -> None:
        self._version += 1
        self._waiting.unpark_all()

    async def wait(self, seen: int) -> int:
        """Return the version as soon as it is another than `seen`."""
        await trio.lowlevel.checkpoint()
        while self._version == seen:
            await self._waiting.park()
        return self._version
