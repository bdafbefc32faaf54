"""Wakes the receivers of a queue when this process has sent messages to it."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio


@attrs.define(eq=False)
class ArrivalNotifier:
    """The notifier of one queue, which exists while the queue has receivers in this process."""

    rings: int = 0
    receivers: int = 0
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def ring(self, messages: int) -> None:
        self.rings += 1
        self._waiting.unpark(count=messages)

    async def wait(self, rings: int, seconds: float) -> bool:
        """
        Wait until the notifier rings, for up to `seconds`; don't wait if it has rung since `rings`
        was read. Return whether it rang.
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
    """A notifier for each queue that has receivers in this process."""

    _notifiers: dict[str, ArrivalNotifier] = attrs.field(factory=dict)

    @contextmanager
    def of(self, queue: str) -> Iterator[ArrivalNotifier]:
        """The notifier of the queue with this key."""
        notifier = self._notifiers.setdefault(queue, ArrivalNotifier())
        notifier.receivers += 1
        try:
            yield notifier
        finally:
            notifier.receivers -= 1
            if not notifier.receivers:
                del self._notifiers[queue]

    def ring(self, queue: str, messages: int) -> None:
        if (notifier := self._notifiers.get(queue)) is not None:
            notifier.ring(messages)
