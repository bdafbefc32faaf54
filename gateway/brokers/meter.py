"""Counts what is asked of one namespace, as a cloud would bill it: each adapter has one."""

from collections.abc import Callable

import attrs
import trio

from gateway.domain.billing import Bill, Operation, Tally, units


@attrs.define(eq=False)
class Meter:
    """
    Hears of what a namespace has answered, refusals too where they are billed.

    An adapter calls it where it speaks with its namespace, so that what it repeats, pages through
    or asks by itself is counted too.
    """

    clock: Callable[[], float] = trio.current_time  # seconds, and never back
    _tally: Tally = attrs.field(factory=Tally, init=False)

    def start(self) -> None:
        """The namespace is open: from now on it is known whether it is idle."""
        self._tally.start(self.clock())

    def request(self, operation: Operation, messages: int = 0) -> None:
        """One request that counts as one, whatever it carries."""
        self._tally.count(operation, self.clock(), messages=messages)

    def carried(self, operation: Operation, messages: int, size: int) -> None:
        """Messages went over, of so many bytes together, and each is billed by its size."""
        now = self.clock()
        self._tally.count(operation, now, units(messages, size), messages)

    def settled(self, messages: int) -> None:
        """As many settlements, though perhaps said in one request."""
        self._tally.count(Operation.SETTLE, self.clock(), messages)

    def bill(self) -> Bill:
        """What was counted up to now."""
        return self._tally.bill(self.clock())
