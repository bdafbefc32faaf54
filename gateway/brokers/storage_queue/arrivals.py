"""Wakes the receivers of a queue when this process has sent messages to it."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio


@attrs.define(eq=False)
class ArrivalNotifier:
    """The notifier of one queue, which exists while the queue has receivers in this process."""

    notifications: int = 0
    receivers: int = 0
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def notify(self, messages: int) -> None:
        self.notifications += 1
        self._waiting.unpark(count=messages)

    async def wait(self, seen: int, seconds: float) -> bool:
        """
        Wait for a notification, for up to `seconds`; don't wait if there was one since `seen` was
        read. Return whether there was one.
        """
        if self.notifications != seen:
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

    def notify(self, queue: str, messages: int) -> None:
        if (notifier := self._notifiers.get(queue)) is not None:
            notifier.notify(messages)
