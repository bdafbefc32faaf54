"""The bytes for one peer, which a task of their own writes."""

from typing import Final

import attrs
import trio

HIGH_WATER: Final = 1024 * 1024  # bytes, above which who adds some waits


@attrs.define(eq=False)
class Outbox:
    """Written by `run`, in order; after the peer's end nothing is."""

    sent: float = 0.0  # when bytes were written last, by Trio's clock
    size: int = 0
    _answers: int = 0  # bytes of the gateway's own that no write has begun with
    _parts: list[bytes] = attrs.field(factory=list)
    _wake: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def put(self, data: bytes) -> None:
        if data:
            if not self._parts:
                self._wake.unpark_all()
            self._parts.append(data)
            self.size += len(data)

    def put_answer(self, data: bytes) -> None:
        """Add bytes of the gateway's own: their number depends on what the peer says alone."""
        self._answers += len(data)
        self.put(data)

    async def wait_for_answers(self) -> None:
        """
        Return when few bytes of the gateway's own wait. Those of others may wait: a peer may read
        nothing while it writes.
        """
        while self._answers > HIGH_WATER:
            await self._room.park()

    async def wait_for_room(self) -> None:
        """Return when less than the limit waits to be written."""
        while self.is_full:
            await self._room.park()

    async def wait_until_empty(self) -> None:
        """Return when nothing waits to be written."""
        while self.size:
            await self._room.park()

    @property
    def is_full(self) -> bool:
        return self.size > HIGH_WATER

    def clear(self) -> None:
        """Drop what isn't written."""
        self._parts, self.size, self._answers = [], 0, 0
        self._room.unpark_all()

    async def run(self, stream: trio.abc.SendStream) -> None:
        """
        Write to the stream, until cancelled.

        Raises:
            trio.BrokenResourceError, OSError: the peer is gone.
        """
        while True:
            if not self._parts:
                await self._wake.park()
                continue
            data, self._parts, self._answers = b"".join(self._parts), [], 0
            self.sent = trio.current_time()
            await stream.send_all(data)
            self.size -= len(data)
            self._room.unpark_all()
