"""Wakes who waits for messages of a queue when this process has put some there."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio


@attrs.define(eq=False)
class Doorbell:
    """Of one queue, while it has receivers here."""

    rings: int = 0
    receivers: int = 0
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def ring(self, messages: int) -> None:
        self.rings += 1
        self._waiting.unpark(count=messages)

    async def wait(self, rings: int, seconds: float) -> bool:
        """
        Return when it rings, or that time is over; at once if it has rung since it had rung so
        often. Whether it rang.
        """
        if self.rings != rings:
            await trio.lowlevel.checkpoint()
            return True
        with trio.move_on_after(seconds):
            await self._waiting.park()
            return True
        return False


@attrs.define(eq=False)
class Arrivals:
    """A doorbell for each queue that somebody here receives from."""

    _bells: dict[str, Doorbell] = attrs.field(factory=dict)

    @contextmanager
    def of(self, queue: str) -> Iterator[Doorbell]:
        """The bell of that queue, by its key."""
        bell = self._bells.setdefault(queue, Doorbell())
        bell.receivers += 1
        try:
            yield bell
        finally:
            bell.receivers -= 1
            if not bell.receivers:
                del self._bells[queue]

    def ring(self, queue: str, messages: int) -> None:
        if (bell := self._bells.get(queue)) is not None:
            bell.ring(messages)
